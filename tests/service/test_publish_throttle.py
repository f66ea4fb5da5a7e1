"""What is new is published at once, and publishing never takes more than its share of all time."""

import pytest

from exporter.collectors.pool import CollectorPool
from exporter.collectors.thread import Inbox
from exporter.loop import (
    BURST_SECONDS,
    IDLE_INTERVAL_SECONDS,
    LAUNCHES_INTERVAL_SECONDS,
    MAX_SHARE,
    MAX_URGENT_SHARE,
    MIN_INTERVAL_SECONDS,
    Loop,
    PublishThrottle,
)
from exporter.model.launches import GpuUse, WorkReading
from exporter.model.node import Node
from exporter.model.observation import LogLine
from exporter.model.settings import PollIntervals
from tests.builders import DAEMON, SERVER, node, server_log, servers, status
from tests.clocks import HandClock

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
def test_publishing_takes_at_most_its_share_of_time(cost: float) -> None:
    taken = cost * len(publish_all(cost, LONG))

    assert taken <= MAX_SHARE * LONG + BURST_SECONDS + cost


@pytest.mark.parametrize("cost", [0.005, 0.04])
def test_publishing_uses_its_share_of_time_if_changes_are_frequent(cost: float) -> None:
    assert cost * len(publish_all(cost, LONG)) > 0.9 * MAX_SHARE * LONG


@pytest.mark.parametrize("cost", [0.0001, 0.005, 0.04])
def test_publishes_each_change_of_a_burst(cost: float) -> None:
    first = publish_all(cost, LONG)[:5]

    assert first == pytest.approx([number * (cost + MIN_INTERVAL_SECONDS) for number in range(5)])


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


def test_publishes_a_fault_at_once_among_other_changes() -> None:
    clock, inbox, published = HandClock(0.0), Inbox(), list[Node]()

    def publish(node: Node) -> None:
        published.append(node)
        clock.time += 0.04

    cycle = Loop(node(), CollectorPool(()), inbox=inbox, clock=clock, intervals=PollIntervals(), publish=publish)
    while clock.time < 60:
        inbox.put(tuple(server_log("news", at=clock.time)))
        cycle.once(0)
        clock.time += 0.1
    inbox.put((servers(SERVER, at=clock.time),))
    cycle.once(0)
    published.clear()
    for text in ("news", "Server is handling a fatal GPU error.", "news"):
        inbox.put((*server_log(text, at=clock.time), *([status("FAULT", at=clock.time)] if "fatal" in text else [])))
        cycle.once(0)
        clock.time += 0.1

    assert [server.state for each in published[:1] for server in each.daemons[DAEMON].servers.values()] == ["fault"]


@pytest.mark.parametrize("news_at", [None, 7.0])
def test_publishes_launches_at_an_interval_and_a_change_at_once(news_at: float | None) -> None:
    """With the change, the launches of that time are published as well."""
    clock, inbox, published = HandClock(0.0), Inbox(), list[float]()

    def publish(_: Node) -> None:
        published.append(clock.time)

    cycle = Loop(Node(), CollectorPool(()), inbox=inbox, clock=clock, intervals=PollIntervals(), publish=publish)
    while clock.time < 4 * LAUNCHES_INTERVAL_SECONDS:
        work = WorkReading(at=clock.time, boot_ns=int(1e9 * clock.time) + 1, seconds=1.0)
        news = LogLine(at=clock.time, daemon="node", file="control.log", line="news")
        inbox.put((work, GpuUse(at=clock.time, gpu="GPU-1", seconds=1.0, sm_utilization=0.5)))
        inbox.put((news,) if clock.time == news_at else ())
        cycle.once(0)
        clock.time += 1.0

    expected = [5.0, 10.0, 15.0] if news_at is None else [5.0, 7.0, 12.0, 17.0]
    assert published == expected


def test_publishes_a_large_node_less_often_than_a_small_one() -> None:
    def publications(cost: float) -> int:
        clock, inbox, published = HandClock(0.0), Inbox(), list[Node]()

        def publish(node: Node) -> None:
            published.append(node)
            clock.time += cost

        cycle = Loop(Node(), CollectorPool(()), inbox=inbox, clock=clock, intervals=PollIntervals(), publish=publish)
        while clock.time < 60:
            inbox.put((LogLine(at=clock.time, daemon="node", file="control.log", line="news"),))
            cycle.once(0)
            clock.time += MIN_INTERVAL_SECONDS
        return len(published)

    assert publications(0.0001) > 500
    assert publications(0.04) < 60
