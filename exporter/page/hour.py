"""The last hour, or the part of it that is known: the use of the GPUs, and when something failed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from exporter.history import SAMPLE_SECONDS, sample_of, slots_until
from exporter.model.event import EventName
from exporter.report.text import display_name, local_time, percent, short_time
from exporter.view import StatusInput

MOST_MARKS = 40
_MARKED = (EventName.DAEMON_LOST, EventName.DAEMON_UNRESPONSIVE, EventName.FAULT, EventName.GPU_LOST)


@dataclass(frozen=True, slots=True)
class Line:
    """A value over the time as the path of steps in a height of 100; each slot has the width 1."""

    title: str
    summary: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class Hour:
    """What is known of the last hour, in slots. In `gaps` it is not known, and at `marks` something failed."""

    minutes: int
    times: Sequence[str]
    lines: Sequence[Line]
    slots: int
    gaps: Sequence[int]
    marks: Sequence[tuple[float, str]]


def last_hour(data: StatusInput) -> Hour | None:
    """Return the last hour, from the first sample on; None if there is none."""
    # The present slot has the present values, unless nothing was collected yet or for some time.
    now = (sample_of(data.node),) if data.node.sources else ()
    slots = slots_until((*data.samples, *now), data.at)
    first = next((slot for slot, sample in slots.items() if sample is not None), None)
    if first is None:
        return None
    samples = [sample for slot, sample in slots.items() if slot >= first]
    clients = [None if each is None else each.clients for each in samples]
    begin, seconds = first * SAMPLE_SECONDS, len(samples) * SAMPLE_SECONDS
    failures = [each for each in data.events if each.event in _MARKED and each.at >= begin][:MOST_MARKS]
    return Hour(
        minutes=round(seconds / 60) or 1,
        times=[local_time(begin + part * seconds).split()[-1][:5] for part in (0, 0.5, 1)],
        lines=(
            _line("Clients", clients, max((each or 0 for each in clients), default=0) or 1, str),
            _line("SMs used", [None if each is None else each.sm_ratio for each in samples], 1, percent),
            _line("Memory used", [None if each is None else each.memory_ratio for each in samples], 1, percent),
        ),
        slots=len(samples),
        gaps=[number for number, each in enumerate(samples) if each is None],
        marks=[
            (
                round((each.at - begin) / SAMPLE_SECONDS, 2),
                f"{short_time(each.at, data.at)} {display_name(each.daemon)}: {each.event.words}",
            )
            for each in failures
        ],
    )


def _line(title: str, values: Sequence[float | None], top: float, text: Callable[[Any], str]) -> Line:
    known = [each for each in values if each is not None]
    if not known:
        return Line(title, "unknown")
    now = "unknown" if values[-1] is None else text(values[-1])
    steps = (f"V{100 if each is None else 100 - round(95 * min(1.0, each / top))}h1" for each in values)
    summary = f"{now} now; between {text(min(known))} and {text(max(known))}"
    return Line(title, summary, f"M0 100{''.join(steps)}V100")
