"""The program with its watchdog in `act`, on a node without systemd: what it is told to do, has done, and says."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.eventually import eventually

from .limited import PERCENTAGE, PINNED_MEMORY
from .mps import ControlDaemon
from .program import Exporter

NAME = "node"
QUIET = {"set_limits"}
"""Actions that end nothing and nobody."""
# What the program finds by itself is lost with a daemon that it starts: the driver's libraries, and whose test it is.
_INHERITED = ("LD_LIBRARY_PATH", "GPU_TESTS_ROOT")

Said = Mapping[str, Any]


class Watchdog:
    """It looks after one daemon, and knows of no other."""

    def __init__(
        self, daemon: ControlDaemon, *, liveness: float = 30, allow: Sequence[str] = (), **rules: float
    ) -> None:
        """Start it; `rules` are its times, and what it may do in them."""
        self._daemon = daemon
        self._file = daemon.directory / "config.toml"
        self._file.write_text(_configuration(daemon, {"mode": "act", "allow": list(allow)}))
        self._constants = {"discovery": False, "intervals": {"liveness": liveness}, "rules": rules}
        self.exporter = self._start()

    def start_anew(self) -> None:
        """End the program, as systemd would, and start it again over what it has kept."""
        self.exporter.end()
        self.exporter = self._start()

    def end(self) -> None:
        """End the program."""
        self.exporter.end()

    def evidence(self) -> str:
        """What the program says, for the report of a failed test."""
        return self.exporter.evidence()

    def resume(self) -> None:
        """What an operator does, once it is mended: budget and back-off begin anew, and the breaker closes."""
        self.exporter.command("resume", NAME)

    def saved(self) -> list[Path]:
        """What it has saved before it destroyed anything: one directory each time."""
        return sorted((self._daemon.directory / "state" / "evidence").glob("*"))

    @property
    def diagnosis(self) -> str:
        """What it holds to be the matter."""
        return self.exporter.scrape().state("cuda_mps_watchdog_diagnosis", label="diagnosis", daemon=NAME)

    @property
    def state(self) -> str:
        """What it is at."""
        return self.exporter.scrape().state("cuda_mps_watchdog_state", daemon=NAME)

    def restarts(self, result: str = "succeeded") -> int:
        """How many restarts of the daemon have come to that, for whatever reason."""
        scrape = self.exporter.scrape()
        return int(scrape.total("cuda_mps_watchdog_restarts_total", daemon=NAME, result=result))

    def done(self) -> list[str]:
        """All that it has done, but for limits that it has set: `action for reason: result`, once each."""
        scrape = self.exporter.scrape()
        restarts = [("restart", sample) for sample in scrape.select("cuda_mps_watchdog_restarts_total", daemon=NAME)]
        others = [
            (sample.labels["action"], sample)
            for sample in scrape.select("cuda_mps_watchdog_actions_total", daemon=NAME)
        ]
        return [
            f"{action} for {sample.labels['reason']}: {sample.labels['result']}"
            for action, sample in [*restarts, *others]
            if sample.value and action not in QUIET
        ]

    def said(self, event: str) -> list[Said]:
        """What its log has of such an event, since its last start."""
        told = (json.loads(line) for line in self.exporter.child.text().splitlines() if line.startswith("{"))
        return [each for each in told if each["event"] == event]

    def is_well(self) -> None:
        """The daemon is, and nothing is to be done."""
        assert (self.diagnosis, self.state) == ("well", "idle"), self.evidence()

    def _start(self) -> Exporter:
        exporter = Exporter(self._daemon, f"--config.file={self._file}", "--client-min-age=0s", **self._constants)
        exporter.wait()
        return exporter


class Watchdogs:
    """Those of one daemon, one after another."""

    def __init__(self, daemon: ControlDaemon) -> None:
        self._daemon = daemon
        self._last: Watchdog | None = None

    def start(self, **rules: Any) -> Watchdog:
        """Start one, and wait until it knows that its daemon is well."""
        self._last = watchdog = Watchdog(self._daemon, **rules)
        eventually(watchdog.is_well)
        return watchdog

    def end(self) -> None:
        """End the last one."""
        if self._last is not None:
            self._last.end()

    def evidence(self) -> str:
        """What the last one says, for the report of a failed test."""
        return "" if self._last is None else self._last.evidence()


def _configuration(daemon: ControlDaemon, watchdog: Mapping[str, object]) -> str:
    """Strings, numbers and lists are written alike in JSON and TOML."""
    inherited = [f"{name}={os.environ[name]}" for name in _INHERITED if os.environ.get(name)]
    tables = {
        "[watchdog]": watchdog,
        "[[daemons]]": {
            "name": NAME,
            "pipe_directory": str(daemon.pipe_directory),
            "log_directory": str(daemon.log_directory),
            "restart_command": ["env", *inherited, "nvidia-cuda-mps-control", "-d"],
            "active_thread_percentage": PERCENTAGE,
            "pinned_memory_limits": [f"0={PINNED_MEMORY}"],
        },
    }
    return "\n".join(
        line
        for head, table in tables.items()
        for line in (head, *(f"{key} = {json.dumps(value)}" for key, value in table.items()), "")
    )
