"""The program beside real MPS on a real GPU, judged by what CUDA clients of known load know of themselves.

`tests/gpu/run.sh` runs it all as root on a node with one GPU, its driver and nvcc. MPS runs in directories of its own;
compute mode, MIG, clocks and accounting stay as they are.
"""
