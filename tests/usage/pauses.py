"""Recordings as the collector would have made them with its present pauses."""

from dataclasses import dataclass, field, replace

from exporter.libcuda_probes.collector import Pauses
from exporter.model.launches import ProcessWork, WorkReading

OPEN = {"flight_ns": "open_ns", "area": "open_area", "bound": "open_bound"}
COUNTS = (
    *("kernels", "graphs", "syncs", "records", "uploads", "context_calls", "spans", "graph_kernels", "widths", *OPEN),
    *("sure_area", "sure_widths", "sure_gaps", "sure_heights", "sure_event_heights"),
    *("copies", "copied", "transfers", "transferred", "graph_copies"),
)


def counts_of(work: ProcessWork) -> dict[str, int]:
    """Return the counts of a process. Those of spans include the open ones."""
    return {name: getattr(work, name) + (getattr(work, OPEN[name]) if name in OPEN else 0) for name in COUNTS}


def key_of(work: ProcessWork) -> tuple[int, int, int]:
    return work.pid, work.device, work.first_ns


@dataclass
class Thinning:
    """Removes from readings what was launched in the pauses. `seconds` is the time with attached probes."""

    pauses: Pauses = field(default_factory=Pauses)
    seconds: float = 0.0
    last: WorkReading | None = None
    paused: bool = False
    omitted: dict[tuple[int, int, int], dict[str, int]] = field(default_factory=dict)

    def thinned(self, seen: WorkReading, *, settled: bool) -> WorkReading:
        """Return a reading without what was launched in the pauses."""
        now, last = seen.boot_ns / 1e9, self.last
        self.pauses.settled = settled
        if self.paused and last is not None:
            self.paused = self.pauses.lasts(now)
            self.last = replace(last, at=seen.at, boot_ns=seen.boot_ns, seconds=0.0)
            if not self.paused:
                self._omit(seen, last)
                self.last = replace(self.last, watched=seen.watched)
            return self.last
        shown = replace(
            seen,
            processes=tuple(self._shown(work) for work in seen.processes),
            on_devices=tuple(self._shown(work) for work in seen.on_devices),
        )
        before = () if last is None else last.processes
        self.pauses.add({work.pid: work for work in before}, {work.pid: work for work in shown.processes}, seen.seconds)
        self.seconds, self.last = self.seconds + seen.seconds, shown
        self.paused = self.pauses.seconds > 0
        if self.paused:
            self.pauses.begin(now)
        return shown

    def _omit(self, seen: WorkReading, shown: WorkReading) -> None:
        counted = {key_of(work): counts_of(work) for work in (*shown.processes, *shown.on_devices)}
        for work in (*seen.processes, *seen.on_devices):
            before = counted.get(key_of(work), {})
            self.omitted[key_of(work)] = {name: n - before.get(name, 0) for name, n in counts_of(work).items()}

    def _shown(self, work: ProcessWork) -> ProcessWork:
        omitted = self.omitted.get(key_of(work), {})
        counts = {name: n - omitted.get(name, 0) for name, n in counts_of(work).items()}
        return replace(work, **counts, **dict.fromkeys(OPEN.values(), 0))
