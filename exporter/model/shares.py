"""What is kept of too many things of several daemons: each daemon has a share, so that none displaces the others."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from exporter.model.node import Node

Kept = TypeVar("Kept")


def keep_shares(
    newest_first: Sequence[Kept],
    most: int,
    daemon_of: Callable[[Kept], str | None],
    expected: Collection[str],
) -> tuple[Kept, ...]:
    """Keep `most` of these, in their order.

    Half is for the expected daemons and for what is of no daemon, half for all other daemons. In each half, every
    daemon has the same share, of which it keeps the newest. What a half or a share does not need is left to the others.
    """
    if len(newest_first) <= most:
        return tuple(newest_first)
    places: Counter[str | None] = Counter()
    halves: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for number, each in enumerate(newest_first):
        daemon = daemon_of(each)
        halves[daemon is None or daemon in expected].append((places[daemon], number))
        places[daemon] += 1
    ranked = sorted((rank, number) for half in halves.values() for rank, (_, number) in enumerate(sorted(half)))
    return tuple(newest_first[number] for number in sorted(number for _, number in ranked[:most]))


def expected_daemons(node: Node) -> frozenset[str]:
    """Return the names of the daemons that are expected."""
    return frozenset(name for name, daemon in node.daemons.items() if daemon.declared.expected)
