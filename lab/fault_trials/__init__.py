"""Trials with faults of known causes, on a real GPU, and the comparison of their results with the truth."""
