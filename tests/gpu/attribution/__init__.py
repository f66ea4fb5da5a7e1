"""Whose SM time it was: mixes of MPS clients of known load, what the exporter could see of them, and the truth.

`tests/gpu/attribution/run.sh` plays all mixes on a node with one GPU, its driver, nvcc and PyTorch, as root, and leaves
`mixes.tar.gz` in $OUT: of each mix a recording, the truth, NVML's rows by process, and what PyTorch's profiler saw.
"""
