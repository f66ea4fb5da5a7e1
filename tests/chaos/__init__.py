"""Chaos: random kills, stops, faults, quits, limits and restarts, and what must hold through all of it.

`python -m tests.chaos --seed N --steps N` is one run, against the stand-in and the real program in `act`: the `stage`
has them, `steps` are what is done to them, and `rules` what must hold. They are judged by what an `onlooker` sees in
/proc, a `limits_watch` in the stand-in itself, and what the stand-in writes down of faults. What the exporter says of
itself proves nothing: `claims` judge it. A `driver` shows the clients and the Xids of real faults in NVML.

With `--forger` a hostile user acts beside it all (`forger`, `forgeries`), and a second daemon, the neighbour, to which
nothing happens, is forged about, too. With `--keep-going` a run names all broken rules at its end. Ten seeds:
`seq 10 | xargs -P 4 -I{} python -m tests.chaos --forger --seed {}`.
"""
