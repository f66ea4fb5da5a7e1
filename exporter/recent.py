"""The last ten minutes of each client and GPU, for pictures: a point every 20 s, in memory only.

A point has the used SMs (of a client: the sum over its GPUs), the memory (of a client in bytes, of a GPU as a fraction)
and the slowdown. What is unknown is NaN, as is the time in which no point was taken: a plot has a gap there.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import nan
from struct import Struct

from exporter.history import Points, busy_ratio
from exporter.usage.capacity import ClientUsage
from exporter.usage.last_minute import fresh_splits
from exporter.view import View

POINT_SECONDS, MAX_POINTS = 20.0, 30
_POINT = Struct("3f")
_UNKNOWN = _POINT.pack(nan, nan, nan)


def values_of(points: Points, name: str, at: float) -> Sequence[Sequence[float]]:
    """Return used SMs, memory and slowdown of a client or GPU, each for all intervals of the ten minutes until `at`.

    The present interval is left out until its points are taken.
    """
    end, by_interval = int(at // POINT_SECONDS), dict(points)
    end -= end not in by_interval and end - 1 in by_interval
    found = (by_interval.get(end - back, {}).get(name, _UNKNOWN) for back in reversed(range(MAX_POINTS)))
    return list(zip(*map(_POINT.unpack, found), strict=True))


def with_points(points: Points, view: View) -> Points:
    """Return the points, the oldest first, with those of the node if they are due; the same object if they are not.

    After the metrics of the view were rendered, this costs little.
    """
    now = int(view.node.at // POINT_SECONDS)
    if not view.node.sources or (points and points[-1][0] == now):
        return points
    # If the clock was set back, later points are dropped.
    return (*(each for each in points if now - MAX_POINTS < each[0] < now), (now, _present(view)))


def _present(view: View) -> Mapping[str, bytes]:
    """Return the point of each GPU by its UUID, and of each client with series of its own by its id.

    An id has the start time of the process: another process with the same PID has another one.
    """
    splits, points, uses = fresh_splits(view.node), dict[str, bytes](), defaultdict[int, list[ClientUsage]](list)
    for uuid, gpu in view.node.gpus.items():
        reading, busy = gpu.reading, busy_ratio(gpu, splits.get(uuid))
        used, total = reading.memory_used_bytes, reading.memory_total_bytes
        memory = nan if used is None or not total else used / total
        points[uuid] = _POINT.pack(nan if busy is None else busy, memory, nan)
    for sharing in view.sharing.values():
        for use in sharing.clients:
            uses[use.client.pid].append(use)
    for _, client, name in view.clients:
        of_gpus = uses[client.pid]
        sm = [nan if use.share is None else use.share.sm for use in of_gpus] or [nan]
        held = [nan if use.memory_used_bytes is None else use.memory_used_bytes for use in of_gpus] or [nan]
        slow = [use.slowdown.ratio for use in of_gpus if use.slowdown and (use.is_slowed or not use.slowdown.at_least)]
        # The same string in all points takes memory once.
        points[sys.intern(name)] = _POINT.pack(sum(sm), sum(held), max(slow, default=nan))
    return points
