"""Reads what the preflight looks at. A reader never raises: what it could not look at, it says."""
