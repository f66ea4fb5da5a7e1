"""What a process did in a window, as far as the doors tell: the difference of two readings."""

from dataclasses import dataclass, fields

from exporter.model.work import ProcessWork


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
        return Effort(**{each.name: getattr(self, each.name) // number for each in fields(self)})


def effort(before: ProcessWork | None, now: ProcessWork) -> Effort:
    """What was done since; all, of one that was not seen before. Nothing is ever undone."""
    if before is not None and before.first_ns != now.first_ns:
        before = None
    return Effort(
        widths=_more(before, now, "widths"),
        area=max(0, _area(now) - (0 if before is None else _area(before))),
        sure_area=_more(before, now, "sure_area"),
        sure_widths=_more(before, now, "sure_widths"),
        sure_gaps=_more(before, now, "sure_gaps"),
        sure_heights=_more(before, now, "sure_heights"),
        sure_event_heights=_more(before, now, "sure_event_heights"),
    )


def _area(work: ProcessWork) -> int:
    return work.area + work.open_area


def _more(before: ProcessWork | None, now: ProcessWork, name: str) -> int:
    return max(0, int(getattr(now, name)) - (0 if before is None else int(getattr(before, name))))
