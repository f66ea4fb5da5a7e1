"""The main loop: collect, reduce, evaluate, act, publish."""

import contextlib
import queue
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import structlog

from exporter.actions.locks import ActLocks, Locks
from exporter.clock import Clock
from exporter.collectors.pool import CollectorPool, ControlPoller
from exporter.collectors.thread import Inbox
from exporter.config.reload import policy_of
from exporter.config.settings import Config
from exporter.event_log import EventLog
from exporter.history import Keeper
from exporter.model.action import Action
from exporter.model.event import Event
from exporter.model.node import Node
from exporter.model.observation import Observation, SourceReading
from exporter.model.settings import Mode, PollIntervals
from exporter.state import poll_schedule
from exporter.state.reducer import reduce
from exporter.watchdog import evaluation
from exporter.watchdog.context import Policy
from exporter.watchdog.evaluation import evaluate

SOON_SECONDS = 0.1
"""How soon after one publication the next may follow, since each is written out."""

QUIET_SECONDS = 10.0
"""How often to publish where nothing is new but that the sources still see; and the longest that news wait."""

SHARE = 0.01
"""What publishing may take of all time, in the long run."""

GRAVE_SHARE = 0.1
"""What publishing may take of the time in which one grave thing follows the other."""

SAVED_SECONDS = 0.25
"""What may be saved up of it, so that the first of many changes are shown as soon as they are seen."""


class PublishThrottle:
    """When the next publication is due, by what those before it took."""

    def __init__(self, at: float) -> None:
        self._at = at
        self._saved = SAVED_SECONDS
        self._next_at = self._grave_at = at

    def published(self, began: float, ended: float) -> None:
        """A publication was made."""
        earned = SHARE * (began - self._at)
        self._at = began
        self._saved = max(min(self._saved + earned, SAVED_SECONDS) - (ended - began), -SHARE * QUIET_SECONDS)
        self._next_at = ended + max(SOON_SECONDS, -self._saved / SHARE)
        self._grave_at = ended + max(SOON_SECONDS, (ended - began) / GRAVE_SHARE)

    def wait(self, now: float, *, news: bool, grave: bool = False) -> float:
        """How many seconds to wait before the next one; 0 where it is due."""
        due = self._next_at if news or grave else self._at + QUIET_SECONDS
        due = min(due, self._grave_at) if grave else due
        return max(0.0, due - now)


class Authority:
    """Makes the orders anew when a lock is taken or refused, or when the state can be read. For one thread."""

    def __init__(self, config: Config, clock: Clock, *, locks: ActLocks | None, keeper: Keeper | None) -> None:
        """Without `locks` none are needed, and without a `keeper` there is no state, as in a demo."""
        self._config = config
        self._clock = clock
        self._locks = locks
        self._keeper = keeper
        self._found: Locks = {}
        self._state_lost = keeper is not None and not keeper.knows_watches
        self._log = structlog.get_logger()
        self.policy = self._ordered()
        """The orders as they are now: replaced as a whole."""

    def begin(self, node: Node) -> Policy:
        """Try to take the locks of the daemons that are known, and wait a moment for that."""
        if self._locks is not None:
            self._locks.open(self._wanted(node))
            self._take_in(self._locks.found)
        return self.policy

    def configure(self, config: Config) -> Policy:
        """Go by this configuration from now on."""
        self._config = config
        self.policy = self._ordered()
        return self.policy

    def renewed(self, node: Node) -> Node:
        """Take in what the locks and the state have come to. Return the node with what the state remembers."""
        if self._locks is not None:
            self._locks.want(self._wanted(node))
            self._take_in(self._locks.found)
        found = None if self._keeper is None else self._keeper.regained()
        if found is None:
            return node
        self._state_lost = not found.whole
        self.policy = self._ordered()
        self._log.info("watchdog_state_regained", whole=found.whole)
        return evaluation.regained(node, found.watches, self._clock.now(), whole=found.whole)

    def _ordered(self) -> Policy:
        locks = None if self._locks is None else self._found
        return replace(policy_of(self._config), state_lost=self._state_lost, locks=locks)

    def _wanted(self, node: Node) -> Mapping[str, str]:
        """Return the pipe directories of the daemons for which this exporter is to act."""
        daemons = node.daemons.values()
        return {each.name: each.pipe_directory for each in daemons if self.policy.configured_mode_of(each) is Mode.ACT}

    def _take_in(self, found: Locks) -> None:
        before, self._found = self._found, found
        if found is before:
            return
        for daemon, block in found.items():
            if block is None and before.get(daemon) is not None:
                self._log.info("watchdog_may_act", daemon=daemon)
            elif block is not None and block is not before.get(daemon):
                self._log.warning("watchdog_may_not_act", daemon=daemon, reason=block.value)
        self.policy = self._ordered()


Do = Callable[[Action, Node], None]


class Doer(Protocol):
    """Carries out what the watchdog decides."""

    def do(self, action: Action, node: Node, /) -> None:
        """Begin an action, and return at once."""

    def break_off(self) -> None:
        """Begin nothing more, and break off what is under way."""


RESTS_SECONDS = 0.25
"""How often the node is judged while nothing happens: many daemons with many clients take a millisecond each time."""


class Watchdog:
    """Knows its orders, and who carries out its decisions. To be used by one thread."""

    def __init__(
        self, policy: Policy, clock: Clock, *, do: Do | None = None, chance: Callable[[], float] = random.random
    ) -> None:
        """`do` begins an action, with the node for which it was decided, and returns at once; None: nothing is done.

        `chance` gives numbers from 0 to 1, so that not all nodes restart their daemons at the same moment.
        """
        self._orders = policy
        self._clock = clock
        self._do = do
        self._chance = chance
        self._decided: tuple[Action, ...] = ()
        self._judged_at = float("-inf")

    def follow(self, policy: Policy) -> None:
        """These are the orders from now on."""
        self._orders = policy

    def judge(self, node: Node, *, news: bool) -> tuple[Node, tuple[Event, ...]]:
        """The node as it is judged now, and what there is to tell of that: to be told before anything is done.

        Where there is no `news`, nothing having happened since, it is judged now and then.
        """
        now = self._clock.monotonic()
        if not news and now - self._judged_at < RESTS_SECONDS:
            return node, ()
        self._judged_at = now
        at = max(node.at, self._clock.now())
        node, events, self._decided = evaluate(node, self._orders, at=at, chance=self._chance())
        return node, events

    def act(self, node: Node) -> None:
        """Begin what was decided by the last judgement."""
        decided, self._decided = self._decided, ()
        for action in decided:
            if self._do is not None:
                self._do(action, node)


TICK_SECONDS = 0.5
REST_SECONDS = 1.0
RESTS_AFTER_SECONDS = 5.0
"""How often the cycle turns without news, and how often once nothing has been new for so long."""

MOST_A_TURN = 1000
"""How many observations are taken in before the watchdog acts and the metrics are published again."""


class Loop:
    """Turns what the sources see into what the node is, and publishes it."""

    def __init__(
        self,
        node: Node,
        pool: CollectorPool,
        *,
        inbox: Inbox,
        clock: Clock,
        rhythm: PollIntervals,
        publish: Callable[[Node], None],
        record: Callable[[Observation], None] | None = None,
        told: Callable[[Node, Sequence[Event]], None] | None = None,
        turned: Callable[[], None] | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        """`publish` gets every new node, `record` every observation; `turned` is told of each completed cycle.

        `told` gets the node of every cycle, published or not, and what has happened in it; only then the watchdog acts.
        """
        self.node = node
        self._pool = pool
        self._inbox = inbox
        self._clock = clock
        self._rhythm = rhythm
        self._publish = publish
        self._record = record
        self._told = told
        self._turned = turned
        self._watchdog = watchdog
        self._log = EventLog(clock)
        self._pace = PublishThrottle(clock.monotonic())
        self._unpublished = self._grave = self._behind = False
        self._news_at = clock.monotonic()
        self._attended: Node | None = None

    def tell(self, seen: Sequence[Observation], rhythm: PollIntervals) -> None:
        """Take in what was not seen but said: a new configuration, and with it a new rhythm."""
        self._rhythm = rhythm
        self._inbox.put(tuple(seen))

    def hear(self, said: Observation) -> None:
        """Take in what an operator has said. To be used by any thread."""
        self._inbox.put((said,))

    def wake(self) -> None:
        """End the wait for news, if there is one. A signal handler may call this."""
        self._inbox.put(())

    def run(self, keep_on: Callable[[], bool]) -> None:
        """Cycle until told to stop."""
        self._pool.update(self.node)
        self._pool.open()
        try:
            while keep_on():
                self.once(self._patience())
        finally:
            self._log.summarize(force=True)
            self._pool.close(timeout=1.0)

    def once(self, timeout: float) -> tuple[Event, ...]:
        """One cycle, which waits up to `timeout` seconds for something to be seen."""
        # Asked before the inbox is emptied: whoever is idle by then has put all that it saw into it.
        idle = self._pool.idle()
        seen = [*self._seen(timeout), *self._pool.uneventful(), *self._pool.timeout_reports()]
        accounted = self._account(sorted(seen, key=lambda each: each.at))
        events = (*accounted, *self._judge(news=bool(accounted)))
        for event in events:
            self._log.event(event)
        self._log.summarize()
        if self._told is not None:
            self._told(self.node, events)
        if self._watchdog is not None:
            self._watchdog.act(self.node)
        # An answer may be among what is left.
        self._direct(() if self._behind else idle)
        if events or any(map(_is_news, seen)):
            self._unpublished, self._news_at = True, self._clock.monotonic()
        self._grave = self._grave or any(event.urgent for event in events)
        self._publish_if_due()
        if self._turned is not None:
            self._turned()
        return events

    def _seen(self, timeout: float) -> Iterable[Observation]:
        seen: list[Observation] = []
        left = 0
        with contextlib.suppress(queue.Empty):
            seen.extend(self._inbox.get(timeout=timeout))
            # As much as is there now: whoever goes on filling it must not hold up the cycle. What is then left waits
            # for the next turn, which comes at once.
            left = self._inbox.qsize()
            while left and len(seen) < MOST_A_TURN:
                seen.extend(self._inbox.get_nowait())
                left -= 1
        self._behind = left > 0
        return seen

    def _account(self, seen: list[Observation]) -> tuple[Event, ...]:
        events: list[Event] = []
        for each in seen:
            if self._record is not None:
                self._record(each)
            before = self.node
            self.node, told = reduce(before, each)
            events.extend(told)
            if isinstance(each, SourceReading):
                self._log.source(each, before, self.node)
        return tuple(events)

    def _judge(self, *, news: bool) -> tuple[Event, ...]:
        if self._watchdog is None:
            return ()
        self.node, events = self._watchdog.judge(self.node, news=news)
        return events

    def _patience(self) -> float:
        """How long the next cycle may wait: what is news already is not to wait for more."""
        now = self._clock.monotonic()
        rests = now - self._news_at >= RESTS_AFTER_SECONDS
        return min(REST_SECONDS if rests else TICK_SECONDS, self._to_wait(now))

    def _to_wait(self, now: float) -> float:
        return self._pace.wait(now, news=self._unpublished, grave=self._grave)

    def _publish_if_due(self) -> None:
        began = self._clock.monotonic()
        if self._to_wait(began) == 0:
            self._publish(self.node)
            self._pace.published(began, self._clock.monotonic())
            self._unpublished = self._grave = False

    def _direct(self, idle: Sequence[tuple[str, ControlPoller]]) -> None:
        """Tell the sources where to look next; ask those daemons whose last answers are all known."""
        if self.node is not self._attended:
            self._attended = self.node
            self._pool.update(self.node)
        now = replace(self.node, at=max(self.node.at, self._clock.now()))
        for name, poller in idle:
            commands = poll_schedule.commands(now, name, self._rhythm) if name in now.daemons else ()
            if commands:
                poller.ask(commands, now.daemons[name])
        nvml = self._pool.nvml
        if nvml is not None and not nvml.busy and poll_schedule.nvml_due(now, self._rhythm):
            nvml.trigger()


def _is_news(seen: Observation) -> bool:
    return not isinstance(seen, SourceReading) or seen.problem is not None
