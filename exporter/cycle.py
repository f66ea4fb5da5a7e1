"""One cycle: observe, fold, judge, act, direct, publish.

The main thread is the cycle; sources look in threads of their own and leave what they saw in the
inbox, so that one that hangs keeps nobody waiting.
"""

import contextlib
import queue
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from exporter.clock import Clock
from exporter.core import agenda
from exporter.core.fold import fold
from exporter.event_log import EventLog
from exporter.model.event import Event
from exporter.model.node import Node
from exporter.model.observation import Observation, SourceReading
from exporter.model.settings import PollIntervals
from exporter.pace import Pace
from exporter.sources.eye import Inbox
from exporter.sources.lookout import Asker, Lookout
from exporter.watchdog import Watchdog

TICK_SECONDS = 0.5
REST_SECONDS = 1.0
RESTS_AFTER_SECONDS = 5.0
"""How often the cycle turns without news, and how often once nothing has been new for so long."""

MOST_A_TURN = 1000
"""How many observations are taken in before the watchdog acts and the metrics are published again."""


class Cycle:
    """Turns what the sources see into what the node is, and publishes it."""

    def __init__(
        self,
        node: Node,
        lookout: Lookout,
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
        self._lookout = lookout
        self._inbox = inbox
        self._clock = clock
        self._rhythm = rhythm
        self._publish = publish
        self._record = record
        self._told = told
        self._turned = turned
        self._watchdog = watchdog
        self._log = EventLog(clock)
        self._pace = Pace(clock.monotonic())
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
        self._lookout.attend(self.node)
        self._lookout.open()
        try:
            while keep_on():
                self.once(self._patience())
        finally:
            self._log.summarize(force=True)
            self._lookout.close(timeout=1.0)

    def once(self, timeout: float) -> tuple[Event, ...]:
        """One cycle, which waits up to `timeout` seconds for something to be seen."""
        # Asked before the inbox is emptied: whoever is idle by then has put all that it saw into it.
        idle = self._lookout.idle()
        seen = [*self._seen(timeout), *self._lookout.uneventful(), *self._lookout.complaints()]
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
            self.node, told = fold(before, each)
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

    def _direct(self, idle: Sequence[tuple[str, Asker]]) -> None:
        """Tell the sources where to look next; ask those daemons whose last answers are all known."""
        if self.node is not self._attended:
            self._attended = self.node
            self._lookout.attend(self.node)
        now = replace(self.node, at=max(self.node.at, self._clock.now()))
        for name, asker in idle:
            commands = agenda.commands(now, name, self._rhythm) if name in now.daemons else ()
            if commands:
                asker.ask(commands, now.daemons[name])
        nvml = self._lookout.nvml
        if nvml is not None and not nvml.busy and agenda.nvml_due(now, self._rhythm):
            nvml.nudge()


def _is_news(seen: Observation) -> bool:
    return not isinstance(seen, SourceReading) or seen.problem is not None
