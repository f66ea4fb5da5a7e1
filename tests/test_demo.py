"""The demo: an hour of a simulated node has everything in it that it promises, told by the real core."""

from collections.abc import Iterator
from functools import cache
from itertools import islice

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from exporter.core.fold import fold
from exporter.demo import PAST_SECONDS, Simulation
from exporter.metrics.catalogue import NodeCollector
from exporter.model.event import Event, EventName
from exporter.model.incident import Ending, FaultKind, Incident
from exporter.model.node import Node
from exporter.view import View
from tests.builders import AT, Story
from tests.core.invariants import assert_consistent, assert_only_grown, assert_told, counters

SEEDS = (1, 2, 3)
HOUR = 3600.0
MINUTE = 60.0


class FakeClock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.at = AT

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.at

    def monotonic(self) -> float:
        """The same, here."""
        return self.at


def minutes(seed: int) -> Iterator[Story]:
    """The node after each minute of an hour, and what happened in it."""
    clock = FakeClock()
    simulation = Simulation(seed, clock)
    present = simulation.node()
    while clock.at < AT + HOUR - PAST_SECONDS:
        events: list[Event] = []
        for seen in simulation.look().observations:
            present, told = fold(present, seen)
            events.extend(told)
        yield Story(present, tuple(events))
        clock.at += MINUTE


@cache
def hour(seed: int) -> tuple[Story, ...]:
    return tuple(minutes(seed))


def events(seed: int) -> list[Event]:
    return [event for minute in hour(seed) for event in minute.events]


def told_incidents(seed: int) -> list[Incident]:
    """Those that are over."""
    told = [event.incident for event in events(seed) if event.event is EventName.FAULT_RECOVERED]
    return [incident for incident in told if incident is not None]


def exposition(present: Node) -> str:
    return generate_latest(NodeCollector(View(present, client_min_age=15.0))).decode()


def values(present: Node, name: str, label: str) -> dict[str, float]:
    return {
        sample.labels[label]: sample.value
        for family in text_string_to_metric_families(exposition(present))
        for sample in family.samples
        if sample.name == name
    }


@pytest.mark.parametrize("seed", SEEDS)
class TestAnHour:
    """Whatever the seed."""

    def test_everything_promised_happens(self, seed: int) -> None:
        """Clients come, go and are refused; one bypasses; a fault, a death, and the recovery from both."""
        names = {event.event for event in events(seed)}
        assert names >= {
            EventName.DAEMON_UP,
            EventName.DAEMON_LOST,
            EventName.SERVER_STARTED,
            EventName.SERVER_EXITED,
            EventName.CLIENT_CONNECTED,
            EventName.CLIENT_DISCONNECTED,
            EventName.CLIENT_REFUSED,
            EventName.PROCESS_BYPASSING,
        }
        states = [event.state for event in events(seed) if event.event is EventName.SERVER_STATE]
        assert "active" in states[states.index("fault") :]

    def test_what_dies_comes_back(self, seed: int) -> None:
        """Each loss is followed by the same daemon's return, unless the hour ends before."""
        told = [(event.at, event.daemon, event.event) for event in events(seed)]
        for at, daemon, name in told:
            if name is EventName.DAEMON_LOST and at < AT + HOUR - PAST_SECONDS - 120:
                returns = [when for when, whose, what in told if whose == daemon and what is EventName.DAEMON_UP]
                assert any(at < when < at + 120 for when in returns)

    def test_every_ten_minutes_there_is_a_fault_of_one_kind_or_the_other(self, seed: int) -> None:
        """One of them soon after the demo has begun."""
        openings = [event.at for event in events(seed) if event.event is EventName.FAULT]
        assert 4 <= len(openings) <= 6
        assert any(AT < at < AT + 2 * MINUTE for at in openings)
        kinds = {incident.kind for incident in told_incidents(seed)}
        assert kinds == {FaultKind.CLIENT_KILLED, FaultKind.MEMORY}

    def test_a_fault_has_all_that_there_is_to_tell_of_one(self, seed: int) -> None:
        """An Xid, those whom it hit, newcomers that were refused, and one that held up recovery for a minute."""
        for incident in told_incidents(seed):
            assert [xid.number for xid in incident.xids] == [31]
            assert incident.affected_told
            assert len(incident.affected) >= 2
            assert len(incident.blocking) == 1
            assert incident.ending is Ending.RECOVERED
            assert MINUTE - 1 < (incident.seconds or 0.0) < MINUTE + 1
        assert any(incident.refused for incident in told_incidents(seed))

    def test_of_those_who_were_killed_at_work_one_stands_out_and_else_nobody(self, seed: int) -> None:
        """So that a dashboard has both."""
        for incident in told_incidents(seed):
            assert (incident.suspect is not None) == (incident.kind is FaultKind.CLIENT_KILLED)

    def test_two_daemons_serve_three_gpus_to_several_owners(self, seed: int) -> None:
        """Over the hour, each GPU has clients."""
        nodes = [minute.node for minute in hour(seed)]
        assert {len(present.daemons) for present in nodes} == {2}
        assert len(nodes[-1].gpus) == 3
        owners = {owner for present in nodes for owner in values(present, "cuda_mps_client_info", "user")}
        used = {gpu for present in nodes for gpu in values(present, "cuda_mps_client_memory_used_bytes", "gpu")}
        assert len(owners) >= 3
        assert used == set(nodes[-1].gpus)

    def test_the_exposition_stays_valid_and_every_gpu_up(self, seed: int) -> None:
        """And no GPU holds more than it has."""
        for minute in hour(seed)[::5]:
            series = [
                (sample.name, str(sample.labels))
                for family in text_string_to_metric_families(exposition(minute.node))
                for sample in family.samples
            ]
            assert len(series) == len(set(series))
            assert set(values(minute.node, "cuda_mps_gpu_up", "gpu").values()) == {1}
            used = values(minute.node, "cuda_mps_gpu_memory_used_bytes", "gpu")
            total = values(minute.node, "cuda_mps_gpu_memory_total_bytes", "gpu")
            assert all(used[gpu] <= total[gpu] for gpu in total)

    def test_counters_only_grow_and_nothing_contradicts_itself(self, seed: int) -> None:
        """By the rules that hold for real nodes."""
        before = counters(hour(seed)[0].node)
        for minute in hour(seed):
            assert_consistent(minute.node)
            after = counters(minute.node)
            assert_only_grown(before, after)
            before = after
        assert_told(hour(seed)[-1].node, events(seed))

    def test_its_words_are_those_of_mps(self, seed: int) -> None:
        """Every line is one that the parser knows."""
        for daemon in hour(seed)[-1].node.daemons.values():
            assert sum(daemon.totals.log_lines.values()) > 0
            assert sum(daemon.totals.log_lines_unrecognized.values()) == 0


def test_when_it_begins_a_story_has_been_told_already() -> None:
    """Whoever looks at once sees clients at work."""
    first = hour(1)[0]
    assert EventName.CLIENT_CONNECTED in first.names()
    assert any(daemon.clients for daemon in first.node.daemons.values())


def test_the_same_seed_tells_the_same_story_and_another_tells_another() -> None:
    (again,) = islice(minutes(1), 1)
    assert again.events == hour(1)[0].events != hour(2)[0].events
