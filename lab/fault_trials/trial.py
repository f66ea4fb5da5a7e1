"""A fault trial: its clients, and what each does at its time."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One client. Times are offsets to the trial's moment in seconds; `options` are those of the load program.

    Another `command` has the same options and reports.
    """

    name: str
    options: Mapping[str, object] = field(default_factory=dict)
    faults: float | None = None
    leaves: float | None = None
    killed: float | None = None
    by: signal.Signals = signal.SIGKILL
    bypasses: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()

    @property
    def gpus(self) -> frozenset[str]:
        """The numbers of its GPUs."""
        return frozenset(str(self.options.get("devices", 0)).split(","))

    def timed(self, moment: float) -> dict[str, Any]:
        """Return its options for a Unix time of the moment."""
        options = dict(self.options)
        if self.faults is not None:
            options["fault_at"] = f"{moment + self.faults:.6f}"
        if self.leaves is not None:
            options["exit_at"] = f"{moment + self.leaves:.6f}"
        return options


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Parts start in order. `facts` go into the truth unchanged: what the plan varies."""

    name: str
    kind: str
    parts: tuple[Part, ...]
    cause: str | None = None
    also_culprits: tuple[str, ...] = ()
    latecomers: int = 0
    facts: Mapping[str, object] = field(default_factory=dict)
    lead: float = 0.55
    """Seconds until a client is ready, in addition to those for the number of clients."""

    limit: tuple[int, int] | None = None
    """For a trial with its own daemon: resource limit (setrlimit(2)) of its servers, and value."""


def failure_domain(parts: Sequence[Part], cause: str) -> list[str]:
    """Return the names of the clients that share a GPU with the cause, directly or through others."""
    gpus = next(part.gpus for part in parts if part.name == cause)
    while more := {gpu for part in parts if part.gpus & gpus for gpu in part.gpus} - gpus:
        gpus |= more
    return [part.name for part in parts if part.gpus & gpus]
