"""The watchdog's configuration in these tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exporter.model.settings import Thresholds

PERCENTAGE = 40.0
MEMORY = "0=2G"
DAEMON = "main"
NEIGHBOUR = "neighbour"
"""Another daemon, to which nothing happens."""

_RULES: Mapping[str, Any] = {
    "hung_after": 5.0,
    "restarts": 6,
    "window": 20.0,
    "backoff": 0.1,
    "longest_backoff": 0.5,
    "verify": 5.0,
    "fault": 5.0,
    "step": 1.0,
}
RULES = Thresholds(**_RULES)
"""The watchdog's rules. Their times are far shorter than those of a real node."""

CONSTANTS = {"discovery": False, "journal": False, "kmsg": "/nowhere", "pods": "/nowhere", "rules": _RULES}
"""Constants of the exporter: these rules, and none of the machine's daemons and logs."""

TERMS: Mapping[str, bool] = {"leaves-alone": False, "ends": True}
"""Whether the watchdog may end a hung server, and clients that delay the end of a fault."""


def configuration(
    may_end: bool,
    main: tuple[Path, Path],
    neighbour: tuple[Path, Path],
    command: Path,
    environment: Mapping[str, str],
) -> str:
    """Return the configuration file of an exporter. A daemon is given by its pipe and log directories."""
    starts = ["env", *(f"{name}={value}" for name, value in environment.items()), str(command)]
    return f"""
        [watchdog]
        mode = "act"
        allow = {["kill_clients", "end_hung_server"] if may_end else []}

        [[daemons]]
        name = "{DAEMON}"
        pipe_directory = "{main[0]}"
        log_directory = "{main[1]}"
        restart_command = {starts}
        active_thread_percentage = {PERCENTAGE}
        pinned_memory_limits = ["{MEMORY}"]

        [[daemons]]
        name = "{NEIGHBOUR}"
        pipe_directory = "{neighbour[0]}"
        log_directory = "{neighbour[1]}"
    """
