"""Experiments on all GPUs of a host."""
