"""The page at `/`, as its values and as a browser shows it."""
