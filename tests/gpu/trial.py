"""What a fault trial is: who takes part, and what each does at its moment."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One client. Its deeds come by offsets to the trial's moment, in seconds; `options` are the load program's."""

    name: str
    options: Mapping[str, object] = field(default_factory=dict)
    faults: float | None = None
    leaves: float | None = None
    killed: float | None = None
    by: signal.Signals = signal.SIGKILL
    bypasses: bool = False

    def timed(self, moment: float) -> dict[str, object]:
        """Its options, once the time of day of the moment is known."""
        options = dict(self.options)
        if self.faults is not None:
            options["fault_at"] = f"{moment + self.faults:.6f}"
        if self.leaves is not None:
            options["exit_at"] = f"{moment + self.leaves:.6f}"
        return options


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Parts start in order. `facts` go into the truth as they are: what the plan varies."""

    name: str
    kind: str
    parts: tuple[Part, ...]
    culprit: str | None = None
    also_culprits: tuple[str, ...] = ()
    latecomers: int = 0
    facts: Mapping[str, object] = field(default_factory=dict)
    limit: tuple[int, int] | None = None
    """For a trial with a daemon of its own, whose servers are held to this: resource (setrlimit(2)) and value."""
