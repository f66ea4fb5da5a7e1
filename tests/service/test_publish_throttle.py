"""What is new is published at once, and publishing never takes more than its share of all time."""

from dataclasses import dataclass, field

import pytest

from exporter.collectors.pool import CollectorPool
from exporter.collectors.thread import Inbox
from exporter.loop import Loop, PublishThrottle
from exporter.model.launches import WorkReading
from exporter.model.node import Node
from exporter.model.observation import LogLine, Observation
from exporter.model.settings import PollIntervals
from exporter.model.sharing import GpuUse
from tests.builders import DAEMON, SERVER, node, server_log, servers, status
from tests.clocks import HandClock

# The tests state these values, so that they notice a change of the program's constants.
BURST_SECONDS = 0.25
IDLE_INTERVAL_SECONDS = 10.0
LAUNCHES_INTERVAL_SECONDS = 5.0
MAX_SHARE = 0.01
MAX_URGENT_SHARE = 0.1
MIN_INTERVAL_SECONDS = 0.1

LONG = 10_000.0


def publish_all(cost: float, seconds: float) -> list[float]:
    """When publications are made, each of which takes so long, where there is always something new."""
    pace, now, made = PublishThrottle(0.0), 0.0, list[float]()
    while (now := now + pace.wait(now, changed=True)) < seconds:
        made.append(now)
        pace.published(now, now + cost)
        now += cost
    return made


def test_publishes_the_first_change_at_once() -> None:
    assert PublishThrottle(5.0).wait(5.0, changed=True) == 0


def test_publishes_at_an_interval_without_changes() -> None:
    assert PublishThrottle(5.0).wait(6.0, changed=False) == IDLE_INTERVAL_SECONDS - 1


@pytest.mark.parametrize("cost", [0.0001, 0.005, 0.04])
def test_publishes_each_change_of_a_burst_and_uses_at_most_its_share_of_time(cost: float) -> None:
    """It uses all of it if changes are frequent, and cost more than the shortest interval permits."""
    published = publish_all(cost, LONG)

    assert published[:5] == pytest.approx([number * (cost + MIN_INTERVAL_SECONDS) for number in range(5)])
    assert cost * len(published) <= MAX_SHARE * LONG + BURST_SECONDS + cost
    assert cost < 0.005 or cost * len(published) > 0.9 * MAX_SHARE * LONG


def test_permits_another_burst_after_a_pause() -> None:
    pace = PublishThrottle(0.0)
    for _ in range(100):
        pace.published(0.0, 0.04)
    assert pace.wait(0.04, changed=True) > MIN_INTERVAL_SECONDS

    pace.published(1000.0, 1000.04)

    assert pace.wait(1000.04, changed=True) == pytest.approx(MIN_INTERVAL_SECONDS)


def test_publishes_soon_after_a_suspend_during_a_publication() -> None:
    pace = PublishThrottle(0.0)
    pace.published(0.0, 3600.0)

    assert pace.wait(3600.0, changed=True) <= IDLE_INTERVAL_SECONDS


@pytest.mark.parametrize("cost", [0.0001, 0.005, 0.04])
def test_previous_publications_do_not_delay_urgent_changes(cost: float) -> None:
    pace = PublishThrottle(0.0)
    for _ in range(100):
        pace.published(0.0, cost)

    assert pace.wait(cost, changed=True, urgent=True) <= max(MIN_INTERVAL_SECONDS, cost / MAX_URGENT_SHARE)
    assert pace.wait(1.0, changed=True, urgent=True) == 0


def test_frequent_urgent_changes_take_at_most_their_share_of_time() -> None:
    pace, now, cost, taken = PublishThrottle(0.0), 0.0, 0.04, 0.0
    while (now := now + pace.wait(now, changed=True, urgent=True)) < LONG:
        pace.published(now, now + cost)
        now, taken = now + cost, taken + cost

    assert taken <= MAX_URGENT_SHARE * LONG + BURST_SECONDS


@dataclass
class Publishing:
    """A loop that publishes a node, which takes `cost` seconds, and when it did."""

    cost: float
    start: Node = field(default_factory=Node)
    clock: HandClock = field(default_factory=lambda: HandClock(0.0))
    inbox: Inbox = field(default_factory=Inbox)
    published: list[tuple[float, Node]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._loop = Loop(
            self.start,
            CollectorPool(()),
            inbox=self.inbox,
            clock=self.clock,
            intervals=PollIntervals(),
            publish=self._publish,
        )

    def _publish(self, node: Node) -> None:
        self.published.append((self.clock.time, node))
        self.clock.time += self.cost

    def cycle(self, *observations: Observation, seconds: float) -> None:
        """Run one cycle with these, and let so many seconds pass."""
        self.inbox.put(observations)
        self._loop.once(0)
        self.clock.time += seconds


def test_publishes_a_fault_at_once_among_other_changes() -> None:
    publishing = Publishing(0.04, node())
    clock = publishing.clock
    while clock.time < 60:
        publishing.cycle(*server_log("news", at=clock.time), seconds=0.1)
    publishing.cycle(servers(SERVER, at=clock.time), seconds=0.0)
    publishing.published.clear()
    for text in ("news", "Server is handling a fatal GPU error.", "news"):
        confirmed = [status("FAULT", at=clock.time)] if "fatal" in text else []
        publishing.cycle(*server_log(text, at=clock.time), *confirmed, seconds=0.1)

    _, first = publishing.published[0]
    assert [server.state for server in first.daemons[DAEMON].servers.values()] == ["fault"]


@pytest.mark.parametrize(("news_at", "expected"), [(None, [5.0, 10.0, 15.0]), (7.0, [5.0, 7.0, 12.0, 17.0])])
def test_publishes_launches_at_an_interval_and_a_change_at_once(news_at: float | None, expected: list[float]) -> None:
    """With the change, the launches of that time are published as well."""
    publishing = Publishing(0.0)
    while (now := publishing.clock.time) < 4 * LAUNCHES_INTERVAL_SECONDS:
        work = WorkReading(at=now, boot_ns=int(1e9 * now) + 1, seconds=1.0)
        use = GpuUse(at=now, gpu="GPU-1", seconds=1.0, sm_utilization=0.5)
        publishing.cycle(work, use, *([news(now)] if now == news_at else []), seconds=1.0)

    assert [at for at, _ in publishing.published] == expected


@pytest.mark.parametrize(("cost", "least", "most"), [(0.0001, 500, 10_000), (0.04, 0, 60)])
def test_publishes_a_large_node_less_often_than_a_small_one(cost: float, least: int, most: int) -> None:
    publishing = Publishing(cost)
    while publishing.clock.time < 60:
        publishing.cycle(news(publishing.clock.time), seconds=MIN_INTERVAL_SECONDS)

    assert least < len(publishing.published) < most


def news(at: float) -> LogLine:
    return LogLine(at=at, daemon="node", file="control.log", line="news")
