"""Figures and samples of a run."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from statistics import fmean
from typing import Any

from lab.attribution.series import Series

from .watch import STATES, Watch

Rows = Sequence[tuple[float, int]]
Json = dict[str, Any]

SETTLE_SECONDS = 2.0
MINUTE_SECONDS = 60.0
"""The exporter's values are those of the last minute."""


@dataclass(frozen=True)
class Truth:
    """Steps of the decoder and its neighbours by time (Unix), as they counted them."""

    decoder: Rows
    neighbours: Sequence[Rows]
    is_starved: bool
    """Whether a neighbour works now."""

    @property
    def began(self) -> float:
        """When the first neighbour ended its first step."""
        return min((rows[0][0] for rows in self.neighbours if rows), default=math.inf)

    @property
    def ended(self) -> float:
        """When the last neighbour ended its last step."""
        last = max((rows[-1][0] for rows in self.neighbours if rows), default=math.inf)
        return math.inf if self.is_starved else last

    @property
    def first(self) -> int:
        """The first whole second of the decoder."""
        return int(self.decoder[0][0]) + 1 if self.decoder else 0

    @property
    def last(self) -> int:
        """The end of its last whole second."""
        return int(self.decoder[-1][0]) if self.decoder else 0

    @cached_property
    def pace(self) -> Sequence[float]:
        """The decoder's steps in each second, from `first` on."""
        series = Series(self.decoder)
        return [round(series.between(at, at + 1), 1) for at in range(self.first, self.last)]

    def mean(self, begin: float, end: float) -> float | None:
        """Return the decoder's steps per second in the whole seconds between two times."""
        first, last = math.ceil(min(max(begin, self.first), self.last)), math.floor(min(end, self.last))
        found = self.pace[first - self.first : max(0, last - self.first)]
        return round(fmean(found), 2) if found else None


def figures(facts: Json, truth: Truth, watch: Watch, steps: Sequence[Json], moments: Sequence[Json]) -> str:
    """Return the figures, a table of what each step did, and the moments, as JSON."""
    first_step = min([each["at"] for each in steps] + [truth.ended])
    alone = truth.mean(truth.first + SETTLE_SECONDS, truth.began - SETTLE_SECONDS)
    beside = truth.mean(truth.began + SETTLE_SECONDS, first_step)
    shown = [value for at, value, _ in watch.values if truth.began + MINUTE_SECONDS < at < first_step]
    last = min(truth.ended, float(truth.last))
    later = [each["at"] for each in steps if each["at"] > truth.ended + SETTLE_SECONDS]
    found = {
        **facts,
        "began": _known(truth.began),
        "ended": _known(truth.ended),
        "neighbour_seconds": _known(last - truth.began),
        "steps_per_second": {
            "alone": alone,
            "beside": beside,
            "after": truth.mean(truth.ended + SETTLE_SECONDS, min(later, default=truth.last)),
        },
        "true_slowdown": round(alone / beside, 2) if alone and beside else None,
        "shown_slowdown": [round(each(shown), 2) for each in (min, fmean, max)] if shown else None,
        "seconds_from_begin": _delays(watch, truth.began, begun=True),
        "seconds_from_end": _delays(watch, truth.ended, begun=False),
        "changes": [(round(at - truth.began, 1), state, begun) for at, state, begun in watch.changes],
        "steps": [_effect(step, truth, watch, until) for step, until in _periods(steps, truth)],
        "problems_of_reading": watch.problems,
    }
    return json.dumps({**found, "table": _table(found), "moments": moments}, indent=1, default=str)


def samples(facts: Json, truth: Truth, watch: Watch, clients: Sequence[str]) -> str:
    """Return the decoder's steps and the samples of /metrics as JSON: a line for each series."""
    found = {
        "about": {**facts, "clients": clients, "began": _known(truth.began), "ended": _known(truth.ended)},
        "steps_from": truth.first,
        "steps": " ".join(f"{each:g}" for each in truth.pace),
        "at": " ".join(f"{each:.1f}" for each in watch.at),
        "series": {
            name: " ".join(_sample(value) for value, _ in zip_longest(row, watch.at))
            for name, row in sorted(watch.series.items())
        },
    }
    return json.dumps(found, indent=0)


def _sample(value: float | None) -> str:
    return "_" if value is None else f"{value:g}"


def _known(value: float) -> float | None:
    return round(value, 2) if math.isfinite(value) else None


def _delays(watch: Watch, since: float, *, begun: bool) -> Mapping[str, float | None]:
    """Return how long after a time each state began or ended."""
    found = {state: watch.first(state, begun=begun, after=since) for state in STATES}
    return {state: None if at is None else round(at - since, 1) for state, at in found.items()}


def _periods(steps: Sequence[Json], truth: Truth) -> list[tuple[Json, float]]:
    """Return each step with the time of the next one."""
    ends = [each["at"] for each in steps[1:]]
    return list(zip(steps, [*ends, float(truth.last)], strict=True)) if steps else []


def _effect(step: Json, truth: Truth, watch: Watch, until: float) -> Json:
    """Return a step with the decoder's pace before and after it, and the slowdown that the exporter shows."""
    at: float = step["at"]
    done: float = step.get("done", at)
    shown = [value for time, value, _ in watch.values if done <= time <= until]
    return {
        **step,
        "after_begin": round(at - truth.began, 1),
        "seconds": round(until - done, 1),
        "pace_before": truth.mean(at - 6, at),
        "pace_after": truth.mean(done + 1, until),
        "shown_slowdown": (shown[0], shown[-1]) if shown else None,
    }


def _table(found: Json) -> Sequence[str]:
    """Return the steps as a table in Markdown."""
    alone = found["steps_per_second"]["alone"]
    lines = [f"| step | steps a second: before, after (alone: {alone}) | slowdown shown: at first, at last |"]
    lines.append("|---|---|---|")
    for step in found["steps"]:
        shown = "unknown" if step["shown_slowdown"] is None else "{:.2f}, {:.2f}".format(*step["shown_slowdown"])
        lines.append(f"| {step['step']} | {step['pace_before']}, {step['pace_after']} | {shown} |")
    return lines
