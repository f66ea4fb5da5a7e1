"""The books: nothing is lost, and nothing stands in them twice."""
