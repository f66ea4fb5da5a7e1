"""Whose SM time it was on real GPUs, beside clients that counted it themselves."""
