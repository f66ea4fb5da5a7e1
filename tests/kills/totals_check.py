"""Compares the usage totals after a kill with the steps before it and the true usage."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.kills.exporter_run import steps_of
from tests.kills.gpu_timeline import GpuTimeline


@dataclass
class TotalsCheck:
    """Checks the runs one after the other. `stored` is the true usage in the time that the totals contain."""

    timeline: GpuTimeline
    stored: Counter[str] = field(default_factory=Counter)
    shown: dict[str, float] = field(default_factory=dict)
    lost_seconds: list[int] = field(default_factory=list)
    during_write: int = 0
    watched_seconds: int = 0
    _before: tuple[int, int, Counter[str], bool] | None = None
    """Of the run before: its first and last second, the last written totals, and whether it exited cleanly."""

    def check(self, begin: int, log: Path) -> list[str]:
        """Return what is wrong with the totals at the start of a run, and with the counters that it showed."""
        steps = steps_of(log)
        begins = next((number for number, step in enumerate(steps) if step["what"] == "begins"), None)
        if begins is None:
            return []
        # Before that, opening the state file writes too.
        lines = steps[begins:]
        problems = self._check_start(Counter(lines[0]["sums"]))
        for line in lines:
            problems += self._check_counters(line.get("shown", {}))
        posted = [line["second"] for line in lines if line["what"] == "posts"]
        written = [line["sums"] for line in lines if line["what"] == "written"]
        counts = Counter(line["what"] for line in lines)
        self.during_write += counts["writes"] > counts["written"]
        last_written = Counter(written[-1]) if written else Counter(self.stored)
        self._before = (begin, posted[-1] if posted else begin, last_written, lines[-1]["what"] == "ends")
        return problems

    def _check_start(self, sums: Counter[str]) -> list[str]:
        """Check that the totals are those of one second of the run before, and contain all that was written."""
        if self._before is None:
            return [] if not sums else [f"begins with {sums}"]
        begin, end, written, clean = self._before
        for second in range(end, begin - 1, -1):
            truth = self.stored + self.timeline.used(begin, second)
            if sums == truth:
                self.lost_seconds.append(end - second)
                self.watched_seconds += second - begin
                self.stored = truth
                less = any(sums[name] < amount for name, amount in written.items())
                problems = [f"{second} s is before what was written, {written}"] if less else []
                return problems + ([f"lost {end - second} s by a clean exit"] if clean and second != end else [])
        latest = self.stored + self.timeline.used(begin, end)
        return [f"{sums} belongs to no second: between {self.stored} and {latest}"]

    def _check_counters(self, shown: Mapping[str, float]) -> list[str]:
        """Check that no counter of a scrape decreases, and that its series does not end."""
        if not shown:
            return []
        less = [name for name, was in self.shown.items() if shown.get(name, -1.0) < was]
        problems = [f"{name}: {self.shown[name]} became {shown.get(name)}" for name in less]
        self.shown = {**self.shown, **shown}
        return problems
