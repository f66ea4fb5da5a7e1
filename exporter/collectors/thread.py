"""A collector's thread: it collects at its interval, and a hang stops only that collector."""

import errno
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from queue import Empty, SimpleQueue
from typing import TypeVar, cast

from exporter.clock import Clock
from exporter.logger import logger
from exporter.model.observation import Observation, SourceReading
from exporter.model.reason import Reason, ReasonCode, of_error
from exporter.model.values import frozen_positional

DEFECT_SECONDS = 1.0  # how long a thread waits after its collector raised an exception
FULL_INBOX = 64  # A thread waits while the inbox has so many readings. The loop ordinarily takes each one at once.

FLOODED_INBOX = 2
"""The same limit for a collector that left something unread, so that its flood leaves room for other collectors."""
FULL_SECONDS = 0.02  # how often a thread checks whether the inbox is still full

MOST_UNEVENTFUL = 16  # readings without news that wait for the loop, which takes them once a second

MORE_SECONDS = 0.05
"""How soon a collector that left something unread collects again. The pause leaves time for other collectors."""

MOST_LOGGED = 64  # how many different exceptions one collector logs
CALL_SECONDS = 0.2
MOST_HANGING = 16
IDLE_SECONDS = 15.0  # How long a thread waits for another call. To start one takes twice the CPU time of most calls.

NEVER = float("-inf")

Result = TypeVar("Result")

Inbox = SimpleQueue[tuple[Observation, ...]]


@frozen_positional
class Reading:
    """What one collection returns: observations, and the problem that made it incomplete."""

    observations: tuple[Observation, ...] = ()
    problem: Reason | None = None
    more: bool = False
    """Whether the collector left something unread, so as not to return too much at once."""
    idle: bool = False  # whether there is nothing to collect until something is requested
    routine: bool = False  # whether the observations repeat what is known, so that the loop need not wake for them


class Defects:
    """Exceptions of collectors, which are defects of the exporter. The log has each one once, with its traceback."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def problem(self, source: str, error: Exception) -> Reason:
        """Return an exception as a problem, and log it if it is a new one."""
        detail = f"{type(error).__name__}: {error}"
        if detail not in self._logged and len(self._logged) < MOST_LOGGED:
            self._logged.add(detail)
            logger().error("source_raised", source=source, exc_info=error)
        return Reason(ReasonCode.UNEXPECTED_ERROR, detail=detail)


@dataclass(eq=False)
class CollectorThread:
    """Collects every `period` seconds, and at once when triggered. Collections never overlap.

    With a `period` of None, it collects only when triggered. With `due`, it calls `due` every `period` seconds, and
    collects if that returns True. A collection without news is reported once in `report_interval`. An idle collector
    collects once in `idle_period`, which is `report_interval` by default. After each collection it pauses for `pause`,
    unless a report is requested. `at_end` runs in the thread after the last collection. `daemon` is set for a collector
    that each daemon has. Times are in seconds.
    """

    name: str
    collect: Callable[[], Reading]
    _: KW_ONLY
    period: float | None
    deadline: float
    inbox: Inbox
    clock: Clock
    report_interval: float = 0.0
    idle_period: float | None = None
    pause: float = 0.0
    at_end: Callable[[], object] = lambda: None
    due: Callable[[], bool] | None = None
    daemon: str | None = None

    def __post_init__(self) -> None:
        self._left_unread = False
        self._defects = Defects()
        self._reported_at = NEVER
        """NEVER if the next reading must be reported."""
        self._reported_problem: Reason | None = None
        self._uneventful: deque[tuple[Observation, ...]] = deque(maxlen=MOST_UNEVENTFUL)
        self._began: float | None = None
        self._timeout_reported_at = NEVER
        self._report_requested = threading.Event()
        self._triggered = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"collector-{self.name}", daemon=True)

    def start(self) -> None:
        """Start to collect. Raises RuntimeError if the system permits no more threads."""
        self._thread.start()

    def trigger(self, *, report: bool = False) -> None:
        """Collect once more, after the present collection if there is one; `report` it even without news."""
        if report:
            self._report_requested.set()
        self._triggered.set()

    @property
    def busy(self) -> bool:
        """Whether a collection runs or is about to run. If not, the inbox has all that was collected."""
        return self._began is not None or self._triggered.is_set()

    @property
    def alive(self) -> bool:
        """Whether the thread runs. After `stop`, it runs until the last collection ends."""
        return self._thread.is_alive()

    def timeout_report(self) -> SourceReading | None:
        """Return a report if the present collection exceeds its deadline, once for each deadline that passes."""
        began, now = self._began, self.clock.monotonic()
        if began is None or now - max(began, self._timeout_reported_at) < self.deadline:
            return None
        self._timeout_reported_at = now
        self._reported_problem = problem = _still_running(now - began)
        return self._source_reading(now - began, problem)

    def excuse(self) -> None:
        """Count the deadline of the present collection from now: the exporter itself did not run."""
        self._timeout_reported_at = self.clock.monotonic()

    def uneventful(self) -> Iterator[Observation]:
        """Yield the readings without news, once. They do not go through the inbox, which would wake the loop."""
        while self._uneventful:
            yield from self._uneventful.popleft()

    def stop(self) -> None:
        """Start no further collection."""
        self._stopped.set()
        self._triggered.set()
        self._report_requested.set()

    def join(self) -> None:
        """Wait until the last collection has ended."""
        if self.alive:
            self._thread.join()

    def _run(self) -> None:
        if self.period is None or self.due is not None:
            self._wait(None)
        while not self._stopped.is_set():
            reading, seconds = self._collect_once(), self.period
            if reading.more:
                seconds = MORE_SECONDS if seconds is None else min(seconds, MORE_SECONDS)
            elif reading.idle and seconds is not None:
                seconds = max(seconds, self.report_interval if self.idle_period is None else self.idle_period)
            self._left_unread = reading.more
            self._wait(seconds)
        self.at_end()

    def _wait(self, seconds: float | None) -> None:
        """Wait for the next collection, then until the inbox has room. `busy` has no gap between trigger and start."""
        ended = self.clock.monotonic()
        longest = None if seconds is None else seconds + self.pause
        while not self._triggered.wait(longest) and self.due is not None and not self._is_due(self.due):
            pass
        if self.pause and (left := ended + self.pause - self.clock.monotonic()) > 0:
            self._report_requested.wait(left)
        limit = FLOODED_INBOX if self._left_unread else FULL_INBOX
        while self.inbox.qsize() >= limit and not self._stopped.is_set():
            self._stopped.wait(FULL_SECONDS)
        self._began = self.clock.monotonic()
        if self._report_requested.is_set():
            self._report_requested.clear()
            self._reported_at = NEVER
        self._triggered.clear()

    def _is_due(self, due: Callable[[], bool]) -> bool:
        """Return the answer of `due`, which can hang or fail as a collection can."""
        self._began = self.clock.monotonic()
        answer = _collect_safely(self.name, lambda: Reading(idle=not due()), self._defects)
        self._began = None
        return answer.problem is None and not answer.idle

    def _collect_once(self) -> Reading:
        self._began = began = self.clock.monotonic()
        reading = _collect_safely(self.name, self.collect, self._defects)
        if reading.problem is not None and reading.problem.code is ReasonCode.UNEXPECTED_ERROR:
            self._stopped.wait(DEFECT_SECONDS)
        self._report(reading, self.clock.monotonic() - began)
        # Only after the report: once the thread is not busy, the inbox has all that was collected.
        self._began = None
        return reading

    def _report(self, reading: Reading, seconds: float) -> None:
        """Put news into the inbox. A requested report is news, and so is any if there is no `report_interval`."""
        now = self.clock.monotonic()
        requested = self._reported_at == NEVER or not self.report_interval
        news = requested or reading.problem != self._reported_problem
        news = news or bool(reading.observations and not reading.routine)
        if not news and not reading.observations and now - self._reported_at < self.report_interval:
            return
        self._reported_at, self._reported_problem = now, reading.problem
        report = self._source_reading(seconds, reading.problem, more=reading.more)
        if news:
            self.inbox.put((*reading.observations, report))
        else:
            self._uneventful.append((*reading.observations, report))

    def _source_reading(self, seconds: float, problem: Reason | None, *, more: bool = False) -> SourceReading:
        return SourceReading(
            at=self.clock.now(), name=self.name, seconds=seconds, problem=problem, daemon=self.daemon, more=more
        )


def close(threads: Sequence[CollectorThread], timeout: float) -> None:
    """Stop these threads. `timeout` is for all together: a hung one is left, and does not keep the process alive."""
    for thread in threads:
        thread.stop()
    _join(threads, timeout)


def collect_each(deadline: float, collectors: Mapping[str, Callable[[], Reading]]) -> Mapping[str, Reading]:
    """Collect once with each of these, in parallel. What has not ended after `deadline` seconds is left running."""
    readings: dict[str, Reading] = {}

    def collect(name: str) -> None:
        readings[name] = _collect_safely(name, collectors[name], Defects())

    threads = [threading.Thread(target=collect, args=(name,), name="collect", daemon=True) for name in collectors]
    for thread in threads:
        thread.start()
    _join(threads, deadline)
    return {name: readings.get(name) or Reading(problem=_still_running(deadline)) for name in collectors}


class BoundedCalls:
    """Calls of any thread that may hang, at most `MOST_HANGING` of one owner. One that hangs is not repeated."""

    def __init__(self, seconds: float = CALL_SECONDS) -> None:
        """Wait for each call at most `seconds`."""
        self._seconds = seconds
        self._calls: dict[tuple[object, object], list[object]] = {}
        """The result of each call that has not been taken, by owner and key; empty while the call runs."""
        self._idle: list[SimpleQueue[Callable[[], None]]] = []
        """The calls of each thread that has none now."""
        self._lock = threading.Lock()

    def call(self, key: object, function: Callable[[], Result], default: Result, *, owner: object = None) -> Result:
        """Return the result of a call of an `owner`, or of the program; `default` while it hangs. Raises its error."""
        with self._lock:
            # What returned late, and is not asked for again, takes no place.
            self._calls = {known: each for known, each in self._calls.items() if not each or known == (owner, key)}
            results = self._calls.get((owner, key))
            begins = results is None
            thread, calls = None, SimpleQueue[Callable[[], None]]()
            if results is None:
                if owner is not None and sum(known[0] == owner for known in self._calls) >= MOST_HANGING:
                    return default
                results = self._calls[owner, key] = []
                if self._idle:
                    calls = self._idle.pop()
                else:
                    thread = threading.Thread(target=self._run, args=(calls,), name="bounded-call", daemon=True)
        if begins:
            ended = threading.Lock()  # An Event takes half as much CPU time again.
            ended.acquire()

            def run() -> None:
                try:
                    results.append(function())
                except Exception as error:
                    results.append(error)
                with self._lock:
                    self._idle.append(calls)
                ended.release()

            calls.put(run)
            try:
                if thread is not None:
                    thread.start()
            except RuntimeError as error:
                # The system permits no more threads.
                results.append(OSError(errno.EAGAIN, str(error)))
            else:
                ended.acquire(timeout=self._seconds)
        if not results:
            return default
        with self._lock:
            self._calls.pop((owner, key), None)
        if isinstance(results[0], Exception):
            raise results[0]
        return cast("Result", results[0])

    def _run(self, calls: SimpleQueue[Callable[[], None]]) -> None:
        """Run calls until none comes for `IDLE_SECONDS`."""
        while True:
            try:
                calls.get(timeout=IDLE_SECONDS)()
            except Empty:
                with self._lock:
                    if calls in self._idle:
                        self._idle.remove(calls)
                        return

    @property
    def hanging(self) -> bool:
        """Whether a call has not returned."""
        with self._lock:
            return not all(self._calls.values())


def _join(threads: Sequence[CollectorThread | threading.Thread], timeout: float) -> None:
    """Wait for all of these threads, in a thread of its own, so that many hung ones delay no longer than one."""

    def join() -> None:
        for thread in threads:
            thread.join()

    joining = threading.Thread(target=join, name="join", daemon=True)
    joining.start()
    joining.join(timeout)


def _collect_safely(name: str, collect: Callable[[], Reading], defects: Defects) -> Reading:
    """Collect. An exception ends this reading, not the thread. One that is no OSError is a defect."""
    try:
        return collect()
    except OSError as error:
        # If a process in another mount namespace ends meanwhile, any call for it can fail.
        return Reading(problem=of_error(error.filename or name, error))
    except Exception as error:
        return Reading(problem=defects.problem(name, error))


def _still_running(seconds: float) -> Reason:
    return Reason(ReasonCode.STILL_RUNNING, seconds=round(seconds, 1))
