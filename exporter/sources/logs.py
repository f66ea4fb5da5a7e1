"""Follows the logs of all daemons."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from exporter.clock import Clock
from exporter.model.observation import LogFile
from exporter.sources.file_changes import FileChanges
from exporter.sources.log_follower import MOST_LINES_A_LOOK, LogFollower
from exporter.sources.place import Place, on_host
from exporter.sources.reading import Reading

MOST_LINES_IN_ALL = 16_000
"""Of all logs in one look, which has a share for each: a fake daemon's flood puts off no other's lines."""


class DaemonLogs:
    """The logs of every daemon."""

    def __init__(
        self, directories: Mapping[str, Path], clock: Clock, *, changed: Callable[[], object] | None = None
    ) -> None:
        """`directories` has the log directory of each daemon, by its name.

        `changed` is called, from another thread, when a look would find something in a file that is open.
        """
        self._changes = None if changed is None else FileChanges(changed)
        self._clock = clock
        self._places: Mapping[str, Place] = {
            name: on_host(name, directory, directory) for name, directory in directories.items()
        }
        self._attended: Mapping[str, Place] = {}
        self._followers: dict[str, tuple[LogFollower, ...]] = {}
        self._problem: str | None = None

    def follow(self, places: Mapping[str, Place]) -> None:
        """Say which daemons there are, by name, from the next look on."""
        self._places = places

    @property
    def awaits_look(self) -> bool:
        """Whether other daemons' logs are to be followed than are."""
        return self._places.keys() != self._followers.keys()

    def look(self) -> Reading:
        """All new lines. Most looks find none, and many come each second, so that these cost a few system calls."""
        places, left = self._places, list[LogFile]()
        if places is not self._attended:
            left = self._attend(places)
            self._attended = places
        elif all(follower.still for follower in chain.from_iterable(self._followers.values())):
            return Reading(problem=self._problem, idle=self._idle)
        readings = list(self._shared(MOST_LINES_IN_ALL))
        seen = [*left, *(observation for reading in readings for observation in reading.observations)]
        self._problem = "; ".join(each.problem for each in readings if each.problem is not None) or None
        return Reading(tuple(seen), self._problem, more=any(each.more for each in readings), idle=self._idle)

    def close(self) -> None:
        """Let go of all files."""
        self._attend({})
        self._attended = {}
        if self._changes is not None:
            self._changes.close()

    @property
    def _idle(self) -> bool:
        """Whether the next look can wait until a change is told of."""
        return bool(self._followers) and all(
            follower.watched for follower in chain.from_iterable(self._followers.values())
        )

    def _shared(self, left: int) -> Iterator[Reading]:
        """Look with all. Those that are flooded come last, and have what the others leave of their shares."""
        daemons = sorted(self._followers.values(), key=lambda logs: any(log.behind for log in logs))
        followers = list(chain.from_iterable(daemons))
        for count, follower in zip(range(len(followers), 0, -1), followers, strict=True):
            reading = follower.look(max(1, min(MOST_LINES_A_LOOK, left // count)))
            left -= len(reading.observations)
            yield reading

    def _attend(self, places: Mapping[str, Place]) -> list[LogFile]:
        """Follow the logs of these places; which logs of theirs, or of others, are followed no more."""
        left: list[LogFile] = []
        for name in self._followers.keys() - places.keys():
            left.extend(self._leave(name, follower) for follower in self._followers.pop(name))
        for name, place in places.items():
            known = {follower.file: follower for follower in self._followers.get(name, ())}
            left.extend(self._leave(name, known.pop(file)) for file in known.keys() - set(place.logs))
            self._followers[name] = tuple(
                known[file] if file in known else LogFollower(place, file, self._clock, self._changes)
                for file in place.logs
            )
            for follower in self._followers[name]:
                follower.move(place)
        return left

    def _leave(self, daemon: str, follower: LogFollower) -> LogFile:
        follower.close()
        return LogFile(at=self._clock.now(), daemon=daemon, file=follower.file, followed=False)
