"""Prometheus exporter for NVIDIA CUDA MPS."""

__version__ = "0.1.0"
