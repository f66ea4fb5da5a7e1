"""Configuration from flags, environment and file, as one frozen `Config`.

`options.py` has the tables of options and daemon keys. Flags, variables, keys, checks and documentation come from them.
Every command imports this package, so it imports nothing that takes long. `serve` and `demo` also import `reload.py`.
"""

from exporter.config.load import build_config, nearest_config
from exporter.config.options import LONGEST_SOCKET_PATH
from exporter.config.settings import DEFAULT_PORT, Attribution, Config, Constants, DaemonConfig
from exporter.config.values import DURATION

__all__ = [
    "DEFAULT_PORT",
    "DURATION",
    "LONGEST_SOCKET_PATH",
    "Attribution",
    "Config",
    "Constants",
    "DaemonConfig",
    "build_config",
    "nearest_config",
]
