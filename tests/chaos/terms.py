"""The terms under which the watchdog is put to the test, and its configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
        variables = ", ".join(f'"{name}={value}"' for name, value in environment.items())
        return f"""
            [discovery]
            enabled = false

            [collect]
            kernel_log = false
            journal = false
            pods = false

            [watchdog]
            mode = "act"
            hung_after_seconds = {self.hung_after}
            restarts = {self.restarts}
            window_seconds = {self.window}
            backoff_seconds = {self.backoff}
            longest_backoff_seconds = {self.longest_backoff}
            verify_seconds = {self.verify}
            fault_seconds = {self.fault}
            fault_remedy = "{"kill_clients" if self.ends else "none"}"
            step_seconds = {self.step}
            end_hung_servers = {str(self.ends).lower()}

            [[daemons]]
            name = "{DAEMON}"
            pipe_directory = "{pipe}"
            log_directory = "{logs}"
            restart_command = ["{command}"]
            environment = [{variables}]
            active_thread_percentage = {PERCENTAGE}
            pinned_memory_limits = ["{MEMORY}"]

            [[daemons]]
            name = "{NEIGHBOUR}"
            pipe_directory = "{neighbour[0]}"
            log_directory = "{neighbour[1]}"
        """


TERMS: Mapping[str, Terms] = {"leaves-alone": Terms(), "ends": Terms(ends=True)}
