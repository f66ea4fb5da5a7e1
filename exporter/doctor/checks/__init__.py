"""The checks: one function for each mistake."""
