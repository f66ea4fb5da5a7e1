"""Benchmarks: the cost of the exporter, measured on stand-ins or a real node."""
