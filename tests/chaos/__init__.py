"""Chaos: random kills, stops, faults, quits, limits and restarts, and rules that must hold through all of it.

`python -m tests.chaos --seed N --steps N` is one run, against the stand-in and the real program in mode `act`. The
`harness` starts them, `steps` are what is done to them, and `rules` what must hold. The evidence is what
`process_watch` sees in /proc, what `limits_watch` asks the stand-in, and the faults that the stand-in notes. `claims`
compare the events that the exporter reports with this evidence. A `driver` shows the clients and the Xids of real
faults in NVML.

With `--forger` a hostile user acts beside it (`forger`, `forgeries`). Nothing happens to a second daemon, the
neighbour, but the user forges its log too. With `--keep-going` a run prints all broken rules at its end. Ten seeds:
`seq 10 | xargs -P 4 -I{} python -m tests.chaos --forger --seed {}`.
"""
