"""The exporter with its watchdog in mode `act`, on a node without systemd."""

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
"""Actions that end no process."""
# A daemon that the exporter starts does not inherit these variables: driver libraries, name of the test.
_INHERITED = ("LD_LIBRARY_PATH", "GPU_TESTS_ROOT")

Event = Mapping[str, Any]


class Watchdog:
    """An exporter that watches one daemon."""

    def __init__(
        self, daemon: ControlDaemon, *, liveness: float = 30, allow: Sequence[str] = (), **rules: float
    ) -> None:
        """Start it; `rules` are times and permitted actions."""
        self._daemon = daemon
        self._file = daemon.directory / "config.toml"
        self._file.write_text(configuration({NAME: daemon}, {"mode": "act", "allow": list(allow)}))
        self._constants: dict[str, Any] = {"discovery": False, "intervals": {"liveness": liveness}, "rules": rules}
        self.exporter = self._start()

    def restart(self) -> None:
        """End the exporter as systemd would, and start it again with its stored state."""
        self.exporter.end()
        self.exporter = self._start()

    def end(self) -> None:
        """End the exporter."""
        self.exporter.end()

    def evidence(self) -> str:
        """Return the output of the exporter, for the report of a failed test."""
        return self.exporter.evidence()

    def resume(self) -> None:
        """Run `resume`: budget and backoff start again, and the circuit breaker closes."""
        self.exporter.command("resume", NAME)

    def saved(self) -> list[Path]:
        """Return the evidence directories, one for each action."""
        return sorted((self._daemon.directory / "state" / "evidence").glob("*"))

    @property
    def diagnosis(self) -> str:
        """Return the diagnosis."""
        return self.exporter.scrape().state("cuda_mps_watchdog_diagnosis", label="diagnosis", daemon=NAME)

    @property
    def state(self) -> str:
        """Return the state of the watchdog."""
        return self.exporter.scrape().state("cuda_mps_watchdog_state", daemon=NAME)

    def restarts(self, result: str = "succeeded") -> int:
        """Return the number of restarts with a result, for all reasons."""
        scrape = self.exporter.scrape()
        return int(scrape.total("cuda_mps_watchdog_restarts_total", daemon=NAME, result=result))

    def done(self) -> list[str]:
        """Return the actions except `set_limits`, once each: `action for reason: result`."""
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

    def logged(self, event: str) -> list[Event]:
        """Return the records of an event in its log since its last start."""
        records = (json.loads(line) for line in self.exporter.child.text().splitlines() if line.startswith("{"))
        return [each for each in records if each["event"] == event]

    def is_well(self) -> None:
        """Check that the daemon is well and the watchdog idle."""
        assert (self.diagnosis, self.state) == ("well", "idle"), self.evidence()

    def _start(self) -> Exporter:
        exporter = Exporter(self._daemon, f"--config.file={self._file}", "--client-min-age=0s", **self._constants)
        exporter.wait()
        return exporter


class Watchdogs:
    """Watchdogs of one daemon, one after another."""

    def __init__(self, daemon: ControlDaemon) -> None:
        self._daemon = daemon
        self._last: Watchdog | None = None

    def start(self, **rules: Any) -> Watchdog:
        """Start a watchdog, and wait until it reports its daemon as well."""
        self._last = watchdog = Watchdog(self._daemon, **rules)
        eventually(watchdog.is_well)
        return watchdog

    def end(self) -> None:
        """End the last watchdog."""
        if self._last is not None:
            self._last.end()

    def evidence(self) -> str:
        """Return the output of the last watchdog, for the report of a failed test."""
        return "" if self._last is None else self._last.evidence()


def configuration(daemons: Mapping[str, ControlDaemon], watchdog: Mapping[str, object]) -> str:
    """Return the configuration for daemons by name. Strings, numbers and lists are the same in JSON and TOML."""
    inherited = {name: os.environ[name] for name in _INHERITED if os.environ.get(name)}
    tables: list[tuple[str, Mapping[str, object]]] = [("[watchdog]", watchdog)]
    for daemon_name, daemon in daemons.items():
        variables = (f"{name}={value}" for name, value in {**inherited, **daemon.variables}.items())
        table = {
            "name": daemon_name,
            "pipe_directory": str(daemon.pipe_directory),
            "log_directory": str(daemon.log_directory),
            "restart_command": ["env", *variables, "nvidia-cuda-mps-control", "-d"],
            "active_thread_percentage": PERCENTAGE,
            "pinned_memory_limits": [f"0={PINNED_MEMORY}"],
        }
        tables.append(("[[daemons]]", table))
    return "\n".join(
        line
        for head, table in tables
        for line in (head, *(f"{key} = {json.dumps(value)}" for key, value in table.items()), "")
    )
