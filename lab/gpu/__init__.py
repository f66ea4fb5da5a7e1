"""Tests of the exporter with real MPS on a real GPU. CUDA clients with a known load report the truth.

`lab/gpu/run.sh` runs it all as root on a node with one GPU, its driver and nvcc. MPS runs in directories of its own;
compute mode, MIG, clocks and accounting stay as they are.
"""
