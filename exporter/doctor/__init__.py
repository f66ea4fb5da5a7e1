"""The preflight `doctor`: `gather.py` reads all facts once, the pure functions in `checks/` find mistakes in them."""
