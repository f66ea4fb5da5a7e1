"""The terms under which the watchdog is put to the test, and its configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PERCENTAGE = 40.0
MEMORY = "0=2G"
DAEMON = "main"
NEIGHBOUR = "neighbour"
"""Another daemon, to which nothing happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The watchdog's rules, in seconds, far shorter than anybody would have them."""

    hung_after: float = 5.0
    restarts: int = 6
    window: float = 20.0
    backoff: float = 0.1
    longest_backoff: float = 0.5
    verify: float = 5.0
    fault: float = 5.0
    step: float = 1.0
    ends: bool = False
    """Whether it is to end a server that hangs, and clients that hold up the end of a fault."""

    def configuration(
        self, pipe: Path, logs: Path, neighbour: tuple[Path, Path], command: Path, environment: Mapping[str, str]
    ) -> str:
        """Return the configuration file of an exporter under these terms; of the neighbour it gets both directories."""
        starts = ["env", *(f"{name}={value}" for name, value in environment.items()), str(command)]
        return f"""
            [watchdog]
            mode = "act"
            allow = {["kill_clients", "end_hung_server"] if self.ends else []}

            [[daemons]]
            name = "{DAEMON}"
            pipe_directory = "{pipe}"
            log_directory = "{logs}"
            restart_command = {starts}
            active_thread_percentage = {PERCENTAGE}
            pinned_memory_limits = ["{MEMORY}"]

            [[daemons]]
            name = "{NEIGHBOUR}"
            pipe_directory = "{neighbour[0]}"
            log_directory = "{neighbour[1]}"
        """

    def constants(self) -> Mapping[str, Any]:
        """Return the constants of the exporter: the watchdog's times, and none of the machine's daemons and logs."""
        rules = {
            "hung_after": self.hung_after,
            "restarts": self.restarts,
            "window": self.window,
            "backoff": self.backoff,
            "longest_backoff": self.longest_backoff,
            "verify": self.verify,
            "fault": self.fault,
            "step": self.step,
        }
        nowhere = {"kmsg": "/nowhere", "pods": "/nowhere"}
        return {"discovery": False, "journal": False, **nowhere, "rules": rules}


TERMS: Mapping[str, Terms] = {"leaves-alone": Terms(), "ends": Terms(ends=True)}
