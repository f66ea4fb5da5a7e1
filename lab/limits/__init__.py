"""Limits as clients meet them: what the exporter shows of each client, compared with CUDA's own numbers."""
