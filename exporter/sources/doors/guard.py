"""How much of the time the doors may be watched, so that nobody pays more than a hundredth of their time for it.

A thread pays for each call that is probed, and twice for a synchronisation. It keeps others' events from being
forgotten, too, before they are waited for: there is room for those of more than a second.
"""

from collections.abc import Mapping

from exporter.model.work import ProcessWork

MOST_CALLS = 8_000.0
"""How many probed calls a second of one process cost it a hundredth of its time, or less: each takes about 1.1 us
(measured, H200's host)."""

LEAST_PART = 0.02

SHORTEST_REST_SECONDS = 1.0
"""What is owed is rested together, once it is so long: to begin and to end a rest takes its time, too."""

LONGEST_REST_SECONDS = 30.0


def calls(work: ProcessWork) -> int:
    """How often a process has been stopped by a probe so far."""
    return work.kernels + work.graphs + work.records + 2 * work.syncs


def rest_seconds(before: Mapping[int, ProcessWork], now: Mapping[int, ProcessWork], seconds: float) -> float:
    """How long a rest is owed for so many seconds in which all were watched: none where nobody made so many calls."""
    made = [calls(work) - calls(before[pid]) if pid in before else calls(work) for pid, work in now.items()]
    rate = max(made, default=0) / seconds if seconds > 0 else 0.0
    if rate <= MOST_CALLS:
        return 0.0
    part = max(LEAST_PART, MOST_CALLS / rate)
    return min(LONGEST_REST_SECONDS, seconds * (1 - part) / part)
