"""Divides the room for daemons among those who started them, so that one user's daemons do not displace another's."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MOST_NAMED = 3
"""How many owners a report names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A daemon that wants room.

    `owner` is who started it. `since` is when it was first found, on the monotonic clock. An `expected` daemon always
    gets room. Daemons of `host` are those that root started outside of containers.
    """

    name: str
    owner: str
    since: float
    expected: bool = False
    host: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How many daemons get room: of one owner, of all owners together, and of the host's root beside these."""

    of_one: int
    of_all: int
    of_host: int

    def admitted(self, claims: Iterable[Claim]) -> frozenset[str]:
        """Return the names of the daemons that get room.

        The first daemon of each owner comes before the second one of any, and so on. Of one owner, the daemon that was
        found first comes first. So whoever starts more daemons displaces only daemons of their own.
        """
        claims = sorted(claims, key=lambda each: each.since)
        host = [each.name for each in claims if each.host and not each.expected]
        ranked = sorted(_ranked(claims), key=lambda each: each[0])
        shared = [name for rank, name in ranked if rank < self.of_one]
        expected = (each.name for each in claims if each.expected)
        return frozenset((*expected, *host[: self.of_host], *shared[: self.of_all]))

    def problem(self, refused: Iterable[Claim]) -> str | None:
        """Say who started too many daemons; it changes with the owners, not with each daemon that comes or goes."""
        owners = sorted({each.owner for each in refused})
        if not owners:
            return None
        named = ", ".join(owners[:MOST_NAMED]) + (" and others" if len(owners) > MOST_NAMED else "")
        return (
            f"more control daemons run than are followed, and some of {named} are ignored (at most {self.of_one} of one"
            f" user or container, and {self.of_all} of all); end those that are not needed"
        )


def _ranked(claims: Iterable[Claim]) -> Iterator[tuple[int, str]]:
    before: Counter[str] = Counter()
    for each in claims:
        if not each.expected and not each.host:
            yield before[each.owner], each.name
            before[each.owner] += 1
