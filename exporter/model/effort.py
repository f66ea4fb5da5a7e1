"""What a process did in a window, as far as the doors tell: the difference of two readings."""

from dataclasses import dataclass, fields
from operator import attrgetter

from exporter.model.replace import replace
from exporter.model.work import ProcessWork

MOST = 1 << 53
"""More than any process does in a window, and what a float has exactly. A client can say of a kernel, or of a graph of
them, that it is as wide as it likes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """As in ProcessWork; `area` with that of spans that last still. `idle_ns` is how long ago it launched last."""

    widths: int = 0
    area: int = 0
    sure_area: int = 0
    sure_widths: int = 0
    sure_gaps: int = 0
    sure_heights: int = 0
    sure_event_heights: int = 0
    idle_ns: int = 0

    def part(self, number: int) -> "Effort":
        """An equal part of it, of so many."""
        if number == 1:
            return self
        return replace(self, **{name: getattr(self, name) // number for name in _NAMES})


_NAMES = tuple(each.name for each in fields(Effort) if each.name != "idle_ns")
_counts = attrgetter(*_NAMES, "open_area")
_AREA = _NAMES.index("area")
_NONE = (0,) * (len(_NAMES) + 1)


def effort(before: ProcessWork | None, now: ProcessWork, at_ns: int) -> Effort:
    """What was done since, until now; all, of one that was not seen before. Nothing is ever undone."""
    if before is not None and before.first_ns != now.first_ns:
        before = None
    *earlier, open_before = _NONE if before is None else _counts(before)
    *later, open_now = _counts(now)
    earlier[_AREA] += open_before
    later[_AREA] += open_now
    grown = {name: _grown(*each) for name, *each in zip(_NAMES, earlier, later, strict=True)}
    return Effort(**grown, idle_ns=max(0, at_ns - now.launched_ns))


def _grown(before: int, now: int) -> int:
    return 0 if now <= before else min(MOST, now - before)
