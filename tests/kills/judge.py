"""Reports what is wrong with the books after a kill, from the steps before it and from the true usage of the world."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kills.life import steps_of
from tests.kills.world import World

Line = Mapping[str, Any]


@dataclass
class Judge:
    """Checks the lives one after the other. `kept` is what the books have truly come to."""

    world: World
    kept: Counter[str] = field(default_factory=Counter)
    shown: dict[str, float] = field(default_factory=dict)
    lost_seconds: list[int] = field(default_factory=list)
    in_mid_write: int = 0
    watched_seconds: int = 0
    _before: tuple[int, int, Counter[str], bool] | None = None

    def check(self, begin: int, path: Path) -> list[str]:
        """What is wrong with this life's beginning, and so with the end of the one before."""
        lines = steps_of(path)
        if not lines or lines[0]["what"] != "begins":
            return []
        problems = [*self._begins(Counter(lines[0]["sums"]))]
        for line in lines:
            problems += self._falls(line.get("shown", {}))
        self._remember(begin, lines)
        return problems

    def _begins(self, found: Counter[str]) -> list[str]:
        """The books are those of some second of the life before: not less than was written, nor more than was seen."""
        if self._before is None:
            return [] if not found else [f"begins with {found}"]
        begin, end, written, whole = self._before
        for second in range(end, begin - 1, -1):
            truth = self.kept + self.world.used(begin, second)
            if found == truth:
                self.lost_seconds.append(end - second)
                self.watched_seconds += second - begin
                self.kept = truth
                problems = [f"{second} s is before what was written, {written}"] if _less(found, written) else []
                return problems + ([f"lost {end - second} s in good order"] if whole and second != end else [])
        nearest = self.kept + self.world.used(begin, end)
        return [f"{found} is no second's: between {self.kept} and {nearest}"]

    def _falls(self, shown: Mapping[str, float]) -> list[str]:
        """No counter that was scraped may ever be less, nor may its series end."""
        if not shown:
            return []
        fallen = [name for name, was in self.shown.items() if shown.get(name, -1.0) < was]
        problems = [f"{name}: {self.shown[name]} became {shown.get(name)}" for name in fallen]
        self.shown = {**self.shown, **shown}
        return problems

    def _remember(self, begin: int, lines: list[Line]) -> None:
        posted = [line["second"] for line in lines if line["what"] == "posts"]
        written = [line["sums"] for line in lines if line["what"] == "written"]
        whole = lines[-1]["what"] == "ends"
        end = posted[-1] if posted else begin
        counts = Counter(line["what"] for line in lines)
        self.in_mid_write += counts["writes"] > counts["written"]
        self._before = (begin, end, Counter(written[-1]) if written else Counter(self.kept), whole)


def _less(found: Counter[str], written: Counter[str]) -> bool:
    return any(found[name] < amount for name, amount in written.items())
