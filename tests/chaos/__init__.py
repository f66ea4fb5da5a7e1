"""Chaos: random kills, stops, faults, quits, limits and restarts, and what must hold through all of it.

`python -m tests.chaos --seed N --steps N` is one run, against the stand-in and the real program in `act`: the `stage`
has them, `steps` are what is done to them, and `rules` what must hold. They are judged by what an `onlooker` sees in
/proc and a `limits_watch` in the stand-in itself, never by what the exporter says of itself.
"""
