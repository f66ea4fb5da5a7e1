"""SM time by client: mixes of MPS clients with a known load, the exporter's attribution, and the truth.

`lab/attribution/run.sh spin` plays clients that count their own SM time, on a node with one GPU, its driver and
nvcc, as root. $OUT then has `mixes.tar.gz`: the recording of `record --attribution=bpf`, the truth, and NVML's samples
by process for each mix. `score.py` computes the errors of the shares from these. `run.sh frameworks` plays clients of
PyTorch, JAX, CuPy and Triton. $OUT then has `corpus.tar.gz` (corpus.py), which `tests/usage/mix_recordings.py` reads.
`run.sh pace` compares the pace of a launch-bound PyTorch client with and without the exporter (pace.py).
"""
