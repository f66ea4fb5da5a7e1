"""Configuration from flags, environment and file, as one frozen `Config`.

The fields of `settings.py` describe the options and daemon keys. Flags, variables, keys, checks and documentation come
from them. Every command imports `load.py`, which imports nothing that takes long.
"""
