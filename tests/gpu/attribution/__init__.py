"""Whose SM time it was: mixes of MPS clients of known load, what the shipped program made of them, and the truth.

`tests/gpu/attribution/run.sh spin`, and then `pytorch`, play them on a node with one GPU, its driver, nvcc and
PyTorch, as root. $OUT then has `mixes.tar.gz`: of each mix the recording of `record --attribution=bpf`, the truth,
NVML's rows by process, and what PyTorch's profiler saw. `score.py` tells from these, anywhere, how far off the shares
were.
"""
