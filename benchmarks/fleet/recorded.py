"""Recording rules over the past: raw samples of a fleet are written, and the rules evaluated as a server would."""

import re
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise

from benchmarks.fleet.model import MINUTE, Fleet
from benchmarks.fleet.samples import Exposed
from benchmarks.fleet.stores import Store, scraped, time_series
from dashboards.parameters import Parameters
from dashboards.recording import groups

FAMILY = re.compile(r"\bcuda_mps_\w+")
BATCH = 600
INTERVALS = {"10m": 600, "5m": 300}


def write_raw(stores: Sequence[Store], fleet: Fleet, began: int, ended: int) -> None:
    """Write what a scrape of each node every minute would give."""
    families = frozenset(
        FAMILY.findall(" ".join(rule.expression for group in groups(Parameters()) for rule in group.rules))
    )
    exposed = [Exposed(node, number, families) for number, node in enumerate(fleet.nodes)]
    for start, end in pairwise((*range(began, ended, BATCH), ended)):
        for node in exposed:
            series = list(scraped(node, node.node.scrapes(start, end + MINUTE - 0.1)))
            for store in stores if series else ():
                store.write(series)
    for store in stores:
        store.settle()


def evaluate(store: Store, times: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Evaluate each rule at the times of its interval and write the results; return the mean seconds by rule."""
    took: dict[str, float] = {}
    for group in groups(Parameters()):
        for rule in group.rules:
            values: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = {}
            before = time.perf_counter()
            for at in times[group.interval]:
                for labels, value in store.query(rule.expression, at).items():
                    values.setdefault(labels, []).append((at, value))
            took[rule.record] = (time.perf_counter() - before) / max(1, len(times[group.interval]))
            if values:
                store.write(time_series({**dict(each), "__name__": rule.record}, of) for each, of in values.items())
                store.settle()
    return took
