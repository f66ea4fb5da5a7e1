"""What a process did in a window, as far as the doors tell: the difference of two readings."""

from dataclasses import dataclass, fields

from exporter.model.work import ProcessWork

MOST = 1 << 53
"""More than any process does in a window, and what a float has exactly. A client can say of a kernel, or of a graph of
them, that it is as wide as it likes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """As in ProcessWork; `area` with that of spans that last still."""

    widths: int = 0
    area: int = 0
    sure_area: int = 0
    sure_widths: int = 0
    sure_gaps: int = 0
    sure_heights: int = 0
    sure_event_heights: int = 0

    def part(self, number: int) -> "Effort":
        """An equal part of it, of so many."""
        if number == 1:
            return self
        return Effort(**{name: getattr(self, name) // number for name in _NAMES})


_NAMES = tuple(each.name for each in fields(Effort))


def effort(before: ProcessWork | None, now: ProcessWork) -> Effort:
    """What was done since; all, of one that was not seen before. Nothing is ever undone."""
    if before is not None and before.first_ns != now.first_ns:
        before = None
    return Effort(
        widths=_more(before, now, "widths"),
        area=_grown(0 if before is None else _area(before), _area(now)),
        sure_area=_more(before, now, "sure_area"),
        sure_widths=_more(before, now, "sure_widths"),
        sure_gaps=_more(before, now, "sure_gaps"),
        sure_heights=_more(before, now, "sure_heights"),
        sure_event_heights=_more(before, now, "sure_event_heights"),
    )


def _area(work: ProcessWork) -> int:
    return work.area + work.open_area


def _more(before: ProcessWork | None, now: ProcessWork, name: str) -> int:
    return _grown(0 if before is None else int(getattr(before, name)), int(getattr(now, name)))


def _grown(before: int, now: int) -> int:
    return min(MOST, max(0, now - before))
