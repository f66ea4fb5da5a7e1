"""The plots of the last hour: clients, memory and SM time by workload, as shapes and as a table."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from types import SimpleNamespace

from exporter.model.identity import Workload
from exporter.model.usage import MAX_SAMPLES, SAMPLE_SECONDS, Division, Sample
from exporter.report.node_status import StatusInput
from exporter.report.text import counted, duration_text, local_time, percent, workload_name
from exporter.usage.sampling import sample_of, slots_until

MOST_BANDS = 6
"""At most so many workloads, those that used the most, have a band each; the others share one."""

UNATTRIBUTED = 0.1
"""If more than this fraction of the SM time is unattributed, workloads cannot be compared (docs/accounting.md)."""

MOST_MARKS = 40
HEIGHT, FULL_HEIGHT = 100, 85
"""The height of a plot, and that of its largest value. The marks of faults are above it."""

LEAST_LABELLED = 18
"""A band of this height, in percent of the plot, has room for its number."""

OTHERS, REST = "others", "rest"
GIBIBYTE = 1 << 30

Key = Workload | str
Amounts = Mapping[Key, float]


class Hour:
    """The last hour: its slots, and the positions of times in it."""

    def __init__(self, data: StatusInput) -> None:
        # The present slot has the present values, unless nothing was collected yet or for some time.
        now = (sample_of(data.node),) if data.node.sources else ()
        slots = slots_until((*data.samples, *now), data.at)
        self.samples: Sequence[Sample | None] = tuple(slots.values())
        self.begin = SAMPLE_SECONDS * next(iter(slots))
        self.end = self.begin + SAMPLE_SECONDS * MAX_SAMPLES

    def position(self, at: float) -> float | None:
        """Return the position of a time, in percent of the width; None if it is not in the hour."""
        part = (at - self.begin) / (self.end - self.begin)
        # The last slot may not have begun yet.
        return round(100 * min(1.0, part), 2) if 0 <= part <= 1 + 2 / MAX_SAMPLES else None


def plots(data: StatusInput, hour: Hour) -> SimpleNamespace:
    """Return the plots of the last hour, the positions of faults in percent, and the times below the plots."""
    shown, of = _largest(hour.samples), "the GPU" if len(data.node.gpus) == 1 else "all GPUs"
    counts = [None if each is None or each.clients is None else float(each.clients) for each in hour.samples]
    clients: list[Amounts | None] = [None if each is None else {"clients": each} for each in counts]
    most_clients = max((each for each in counts if each is not None), default=0.0) or 1.0
    memory, memory_top = _divided([None if each is None else each.memory for each in hour.samples], shown)
    sm, sm_top = _divided([None if each is None else each.sm for each in hour.samples], shown)
    faults = [hour.position(each.started_at) for each in data.incidents[:MOST_MARKS]]
    marks = tuple(each for each in faults if each is not None)
    begin, middle, end = (local_time(at).split()[-1][:5] for at in (hour.begin, (hour.begin + hour.end) / 2, hour.end))
    return SimpleNamespace(
        plots=(
            _plot("clients", "Clients", clients, most_clients, lambda amount: f"{amount:.0f}", marks),
            _plot("memory", f"Memory of {of} by workload", memory, memory_top, _gibibytes, marks, shown),
            _plot("sm", f"SM time of {of} by workload", sm, sm_top, lambda part: _percent(part / sm_top), marks, shown),
        ),
        rows=tuple(_rows(data, shown, (memory, sm), sm_top)),
        faults=marks,
        times=(begin, middle, end),
    )


def _largest(samples: Iterable[Sample | None]) -> Sequence[Key]:
    """Return the workloads with bands: in the sum of the hour, they used most of the memory or SM time."""
    totals: defaultdict[Workload, float] = defaultdict(float)
    for sample in samples:
        for division in () if sample is None else (sample.memory, sample.sm):
            for each in () if division is None else division.parts:
                totals[each.workload] += each.amount / _capacity((division,))
    ordered = sorted(totals, key=lambda each: (-totals[each], each.kind, each.name))
    return (*ordered[:MOST_BANDS], OTHERS, REST)


def _divided(divisions: Sequence[Division | None], shown: Sequence[Key]) -> tuple[list[Amounts | None], float]:
    """Return the amounts of the bands in each slot, and the height of the plot."""
    return [_amounts(each, shown) for each in divisions], _capacity(divisions)


def _amounts(division: Division | None, shown: Sequence[Key]) -> Amounts | None:
    """Return the amount of each band; None if it is unknown."""
    if division is None:
        return None
    found: dict[Key, float] = dict.fromkeys(shown, 0.0)
    found[OTHERS], found[REST] = division.others, division.rest
    for each in division.parts:
        found[each.workload if each.workload in found else OTHERS] += each.amount
    return found


def _capacity(divisions: Iterable[Division | None]) -> float:
    return max((each.capacity for each in divisions if each is not None), default=0.0) or 1.0


def _gibibytes(amount: float) -> str:
    return f"{amount / GIBIBYTE:.{0 if amount >= 100 * GIBIBYTE or not amount else 1}f} GiB"


def _percent(part: float) -> str:
    return percent(part).replace("under", "<")


def _plot(
    name: str,
    title: str,
    amounts: Sequence[Amounts | None],
    top: float,
    text: Callable[[float], str],
    marks: Sequence[float],
    shown: Sequence[Key] = ("clients",),
) -> SimpleNamespace:
    sums = [None if each is None else sum(each.values()) for each in amounts]
    known = [each for each in sums if each is not None]
    now = "unknown" if sums[-1] is None else text(sums[-1])
    missing = SAMPLE_SECONDS * (len(sums) - len(known))
    unknown = f"; unknown for {duration_text(missing)}" if missing else ""
    span = f"{text(min(known))} to {text(max(known))} in the last hour" if known else "unknown for the last hour"
    summary = f"{now} now; {span}{unknown if known else ''}"
    return SimpleNamespace(
        id=name,
        title=title,
        summary=summary,
        description=f"{summary}. {counted(len(marks), 'fault')} marked.",
        top=text(top) if known else "",
        bands=tuple(_bands(amounts, top, shown)),
        # Position and width, in percent, of what is unknown.
        gaps=tuple(
            (round(100 * start / MAX_SAMPLES, 2), round(100 * length / MAX_SAMPLES, 2))
            for start, length, total in _runs(sums, lambda each: each is None)
            if total is None
        ),
    )


def _bands(amounts: Sequence[Amounts | None], top: float, shown: Sequence[Key]) -> Iterable[SimpleNamespace]:
    """Yield the areas, the highest first. Each begins at the bottom, and the next one covers all but its own part."""
    heights: list[dict[Key, int] | None] = []
    for each in amounts:
        total, places = 0.0, dict[Key, int]()
        for key in shown if each is not None else ():
            total += each[key] if each is not None else 0.0
            places[key] = min(FULL_HEIGHT, round(FULL_HEIGHT * total / top))
        heights.append(places or None)
    for number in reversed(range(len(shown))):
        key, below = shown[number], shown[number - 1] if number else None
        tops = [None if each is None else each[key] for each in heights]
        parts = [0 if each is None else each[key] - (each[below] if below is not None else 0) for each in heights]
        if not any(parts):
            continue
        widest = max(range(len(parts)), key=lambda slot: _room(parts, slot))
        room = _room(parts, widest) >= LEAST_LABELLED and len(shown) > 1
        yield SimpleNamespace(
            kind=key if isinstance(key, str) else f"h{number}",
            path=_path(tops),
            label=_label(key, number) if room else "",
            x=round(100 * (widest + 0.5) / MAX_SAMPLES, 2),
            y=HEIGHT - (tops[widest] or 0) + parts[widest] / 2,
        )


def _label(key: Key, number: int) -> str:
    return "" if isinstance(key, str) else str(number + 1)


def _room(parts: Sequence[int], slot: int) -> int:
    """Return the least height near a slot. At an edge, there is no room for text."""
    return min(parts[slot - 2 : slot + 3]) if 2 <= slot < len(parts) - 2 else 0


def _path(tops: Sequence[int | None]) -> str:
    """Return a path of steps. Slots without a value have none."""
    pieces = []
    for start, length, top in _runs(tops, lambda each: each is None):
        if top is not None:
            steps = (f"V{HEIGHT - (each or 0)}h{count}" for _, count, each in _runs(tops[start : start + length]))
            pieces.append(f"M{start} {HEIGHT}{''.join(steps)}V{HEIGHT}")
    return "".join(pieces)


def _runs(
    values: Sequence[float | None], key: Callable[[float | None], object] | None = None
) -> Iterable[tuple[int, int, float | None]]:
    """Yield the start, the length and the first value of each run of values that are alike."""
    start = 0
    for _, run in groupby(values, key):
        members = list(run)
        yield start, len(members), members[0]
        start += len(members)


def _rows(
    data: StatusInput, shown: Sequence[Key], columns: Sequence[Sequence[Amounts | None]], sm_top: float
) -> Iterable[SimpleNamespace]:
    held_by, used_by = columns
    for number, key in enumerate(shown):
        held = [None if each is None else each[key] for each in held_by]
        # A workload without SM time may have used it, if too much of the time is unattributed.
        used = [
            None
            if each is None
            or (isinstance(key, Workload) and not each[key] and each[REST] > UNATTRIBUTED * sum(each.values()))
            else each[key]
            for each in used_by
        ]
        if any(held) or any(used):
            name = "other workloads" if key == OTHERS else "unattributed"
            yield SimpleNamespace(
                label=_label(key, number),
                kind=key if isinstance(key, str) else f"h{number}",
                name=workload_name(key, data.node.pods) if isinstance(key, Workload) else name,
                memory=_text(held[-1:], _gibibytes),
                most_memory=_text(held, _gibibytes),
                sm=_text(used[-1:], lambda part: _percent(part / sm_top)),
                most_sm=_text(used, lambda part: _percent(part / sm_top)),
            )


def _text(amounts: Sequence[float | None], text: Callable[[float], str]) -> str:
    """Return the largest of these; `unknown` if all are unknown."""
    known = [each for each in amounts if each is not None]
    return text(max(known)) if known else "unknown"
