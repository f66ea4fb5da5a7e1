"""What can be set, by flags, environment and file, and what comes of it: one frozen Config.

`options.py` is the table from which everything else comes, the documentation too (`reference.py`). Every command
imports this package. What only `serve` and `demo` need, they import from `orders.py` and `reload.py`.
"""

from exporter.config.build import build_config, nearest_config
from exporter.config.daemon_keys import LONGEST_SOCKET_PATH
from exporter.config.mishap import Mishap, Planned, planned
from exporter.config.settings import DEFAULT_PORT, Attribution, Collect, Config, DaemonConfig, Discovery, Switch
from exporter.config.values import parse_address, parse_duration
from exporter.config.written import as_toml

__all__ = [
    "DEFAULT_PORT",
    "LONGEST_SOCKET_PATH",
    "Attribution",
    "Collect",
    "Config",
    "DaemonConfig",
    "Discovery",
    "Mishap",
    "Planned",
    "Switch",
    "as_toml",
    "build_config",
    "nearest_config",
    "parse_address",
    "parse_duration",
    "planned",
]
