"""A collector's thread: it collects at its interval, and a hang stops that collector alone."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

import structlog

from exporter.clock import Clock
from exporter.model.observation import Observation, SourceReading
from exporter.model.problem import Problem, ProblemCode

DEFECT_SECONDS = 1.0
"""How long an eye rests after its source has raised."""

FULL_INBOX = 64
"""How many readings may wait to be taken in before nobody looks for more; ordinarily, each is taken in at once."""
FLOODED_INBOX = 2
"""The same for a source that has left something unread: its flood leaves the inbox to the other sources."""
FULL_SECONDS = 0.02
"""How long an eye rests before it sees whether the inbox is still full."""

MORE_SECONDS = 0.05
"""How soon an eye looks again that left something unread: a flood of one source leaves the others their time."""

Inbox = SimpleQueue[tuple[Observation, ...]]


@dataclass(frozen=True, slots=True)
class Reading:
    """What one collection returns: observations, and the problem that made it incomplete."""

    observations: tuple[Observation, ...] = ()
    problem: Problem | None = None
    more: bool = False
    """Whether the collector left something unread, so as not to return too much at once."""
    idle: bool = False
    """Whether there is nothing to collect until something is requested."""


class CollectorThread:
    """Looks every `period` seconds, and at once when nudged; never twice at a time."""

    def __init__(
        self,
        name: str,
        collect: Callable[[], Reading],
        *,
        period: float | None,
        deadline: float,
        inbox: Inbox,
        clock: Clock,
        report_interval: float = 0.0,
        idle_period: float | None = None,
        pause: float = 0.0,
        at_end: Callable[[], object] = lambda: None,
        daemon: str | None = None,
    ) -> None:
        """A `period` of None looks only when nudged; uneventful looks are told every `told_every` seconds.

        A source that is idle is looked at every `idle_period` seconds, by default as seldom as it is told of, until it
        is nudged. Between two looks there are `pause` seconds, unless a look is awaited. `at_end` is called after the
        last look, in the same thread. `daemon` is the one that this eye is for, where each has its own.
        """
        self.name = name
        self._daemon = daemon
        self._look = collect
        self._period = period
        self._deadline = deadline
        self._inbox = inbox
        self._clock = clock
        self._told_every = report_interval
        self._idle_period = report_interval if idle_period is None else idle_period
        self._pause = pause
        self._at_end = at_end
        self._left_unread = False
        self._told_at = float("-inf")
        self._told_problem: Problem | None = None
        self._uneventful: deque[SourceReading] = deque(maxlen=1)
        self._began: float | None = None
        self._complained_at: float | None = None
        self._awaited = threading.Event()
        self._nudged = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"collector-{name}", daemon=True)

    def open(self) -> None:
        """Begin to look."""
        self._thread.start()

    def trigger(self, *, report: bool = False) -> None:
        """Look as soon as the present look, if there is one, is over; it is `told` of even if nothing was seen."""
        if report:
            self._awaited.set()
        self._nudged.set()

    @property
    def busy(self) -> bool:
        """Whether a look is under way or about to be."""
        return self._began is not None or self._nudged.is_set()

    def timeout_report(self) -> SourceReading | None:
        """Say that the present look has outlasted its deadline; once for each deadline that passes."""
        began = self._began
        if began is None:
            return None
        waited = self._clock.monotonic() - began
        since = waited if self._complained_at is None else self._clock.monotonic() - self._complained_at
        if waited < self._deadline or since < self._deadline:
            return None
        self._complained_at = self._clock.monotonic()
        self._told_problem = problem = _still_running(waited)
        return self._told(waited, problem)

    def uneventful(self) -> SourceReading | None:
        """Return the last uneventful look, once. It does not go through the inbox, so it does not wake the cycle."""
        return self._uneventful.popleft() if self._uneventful else None

    def stop(self) -> None:
        """Begin no further look."""
        self._closing.set()
        self._nudged.set()
        self._awaited.set()

    @property
    def alive(self) -> bool:
        """Whether its thread runs; after `stop`, until the last look is over."""
        return self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the last look is over."""
        if self._thread.is_alive():
            self._thread.join(timeout)

    def close(self, timeout: float) -> None:
        """Stop looking; a look that hangs is left to hang, in a thread that does not keep the process alive."""
        self.stop()
        self.wait(timeout)

    def _run(self) -> None:
        if self._period is None:
            self._rest()
        while not self._closing.is_set():
            reading = self._look_once()
            self._left_unread = reading.more
            self._rest(soon=reading.more, idle=reading.idle)
        self._at_end()

    def _rest(self, *, soon: bool = False, idle: bool = False) -> None:
        """Wait for the next look, and until the inbox has room: whoever is flooded with news does not fill the memory.

        Between the nudge and the look there is no moment in which this eye is not busy.
        """
        if self._pause:
            self._awaited.wait(self._pause)
        self._nudged.wait(self._next_in(soon=soon, idle=idle))
        most = FLOODED_INBOX if self._left_unread else FULL_INBOX
        while self._inbox.qsize() >= most and not self._closing.is_set():
            self._closing.wait(FULL_SECONDS)
        self._began = self._clock.monotonic()
        if self._awaited.is_set():
            self._awaited.clear()
            self._told_at = float("-inf")
        self._nudged.clear()

    def _next_in(self, *, soon: bool, idle: bool) -> float | None:
        if not soon:
            return max(self._period, self._idle_period) if idle and self._period is not None else self._period
        return MORE_SECONDS if self._period is None else min(self._period, MORE_SECONDS)

    def _look_once(self) -> Reading:
        """Look, and tell what was seen."""
        self._began = began = self._clock.monotonic()
        reading = self._safely()
        seconds = self._clock.monotonic() - began
        self._tell(reading, seconds)
        # Told first, idle then: whoever finds this eye idle finds in the inbox all that it saw.
        self._began = self._complained_at = None
        return reading

    def _safely(self) -> Reading:
        """Look. A source that raises is a defect of ours; it must cost this one reading, not the eye, nor a core."""
        try:
            return self._look()
        except Exception as error:
            structlog.get_logger().exception("source_raised", source=self.name)
            self._closing.wait(DEFECT_SECONDS)
            detail = f"{type(error).__name__}: {error}"
            return Reading(problem=Problem(code=ProblemCode.UNEXPECTED_ERROR, detail=detail))

    def _told(self, seconds: float, problem: Problem | None, *, more: bool = False) -> SourceReading:
        return SourceReading(
            at=self._clock.now(), name=self.name, seconds=seconds, problem=problem, daemon=self._daemon, more=more
        )

    def _tell(self, reading: Reading, seconds: float) -> None:
        """Put news into the inbox. What is awaited is news, and so is each look of an eye that tells of all of them."""
        now = self._clock.monotonic()
        awaited = self._told_at == float("-inf") or not self._told_every
        news = bool(reading.observations) or reading.problem != self._told_problem or awaited
        if not news and now - self._told_at < self._told_every:
            return
        self._told_at, self._told_problem = now, reading.problem
        told = self._told(seconds, reading.problem, more=reading.more)
        if news:
            self._inbox.put((*reading.observations, told))
        else:
            self._uneventful.append(told)


def close(threads: Sequence[CollectorThread], timeout: float) -> None:
    """Have all of these stop looking within a time that they share, however many hang."""
    for thread in threads:
        thread.stop()
    closing = threading.Thread(target=_wait_for, args=(threads,), name="collectors-closing", daemon=True)
    closing.start()
    closing.join(timeout)


def _wait_for(threads: Sequence[CollectorThread]) -> None:
    for thread in threads:
        thread.wait()


def collect_all_within(
    deadline: float, collects: Mapping[str, Callable[[], Reading]], monotonic: Callable[[], float]
) -> Mapping[str, Reading]:
    """Collect once with each of these at the same time, for at most `deadline` seconds in all, as `within` does."""
    brought: SimpleQueue[tuple[str, Reading]] = SimpleQueue()
    for name, collect in collects.items():
        threading.Thread(target=partial(_put, brought, name, collect), name="collect", daemon=True).start()
    readings = {name: Reading(problem=_still_running(deadline)) for name in collects}
    ends = monotonic() + deadline
    with contextlib.suppress(Empty):
        for _ in collects:
            name, reading = brought.get(timeout=max(0.0, ends - monotonic()))
            readings[name] = reading
    return readings


def _put(brought: SimpleQueue[tuple[str, Reading]], name: str, collect: Callable[[], Reading]) -> None:
    brought.put((name, collect()))


def collect_within(deadline: float, collect: Callable[[], Reading]) -> Reading:
    """Collect once, for at most `deadline` seconds. A collection that hangs goes on in a daemon thread."""
    brought: SimpleQueue[Reading] = SimpleQueue()
    threading.Thread(target=lambda: brought.put(collect()), name="collect", daemon=True).start()
    try:
        return brought.get(timeout=deadline)
    except Empty:
        return Reading(problem=_still_running(deadline))


def _still_running(seconds: float) -> Problem:
    return Problem(code=ProblemCode.STILL_RUNNING, seconds=round(seconds, 1))
