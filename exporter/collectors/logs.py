"""The logs of one daemon, in a thread of its own."""

from collections.abc import Callable
from dataclasses import dataclass

from exporter.clock import Clock
from exporter.collectors.file_changes import FileChanges
from exporter.collectors.log_file import LogFollower
from exporter.collectors.pipe_dir import DaemonLocation
from exporter.collectors.thread import CollectorThread, Inbox, Reading
from exporter.model.observation import LogFile
from exporter.model.problem import Problem, joined

PERIOD = 0.15
"""So that a line is known within 0.2 s, on a busy machine too, where no change can be told of."""

IDLE_PERIOD = 0.5
"""How often it is seen whether another file has taken the place of a log that is watched."""

PAUSE = 0.08
"""Between two looks at the logs of one daemon, however much is written."""

REPORT_INTERVAL = 5.0
"""How often it is told that nothing is new. If a daemon has gone, it is told at once."""


class DaemonLogs:
    """The logs of one daemon."""

    def __init__(
        self,
        location: DaemonLocation,
        clock: Clock,
        changes: FileChanges | None = None,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        """`changes` calls `changed`, from another thread, when a look would find something in a file that is open."""
        self._changes = changes
        self._changed = changed
        self._clock = clock
        self._attended: DaemonLocation | None = None
        self._share = 1.0
        self._shared: float | None = None
        self._followers: tuple[LogFollower, ...] = ()
        self._problem: Problem | None = None
        self.location = location
        """Where the daemon is. Any thread may set it; it applies from the next look on."""

    def share(self, part: float) -> None:
        """Read no more than this part, from the next look on, of what may be read of the logs of all daemons."""
        self._share = part

    def collect(self) -> Reading:
        """All new lines. Most looks find none, and many come each second, so that these cost a few system calls."""
        left: tuple[LogFile, ...] = ()
        if self.location is not self._attended:
            left = self._attend(self.location)
        elif all(follower.still for follower in self._followers):
            return Reading(problem=self._problem, idle=self._idle)
        if self._share != self._shared:
            self._shared = self._share
            for follower in self._followers:
                follower.share(self._shared)
        readings = [follower.collect() for follower in self._followers]
        seen = [*left, *(observation for reading in readings for observation in reading.observations)]
        self._problem = joined(each.problem for each in readings)
        return Reading(tuple(seen), self._problem, more=any(each.more for each in readings), idle=self._idle)

    def close(self) -> None:
        """Close all files. To be called in the thread that looks."""
        for follower in self._followers:
            follower.close()
        self._followers = ()

    @property
    def _idle(self) -> bool:
        """Whether the next look can wait until a change is told of."""
        return bool(self._followers) and all(follower.watched for follower in self._followers)

    def _attend(self, location: DaemonLocation) -> tuple[LogFile, ...]:
        """Follow the logs of this place; return those that are followed no more."""
        known = {follower.file: follower for follower in self._followers}
        self._followers = tuple(
            known.pop(file) if file in known else LogFollower(location, file, self._clock, self._changes, self._changed)
            for file in location.logs
        )
        for follower in self._followers:
            follower.set_location(location)
        self._shared = None
        for follower in known.values():
            follower.close()
        self._attended = location
        return tuple(_not_followed(location.name, file, self._clock.now()) for file in known)


@dataclass(frozen=True, slots=True)
class LogCollector:
    """What follows the logs of one daemon, and the eye in which it does."""

    logs: DaemonLogs
    thread: CollectorThread
    inbox: Inbox
    clock: Clock

    def set_location(self, location: DaemonLocation, part: float) -> None:
        """The daemon is there now; its logs have this part of what may be read of all."""
        self.logs.share(part)
        if location != self.logs.location:
            self.logs.location = location
            self.thread.trigger()

    def stop(self) -> None:
        """Follow no more. A look that hangs is left to hang; its files are closed by its own thread, if ever."""
        was_alive, location = self.thread.alive, self.logs.location
        self.thread.stop()
        if was_alive:
            self.inbox.put(tuple(_not_followed(location.name, file, self.clock.now()) for file in location.logs))


def _not_followed(daemon: str, file: str, at: float) -> LogFile:
    return LogFile(at=at, daemon=daemon, file=file, followed=False)


def log_collector(
    name: str, location: DaemonLocation, *, inbox: Inbox, clock: Clock, changes: FileChanges | None, deadline: float
) -> LogCollector:
    """What follows the logs of the daemon in a place, as a source of this name.

    A look that takes longer than `deadline` seconds is told of.
    """
    logs = DaemonLogs(location, clock, changes, changed=lambda: thread.trigger())
    thread = CollectorThread(
        name,
        logs.collect,
        period=PERIOD,
        deadline=deadline,
        inbox=inbox,
        clock=clock,
        report_interval=REPORT_INTERVAL,
        idle_period=IDLE_PERIOD,
        pause=PAUSE,
        at_end=logs.close,
        daemon=location.name,
    )
    return LogCollector(logs, thread, inbox, clock)
