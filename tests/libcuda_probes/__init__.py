"""Tests of exporter/libcuda_probes."""
