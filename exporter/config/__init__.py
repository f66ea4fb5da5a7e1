"""Configuration from flags, environment and file, as one frozen `Config`.

`options.py` has the tables of options and daemon keys. Flags, variables, keys, checks and documentation come from them.
Every command imports `load.py`, which imports nothing that takes long. `serve` and `demo` also import `reload.py`.
"""
