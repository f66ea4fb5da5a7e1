"""The logs of one daemon, in a thread of its own."""

from collections.abc import Callable

from exporter.clock import Clock
from exporter.collectors.file_changes import FileChanges
from exporter.collectors.log_file import LogFollower
from exporter.collectors.pipe_dir import DaemonLocation
from exporter.collectors.thread import CollectorThread, Inbox, Reading
from exporter.model.observation import LogFile
from exporter.model.reason import Reason, joined

PERIOD = 0.15
"""If a log has no notifications, a new line is observed within 0.2 s, also on a busy machine."""

IDLE_PERIOD = 0.5
"""How often the path of a watched log is checked for another file."""

PAUSE = 0.08
"""Least time between two collections of one daemon's logs."""

REPORT_INTERVAL = 5.0
"""How often the collector reports that nothing is new."""


class DaemonLogs:
    """The log files of one daemon."""

    def __init__(
        self,
        location: DaemonLocation,
        clock: Clock,
        changes: FileChanges | None = None,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        """`changes` calls `changed` from another thread if an open file was written."""
        self.location = location
        self.part = 1.0
        """The part of the budgets, which all daemons of one kind share. Any thread may set this and the location."""
        self._clock = clock
        self._changes = changes
        self._changed = changed
        self._followed: DaemonLocation | None = None
        self._applied_part = 1.0
        self._followers: tuple[LogFollower, ...] = ()
        self._problem: Reason | None = None

    def collect(self) -> Reading:
        """Return all new lines. Usually there are none, which takes a few system calls."""
        unfollowed: tuple[LogFile, ...] = ()
        if self.location is not self._followed:
            unfollowed = self._follow(self.location)
        elif all(follower.unchanged for follower in self._followers):
            return Reading(problem=self._problem, idle=self._idle)
        if self.part != self._applied_part:
            self._applied_part = self.part
            for follower in self._followers:
                follower.share(self._applied_part)
        readings = [follower.collect() for follower in self._followers]
        observations = (*unfollowed, *(observation for reading in readings for observation in reading.observations))
        self._problem = joined(reading.problem for reading in readings)
        return Reading(observations, self._problem, more=any(reading.more for reading in readings), idle=self._idle)

    def close(self) -> None:
        """Close all files. Call this in the thread that collects."""
        for follower in self._followers:
            follower.close()
        self._followers = ()

    @property
    def _idle(self) -> bool:
        """Whether the next collection can wait for a notification."""
        return bool(self._followers) and all(follower.watched for follower in self._followers)

    def _follow(self, location: DaemonLocation) -> tuple[LogFile, ...]:
        """Follow the logs at this location. Return those that are no longer followed."""
        known = {follower.file: follower for follower in self._followers}
        self._followers = tuple(
            known.pop(file) if file in known else LogFollower(location, file, self._clock, self._changes, self._changed)
            for file in location.logs
        )
        for follower in self._followers:
            follower.location = location
            follower.share(self.part)
        self._applied_part = self.part
        for follower in known.values():
            follower.close()
        self._followed = location
        return tuple(_not_followed(location.name, file, self._clock.now()) for file in known)


class LogCollector:
    """The logs of one daemon with the thread that follows them, which reports a collection that exceeds `deadline`."""

    def __init__(
        self,
        name: str,
        location: DaemonLocation,
        *,
        inbox: Inbox,
        clock: Clock,
        changes: FileChanges | None,
        deadline: float,
    ) -> None:
        """`name` is that of the collector."""
        self.logs = logs = DaemonLogs(location, clock, changes, changed=lambda: self.thread.trigger())
        self._inbox = inbox
        self._clock = clock
        self.thread = CollectorThread(
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

    def set_location(self, location: DaemonLocation, part: float) -> None:
        """Follow the daemon to this location, with this part of the budgets of all daemons of its kind."""
        self.logs.part = part
        if location != self.logs.location:
            self.logs.location = location
            self.thread.trigger()

    def stop(self) -> None:
        """Stop following the logs. If a collection hangs, its thread closes the files when the collection ends."""
        was_alive, location = self.thread.alive, self.logs.location
        self.thread.stop()
        if was_alive:
            self._inbox.put(tuple(_not_followed(location.name, file, self._clock.now()) for file in location.logs))


def _not_followed(daemon: str, file: str, at: float) -> LogFile:
    return LogFile(at=at, daemon=daemon, file=file, followed=False)
