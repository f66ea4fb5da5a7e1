"""SM time by client: mixes of MPS clients with a known load, the exporter's attribution, and the truth.

`tests/gpu/attribution/run.sh spin`, and then `pytorch`, play them on a node with one GPU, its driver, nvcc and
PyTorch, as root. $OUT then has `mixes.tar.gz`: of each mix the recording of `record --attribution=bpf`, the truth,
NVML's samples by process, and the results of PyTorch's profiler. `score.py` computes from these how far off the shares
were.
"""
