"""Experiments about kernels by name: which names are read, which kernel faulted, and what it costs."""
