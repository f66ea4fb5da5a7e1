"""Whose a GPU's SM time was: the device's own, split among those who were on it."""
