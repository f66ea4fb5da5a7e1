"""The last hour, or the part of it that is known: the use of the GPUs, and when something failed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from markupsafe import Markup

from exporter.history import SAMPLE_SECONDS, sample_of, slots_until
from exporter.model.event import EventName
from exporter.page.events import incidents_by_event, key_of
from exporter.page.tables import time_shown
from exporter.parse.printable import printable
from exporter.report.text import display_name, duration_text, local_time, percent
from exporter.view import StatusInput

MOST_MARKS = 40
LEAST_HEIGHT = 2
"""A value of 0 is drawn as a line, because nothing is drawn where a value is unknown."""

_MARKED = (EventName.DAEMON_LOST, EventName.DAEMON_UNRESPONSIVE, EventName.FAULT, EventName.GPU_LOST)


@dataclass(frozen=True, slots=True)
class Line:
    """A value over the time as the path of steps in a height of 100; each slot has the width 1."""

    title: str
    summary: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class Hour:
    """What is known of the last hour, in slots.

    At `marks` something failed: each has a text, and the ID of its incident, if there is one.
    """

    minutes: int
    times: Sequence[Markup]
    lines: Sequence[Line]
    slots: int
    marks: Sequence[tuple[float, str, str]]


def last_hour(data: StatusInput) -> Hour | None:
    """Return the last hour, from the first sample on; None if there is none."""
    # The present slot has the present values, unless nothing was collected yet or for some time.
    now = (sample_of(data.node),) if data.node.sources else ()
    slots = slots_until((*data.samples, *now), data.at)
    first = next((slot for slot, sample in slots.items() if sample is not None), None)
    if first is None:
        return None
    samples = [sample for slot, sample in slots.items() if slot >= first]
    begin, seconds = first * SAMPLE_SECONDS, len(samples) * SAMPLE_SECONDS
    known = incidents_by_event(data)
    failures = [each for each in data.events if each.event in _MARKED and each.at >= begin][:MOST_MARKS]
    return Hour(
        minutes=round(seconds / 60) or 1,
        times=[time_shown(at, local_time(at).split()[-1][:5]) for at in (begin, begin + seconds / 2, begin + seconds)],
        lines=(
            line("Clients", [None if each is None else each.clients for each in samples], 1, str),
            line("SMs used", [None if each is None else each.sm_ratio for each in samples], 1, percent),
            line("Memory used", [None if each is None else each.memory_ratio for each in samples], 1, percent),
        ),
        slots=len(samples),
        marks=[
            (
                round((each.at - begin) / SAMPLE_SECONDS, 2),
                f"{duration_text(max(0.0, data.at - each.at))} ago, {display_name(each.daemon)}: {each.event.words}",
                printable(known[key_of(each)].id) if key_of(each) in known else "",
            )
            for each in failures
        ],
    )


def line(title: str, values: Sequence[float | None], least: float, text: Callable[[Any], str]) -> Line:
    """Return the line of values, of which None is unknown. The largest one has the whole height, if it is `least`."""
    known = [each for each in values if each is not None]
    if not known:
        return Line(title, "unknown")
    now = "unknown" if values[-1] is None else text(values[-1])
    top = max(least, *known)
    runs = groupby(None if each is None else max(LEAST_HEIGHT, round(95 * each / top)) for each in values)
    counted = ((height, len(list(run))) for height, run in runs)
    path = "".join(f"V100m{count} 0" if height is None else f"V{100 - height}h{count}" for height, count in counted)
    return Line(title, f"{now} now; between {text(min(known))} and {text(max(known))}", f"M0 100{path}V100")
