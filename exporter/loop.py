"""The main loop: collect, reduce, evaluate, act, publish. It logs events and problems of collectors."""

import contextlib
import queue
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

import structlog

from exporter.actions.locks import ActLocks, Locks
from exporter.clock import Clock
from exporter.collectors.pool import CollectorPool, ControlPoller
from exporter.collectors.thread import Inbox
from exporter.config.settings import Config
from exporter.history import Store
from exporter.log import EventLog
from exporter.model.action import Action
from exporter.model.event import Event
from exporter.model.node import Node
from exporter.model.observation import ControlReply, GpuReading, LogLine, Observation, Routine, SourceReading
from exporter.model.settings import Mode, PollIntervals
from exporter.model.values import replace
from exporter.policy import policy_of
from exporter.reducer import reduce
from exporter.state import control_replies, poll_schedule
from exporter.watchdog import evaluation
from exporter.watchdog.context import Policy

MIN_INTERVAL_SECONDS = 0.1
"""Least time between two publications."""
IDLE_INTERVAL_SECONDS = 10.0
"""Interval of publications if nothing changes, and the longest time that a change waits."""
LAUNCHES_INTERVAL_SECONDS = 5.0
"""The same while launches are read. Every second has new ones, and to publish them costs more than to read them."""
MAX_SHARE = 0.01
"""Largest part of all time that publishing takes, in the long run."""
MAX_URGENT_SHARE = 0.1
"""Largest part of the time that publishing takes while one urgent event follows another."""
BURST_SECONDS = 0.25
"""Largest unused time for publishing, so that the first of many changes are published at once."""


class PublishThrottle:
    """Decides when the next publication is due, from the time that the previous ones took."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._unused = BURST_SECONDS
        self._next_at = self._next_urgent_at = now

    def published(self, began: float, ended: float) -> None:
        """Take a publication into account."""
        unused = min(self._unused + MAX_SHARE * (began - self._began), BURST_SECONDS) - (ended - began)
        self._began = began
        self._unused = max(unused, -MAX_SHARE * IDLE_INTERVAL_SECONDS)
        self._next_at = ended + max(MIN_INTERVAL_SECONDS, -self._unused / MAX_SHARE)
        self._next_urgent_at = ended + max(MIN_INTERVAL_SECONDS, (ended - began) / MAX_URGENT_SHARE)

    def wait(
        self, now: float, *, changed: bool, urgent: bool = False, idle_interval: float = IDLE_INTERVAL_SECONDS
    ) -> float:
        """Return the seconds until the next publication is due, 0 if it is due now."""
        due = self._next_at if changed or urgent else self._began + idle_interval
        return max(0.0, (min(due, self._next_urgent_at) if urgent else due) - now)


class Runner(Protocol):
    """Runs the actions that the watchdog decides."""

    def do(self, action: Action, node: Node, /) -> None:
        """Start an action, and return at once."""

    def break_off(self) -> None:
        """Interrupt the actions in progress, and start none."""


STOPPED_SECONDS = 5.0
"""If no cycle ran for so long, the exporter was stopped (SIGSTOP, a frozen cgroup) or had no CPU time."""

SETTLE_SECONDS = 30.0
READ_SECONDS, LATE_SECONDS = 2.0, 1.0
"""After that, the watchdog waits until `READ_SECONDS` after all sources were read, at most `SETTLE_SECONDS`.

What it knew is old, and deadlines have passed in which nobody looked.
"""

EVALUATION_SECONDS = 0.25
"""Interval of evaluations if no event occurs. With many daemons and clients, each takes a millisecond."""


@dataclass(eq=False)
class Watchdog:
    """The watchdog with its policy, its locks and its runner. For one thread.

    Without `runner`, nothing is done. Without `locks`, none is needed. Without `store`, no state can be lost.

    `chance` returns numbers from 0 to 1, so that the nodes do not restart their daemons at the same time.
    """

    config: Config
    clock: Clock
    _: KW_ONLY
    runner: Runner | None = None
    locks: ActLocks | None = None
    store: Store | None = None
    chance: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        self._log = structlog.get_logger()
        self._blocks: Locks = {}
        self._state_lost = self.store is not None and not self.store.has_watchdog_states
        self._planned: tuple[Action, ...] = ()
        self._evaluated_at = self._settled_at = self._resumed_at = float("-inf")
        self._called_at = float("inf")
        self.policy = Policy()
        """The policy in effect; replaced as a whole."""
        self.configure(self.config)

    def configure(self, config: Config) -> None:
        """Apply a configuration."""
        self.config = config
        locks = None if self.locks is None else self._blocks
        self.policy = replace(policy_of(config), state_lost=self._state_lost, locks=locks)

    def take_locks(self, node: Node) -> None:
        """Try to take the locks of the known daemons, and wait a moment for the result."""
        if self.locks is not None:
            self.locks.open(self._lockable(node))
            self._update_locks(self.locks)

    def evaluate(self, node: Node, *, changed: bool) -> tuple[Node, tuple[Event, ...]]:
        """Return the node after an evaluation, and its events, which must be reported before `act`.

        If nothing has `changed`, most calls return the node without an evaluation.
        """
        if self.locks is not None:
            self.locks.want(self._lockable(node))
            self._update_locks(self.locks)
        recovered = None if self.store is None else self.store.recovered_state()
        if recovered is not None:
            self._state_lost = not recovered.whole
            self.configure(self.config)
            self._log.info("watchdog_state_regained", whole=recovered.whole)
            node = evaluation.restore_state(node, recovered.watches, self.clock.now(), whole=recovered.whole)
        now, before, self._called_at = self.clock.monotonic(), self._called_at, self.clock.monotonic()
        if now - before >= STOPPED_SECONDS:
            self._log.warning("exporter_was_stopped", seconds=round(now - before))
            # Collectors may have gone on a moment before this loop did.
            self._settled_at, self._resumed_at = now + SETTLE_SECONDS, self.clock.now() - LATE_SECONDS
        elif now + READ_SECONDS < self._settled_at and poll_schedule.is_read_since(node, self._resumed_at):
            self._settled_at = now + READ_SECONDS
        if now < self._settled_at or (not changed and now - self._evaluated_at < EVALUATION_SECONDS):
            return node, ()
        self._evaluated_at = now
        at = max(node.at, self.clock.now())
        node, events, self._planned = evaluation.evaluate(node, self.policy, at=at, chance=self.chance())
        return node, events

    def act(self, node: Node) -> None:
        """Start the actions that the last evaluation planned."""
        planned, self._planned = self._planned, ()
        for action in planned:
            if self.runner is not None:
                self.runner.do(action, node)

    def stop(self) -> None:
        """Interrupt the actions in progress, and start none."""
        if self.runner is not None:
            self.runner.break_off()

    def _lockable(self, node: Node) -> Mapping[str, str]:
        """Return the pipe directories of the daemons for which this exporter is to act."""
        daemons = node.daemons.values()
        return {each.name: each.pipe_directory for each in daemons if self.policy.configured_mode_of(each) is Mode.ACT}

    def _update_locks(self, locks: ActLocks) -> None:
        before, self._blocks = self._blocks, locks.found
        if self._blocks is before:
            return
        for daemon, block in self._blocks.items():
            if block is None and before.get(daemon) is not None:
                self._log.info("watchdog_may_act", daemon=daemon)
            elif block is not None and block is not before.get(daemon):
                self._log.warning("watchdog_may_not_act", daemon=daemon, reason=block.value)
        self.configure(self.config)


CYCLE_SECONDS = 0.5
IDLE_CYCLE_SECONDS = 1.0
IDLE_AFTER_SECONDS = 5.0
"""The longest wait of a cycle; a longer one if nothing but readings of GPUs has been new for some time."""

MAX_OBSERVATIONS = 1000
"""Observations of one cycle. The watchdog acts and metrics are published before the rest is reduced."""


@dataclass(eq=False)
class Loop:
    """Reduces what the collectors return into `node`, and publishes it.

    `record` gets each observation. `on_events` gets the events of each cycle before the watchdog acts.
    """

    node: Node
    pool: CollectorPool
    _: KW_ONLY
    inbox: Inbox
    clock: Clock
    intervals: PollIntervals
    publish: Callable[[Node], None]
    record: Callable[[Observation], None] | None = None
    on_events: Callable[[Node, Sequence[Event]], None] | None = None
    on_cycle: Callable[[], None] | None = None
    watchdog: Watchdog | None = None

    def __post_init__(self) -> None:
        self._log = EventLog(self.clock)
        self._throttle = PublishThrottle(self.clock.monotonic())
        self._changed = self._urgent = self._inbox_left = False
        self._changed_at, self._received_at = self.clock.monotonic(), float("inf")
        self._resumed_at = float("-inf")
        self._requested_for: Node | None = None

    def put(self, *observations: Observation) -> None:
        """Add observations, and end the wait of the cycle. Any thread and any signal handler can call this."""
        self.inbox.put(observations)

    def run(self, proceed: Callable[[], bool]) -> None:
        """Run cycles as long as `proceed` returns true."""
        self.pool.update(self.node)
        self.pool.start()
        try:
            while proceed():
                self.once(self.timeout())
        finally:
            self._log.summarize(force=True)
            self.pool.close(timeout=1.0)

    def timeout(self) -> float:
        """Return how many seconds the next cycle can wait for observations."""
        now = self.clock.monotonic()
        longest = IDLE_CYCLE_SECONDS if now - self._changed_at >= IDLE_AFTER_SECONDS else CYCLE_SECONDS
        return min(longest, self._until_publication(now))

    def once(self, timeout: float) -> tuple[Event, ...]:
        """Run one cycle, which waits up to `timeout` seconds for observations."""
        # Read before the inbox: all observations of a poller that is idle now are in the inbox already.
        idle = self.pool.idle_pollers()
        received = self._receive(timeout)
        now, before, self._received_at = self.clock.monotonic(), self._received_at, self.clock.monotonic()
        stopped = now - before >= STOPPED_SECONDS
        if stopped:
            self._resumed_at = now
            self.pool.trigger_all(report=True)
        observations = [*received, *self.pool.readings(excused=stopped)]
        last = self.node
        events = self._reduce(sorted(observations, key=lambda each: each.at))
        changed = bool(events) or _have_news(observations, last, self.node)
        if self.watchdog is not None:
            self.node, evaluated = self.watchdog.evaluate(self.node, changed=bool(events))
            events = (*events, *evaluated)
        for event in events:
            self._log.event(event)
        self._log.summarize()
        if self.on_events is not None:
            self.on_events(self.node, events)
        if self.watchdog is not None:
            self.watchdog.act(self.node)
        # A reply can be among the observations that are still in the inbox.
        self._request(() if self._inbox_left else idle)
        if changed or events:
            self._changed, self._changed_at = True, self.clock.monotonic()
        self._changed = self._changed or any(isinstance(each, GpuReading) for each in observations)
        self._urgent = self._urgent or any(event.urgent for event in events)
        self._publish_if_due()
        if self.on_cycle is not None:
            self.on_cycle()
        return events

    def _receive(self, timeout: float) -> Sequence[Observation]:
        received: list[Observation] = []
        left = 0
        with contextlib.suppress(queue.Empty):
            received.extend(self.inbox.get(timeout=timeout))
            # No more than what is there now, so that a collector that fills the inbox does not delay the cycle.
            left = self.inbox.qsize()
            while left and len(received) < MAX_OBSERVATIONS:
                received.extend(self.inbox.get_nowait())
                left -= 1
        self._inbox_left = left > 0
        return received

    def _reduce(self, observations: Sequence[Observation]) -> tuple[Event, ...]:
        events: list[Event] = []
        for each in observations:
            if self.record is not None:
                self.record(each)
            before = self.node
            self.node, new = reduce(before, each)
            events.extend(new)
            if isinstance(each, SourceReading):
                self._log.source(each, before, self.node)
        return tuple(events)

    def _publish_if_due(self) -> None:
        began = self.clock.monotonic()
        if self._until_publication(began) == 0:
            self.publish(self.node)
            self._throttle.published(began, self.clock.monotonic())
            self._changed = self._urgent = False

    def _until_publication(self, now: float) -> float:
        idle_interval = IDLE_INTERVAL_SECONDS if self.node.work is None else LAUNCHES_INTERVAL_SECONDS
        return self._throttle.wait(now, changed=self._changed, urgent=self._urgent, idle_interval=idle_interval)

    def _request(self, idle: Sequence[tuple[str, ControlPoller]]) -> None:
        """Request the next readings from the collectors, and query idle daemons if a query is due."""
        if self.node is not self._requested_for:
            self._requested_for = self.node
            self.pool.update(self.node)
        now = replace(self.node, at=max(self.node.at, self.clock.now()))
        # After a stop of the exporter, each daemon is queried at once.
        since = self.clock.monotonic() - self._resumed_at
        intervals = replace(self.intervals, liveness=min(self.intervals.liveness, since))
        for name, poller in idle:
            commands = poll_schedule.commands(now, name, intervals) if name in now.daemons else ()
            if commands:
                poller.request(commands, now.daemons[name])
        nvml = self.pool.nvml
        if nvml is not None and not nvml.busy and poll_schedule.nvml_due(now, self.intervals):
            nvml.trigger()


def _have_news(observations: Iterable[Observation], last: Node, node: Node) -> bool:
    """Return whether to publish soon, and to expect others. What is read often, and shows nothing new, waits."""
    queried = {each.daemon for each in observations if isinstance(each, ControlReply | LogLine)}
    return any(map(_is_change, observations)) or any(
        control_replies.is_changed(last.daemons.get(name), node.daemons.get(name)) for name in queried
    )


def _is_change(observation: Observation) -> bool:
    if isinstance(observation, SourceReading):
        return observation.problem is not None
    return not isinstance(observation, GpuReading | Routine | ControlReply | LogLine)
