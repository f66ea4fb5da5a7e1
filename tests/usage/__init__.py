"""Whose a GPU's SM time was, in worlds where that is known."""
