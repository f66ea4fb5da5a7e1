"""Experiments on real GPUs. They are not tests; README.md has the commands."""
