"""The demo: an hour of a simulated node has everything in it that it promises, told by the real core."""

from functools import cache
from itertools import islice

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from exporter.core.fitness.fitness import fitness
from exporter.demo.failures import FAILURES
from exporter.demo.simulation import PAST_SECONDS, Simulation, advance
from exporter.metrics.catalogue import CATALOGUE, NodeCollector
from exporter.model.action import ActionResult
from exporter.model.diagnosis import Condition
from exporter.model.event import Event, EventName
from exporter.model.incident import Ending, FaultKind, Incident
from exporter.model.ledger import Purse
from exporter.model.node import Node
from exporter.model.server import RefusalReason
from exporter.model.split import Method
from exporter.model.workload import WorkloadKind
from exporter.view import View
from tests.builders import AT, Story
from tests.clocks import HandClock
from tests.core.invariants import assert_consistent, assert_only_grown, assert_told, counters
from tests.simulated import MINUTE, ORDERS, minutes

SEEDS = (1, 2)
HOUR_MINUTES = 60 - int(PAST_SECONDS) // 60
END = AT + (HOUR_MINUTES - 1) * MINUTE

TRAINING, INFERENCE, NOTEBOOKS = (f"/run/nvidia/mps/{name}/pipe" for name in ("training", "inference", "notebooks"))


@cache
def hour(seed: int) -> tuple[Story, ...]:
    """The node after each minute of an hour, of which the first quarter has been before it begins."""
    clock = HandClock(AT)
    return tuple(islice(minutes(clock, Simulation(seed, clock)), HOUR_MINUTES))


def events(seed: int) -> list[Event]:
    return [event for minute in hour(seed) for event in minute.events]


def told_incidents(seed: int) -> list[Incident]:
    """Those that are over."""
    told = [event.incident for event in events(seed) if event.event is EventName.FAULT_RECOVERED]
    return [incident for incident in told if incident is not None]


def exposition(present: Node) -> str:
    return generate_latest(NodeCollector(View(present, client_min_age=15.0, orders=ORDERS))).decode()


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

    def test_every_sort_of_event_happens(self, seed: int) -> None:
        """All but a stop by an operator, and logs that are blocked or forged; open faults are reported last."""
        assert {event.event for event in events(seed)} == set(EventName) - {
            EventName.DAEMON_STOPPED,
            EventName.LOG_BLOCKED,
            EventName.LOG_CONTRADICTED,
            EventName.LOG_UNBLOCKED,
            EventName.FAULT_OPEN,
        }

    def test_what_dies_comes_back(self, seed: int) -> None:
        """Each loss is followed by the same daemon's return, unless the hour ends before."""
        told = [(event.at, event.daemon, event.event) for event in events(seed)]
        for at, daemon, name in told:
            if name is EventName.DAEMON_LOST and at < END - 4 * MINUTE:
                returns = [when for when, whose, what in told if whose == daemon and what is EventName.DAEMON_UP]
                assert any(at < when < at + 4 * MINUTE for when in returns)

    def test_one_death_is_over_before_anybody_can_have_asked(self, seed: int) -> None:
        """It is counted all the same."""
        told = [event for event in events(seed) if event.daemon == TRAINING]
        losses = [event.at for event in told if event.event is EventName.DAEMON_LOST]
        returns = [event.at for event in told if event.event is EventName.DAEMON_UP]
        assert any(0 < back - lost < 1 for lost in losses for back in returns)

    def test_faults_are_of_one_kind_and_the_other(self, seed: int) -> None:
        """There was one when the demo begins, and the next comes soon."""
        openings = [event.at for event in events(seed) if event.event is EventName.FAULT]
        assert any(at < AT for at in openings)
        assert any(AT < at < AT + MINUTE for at in openings)
        assert {incident.kind for incident in told_incidents(seed)} == {FaultKind.CLIENT_KILLED, FaultKind.MEMORY}

    def test_a_fault_has_all_that_there_is_to_tell_of_one(self, seed: int) -> None:
        """An Xid, whom it hit on two GPUs, who was refused; and of most, who held up recovery for a minute."""
        held = [incident for incident in told_incidents(seed) if incident.blocking]
        for incident in told_incidents(seed):
            assert [xid.number for xid in incident.xids] == [31]
            assert incident.affected_told
            assert len(incident.affected) >= 3
            assert len(incident.gpus) == 2
            assert incident.ending is Ending.RECOVERED
            if incident in held:
                assert len(incident.blocking) == 1
                assert MINUTE - 1 < (incident.seconds or 0.0) < MINUTE + 1
            else:
                assert (incident.seconds or 0.0) < 2
        assert 0 < len(held) < len(told_incidents(seed))
        assert any(incident.refused for incident in held)

    def test_of_those_who_were_killed_at_work_one_stands_out_and_else_nobody(self, seed: int) -> None:
        """So that a dashboard has both."""
        for incident in told_incidents(seed):
            assert (incident.suspect is not None) == (incident.kind is FaultKind.CLIENT_KILLED)

    def test_newcomers_are_refused_by_a_fault_and_by_a_full_server(self, seed: int) -> None:
        """The two reasons that there are."""
        refused = {event.reason for event in events(seed) if event.event is EventName.CLIENT_REFUSED}
        assert refused == {RefusalReason.FAULT, RefusalReason.LIMIT}

    def test_daemons_are_diagnosed_with_nearly_everything(self, seed: int) -> None:
        """What takes a debugger, or a driver that hangs, is left out."""
        found = {event.state for event in events(seed) if event.event is EventName.DAEMON_DIAGNOSED}
        assert found == {
            Condition.WELL,
            Condition.CRASHED,
            Condition.UNRESPONSIVE,
            Condition.HELD,
            Condition.FAULT,
            Condition.CRASH_LOOP,
        }

    def test_the_watchdog_acts_for_some_and_says_what_it_would_do_for_others(self, seed: int) -> None:
        """As its orders have it."""
        acted = {event.daemon: event.result for event in events(seed) if event.event is EventName.WATCHDOG_ACTED}
        would = {event.daemon for event in events(seed) if event.event is EventName.WATCHDOG_WOULD_ACT}
        assert acted == dict.fromkeys((INFERENCE, NOTEBOOKS), ActionResult.SUCCEEDED)
        assert would == {TRAINING}

    def test_its_breaker_opens_at_last_and_is_closed_again(self, seed: int) -> None:
        """In the first minute, so that it can be seen."""
        opened = [event.at for event in events(seed) if event.event is EventName.CIRCUIT_OPENED]
        closed = [event.at for event in events(seed) if event.event is EventName.CIRCUIT_CLOSED]
        assert AT < opened[0] < AT + MINUTE
        assert opened[0] < closed[0] < AT + 5 * MINUTE

    def test_nearly_all_that_the_gpus_did_is_put_down_to_somebody(self, seed: int) -> None:
        """And to the last microsecond, all of it is put down."""
        books = hour(seed)[-1].node.ledger.books.values()
        for book in books:
            assert sum(used.sm_us for used in book.used.values()) == book.whole.sm_us
            assert sum(used.energy_mj for used in book.used.values()) == book.whole.energy_mj
        nobodys = sum(used.sm_us for book in books for (who, _), used in book.used.items() if who is Purse.UNATTRIBUTED)
        assert 0 < nobodys < 0.05 * sum(book.whole.sm_us for book in books)

    def test_sharing_has_an_idle_hoarder_and_a_noisy_neighbour(self, seed: int) -> None:
        """At some time in the hour; and most of the time, both ways to find out who used what are needed."""
        found = [each for minute in hour(seed) for each in fitness(minute.node).values()]
        assert any(each.idle for each in found)
        assert any(each.starving is not None and each.starving.pid is not None for each in found)
        assert {method for each in found for method in each.methods} == {Method.MEASURED, Method.FLIGHT}

    def test_clients_belong_to_every_sort_of_owner(self, seed: int) -> None:
        """Slurm jobs, pods with their names, containers, units, and users."""
        accounts = {workload.kind for minute in hour(seed) for workload in minute.node.accounts}
        assert accounts == set(WorkloadKind)
        assert {pod.namespace for minute in hour(seed) for pod in minute.node.pods.values()} == {"inference"}

    def test_some_clients_join_two_gpus_and_others_are_apart(self, seed: int) -> None:
        """And each GPU has clients, over the hour."""
        daemons = [daemon for minute in hour(seed) for daemon in minute.node.daemons.values()]
        placed = {client.gpus for daemon in daemons for client in daemon.clients.values()}
        assert {len(gpus) for gpus in placed} == {1, 2}
        assert frozenset().union(*placed) == hour(seed)[-1].node.gpus.keys()

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
        """Every line is one that the parser knows, but for those that are meant to be new."""
        daemons = hour(seed)[-1].node.daemons
        unknown = {name: sum(each.totals.log_lines_unrecognized.values()) for name, each in daemons.items()}
        new = FAILURES["unknown-line"]
        assert new.every is not None
        assert unknown == {TRAINING: 1 + (END - AT - new.first) // new.every, INFERENCE: 0, NOTEBOOKS: 0}


def test_when_it_begins_a_story_has_been_told_already() -> None:
    """Whoever looks at once sees clients at work."""
    first = hour(1)[0]
    assert EventName.CLIENT_CONNECTED in first.names()
    assert any(daemon.clients for daemon in first.node.daemons.values())


def test_in_its_first_minute_every_family_has_had_data() -> None:
    """A simulation has no families of the process that serves it, and its quarantine is over by then."""
    clock = HandClock(AT)
    simulation = Simulation(1, clock)
    present = next(minutes(clock, simulation)).node
    clock.time = AT + MINUTE
    seen: set[str] = set()
    for second, _ in advance(present, simulation, ORDERS):
        view = View(second, client_min_age=15.0, orders=ORDERS)
        seen.update(
            family.name
            for family in CATALOGUE
            if family.name not in seen and family.metric(family.samples(view)).samples
        )
    without = ("cuda_mps_exporter_history_", "cuda_mps_exporter_config_", "cuda_mps_watchdog_quarantined_")
    without += ("cuda_mps_exporter_log_records_", "cuda_mps_exporter_accept_failures_")
    assert {family.name for family in CATALOGUE if not family.name.startswith(without)} == seen


def test_the_same_seed_tells_the_same_story_and_another_tells_another() -> None:
    clock = HandClock(AT)
    again = next(minutes(clock, Simulation(1, clock)))
    assert again.events == hour(1)[0].events != hour(2)[0].events
