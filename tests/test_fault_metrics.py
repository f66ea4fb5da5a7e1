"""The families of faults: counted from 0 on, told of while it matters, and honest about who did it."""

from dataclasses import replace

import pytest

from exporter.metrics.catalogue import NodeCollector
from exporter.metrics.faults import SHOWN_SECONDS
from exporter.model.daemon import RECOVERY_SECONDS, RecoveryTimes
from exporter.model.identity import WorkloadKind
from exporter.model.incident import FaultKind, IncidentEnd, RecoveryDelay
from exporter.model.node import Node
from exporter.parse.printable import LONGEST_TEXT
from exporter.state import processes
from exporter.view import View
from tests.builders import (
    AT,
    DAEMON,
    POD,
    SERVER,
    exited,
    fault,
    held_up,
    idle,
    incident,
    look,
    reduced,
    server_log,
    struck,
    suspect,
    tenant,
    three_clients,
)
from tests.test_metrics import HOSTILE, by, complaints, families, openmetrics_of, samples, text_of, value

INFO, BLOCKING = "cuda_mps_fault_info", "cuda_mps_fault_blocking_clients"
RECOVERY = "cuda_mps_fault_recovery_seconds"
AFFECTED, SUSPECTED = "cuda_mps_workload_faults_affected_total", "cuda_mps_workload_faults_suspected_total"

RECOVERED = {"ended_at": AT + 4, "ending": IncidentEnd.RECOVERED}


def info(present: Node) -> dict[str, str]:
    """What is told of the last fault."""
    (sample,) = samples(present, INFO)
    assert sample.value == 1
    return sample.labels


def recoveries(present: Node) -> dict[tuple[str, str | None], float]:
    """The histogram, by the ends of its samples' names and by bound."""
    return {
        (each.name.removeprefix(RECOVERY), each.labels.get("le")): each.value for each in samples(present, RECOVERY)
    }


def test_before_any_fault_all_that_is_counted_is_there_at_0() -> None:
    for name in (
        "cuda_mps_faults_total",
        "cuda_mps_fault_affected_clients_total",
        "cuda_mps_client_faults_contained_total",
        "cuda_mps_server_crash_loops_total",
    ):
        assert by(idle(), name, "daemon") == {DAEMON: 0}
    assert by(idle(), BLOCKING, "server", daemon=DAEMON) == {str(SERVER): 0}
    assert {each.value for each in samples(idle(), RECOVERY, daemon=DAEMON)} == {0}
    assert not samples(idle(), INFO)
    assert not samples(idle(), "cuda_mps_fault_last_timestamp_seconds")


def test_what_was_counted_is_told() -> None:
    present = struck(faults=2, fault_affected=5, faults_contained=3, crash_loops=1)
    assert value(present, "cuda_mps_faults_total") == 2
    assert value(present, "cuda_mps_fault_affected_clients_total") == 5
    assert value(present, "cuda_mps_client_faults_contained_total") == 3
    assert value(present, "cuda_mps_server_crash_loops_total") == 1


def test_a_fault_shows_as_soon_as_its_log_tells_of_it() -> None:
    present = reduced(*fault(AT + 30), start=three_clients()).node
    assert value(present, "cuda_mps_faults_total") == 1
    assert value(present, "cuda_mps_fault_last_timestamp_seconds") == AT + 30
    assert value(present, "cuda_mps_fault_affected_clients_total") == 1
    assert info(present)["incident"]
    assert value(present, BLOCKING) == 0


def test_a_fault_that_is_over_and_settled_has_its_time_and_its_owners() -> None:
    recovers = server_log("Destroy server context on device 0 (NVIDIA H200)", at=AT + 30)
    over = (*fault(AT + 30), *recovers, exited(600, at=AT + 30.05))
    present = reduced(*over, look(at=AT + 33), start=three_clients()).node
    assert recoveries(present)["_count", None] == recoveries(present)["_bucket", "0.1"] == 1
    assert by(present, AFFECTED, "workload") == {"alice": 1, "bob": 0}


def test_how_many_the_last_fault_hit_is_told_as_long_as_what_it_was() -> None:
    name = "cuda_mps_fault_last_affected_clients"
    assert not samples(idle(), name)
    assert value(reduced(*fault(AT + 30), start=three_clients()).node, name, daemon=DAEMON) == 1
    over = struck(incident(**RECOVERED))
    assert not samples(replace(over, at=AT + 5 + SHOWN_SECONDS), name)


def test_whose_clients_the_last_fault_hit_is_told_from_the_first_one_on() -> None:
    """A counter's increase() would miss those whom it first sees with it."""
    name = "cuda_mps_fault_last_affected_workload_clients"
    assert not samples(idle(), name)
    present = reduced(*fault(AT + 30), start=three_clients()).node
    assert by(present, name, "workload", workload_kind="user", daemon=DAEMON) == {"alice": 1}
    assert not samples(replace(struck(incident(**RECOVERED)), at=AT + 5 + SHOWN_SECONDS), name)


def test_owners_hit_whose_names_look_the_same_are_one_and_the_nameless_are_none() -> None:
    hit = {
        600: tenant(600, "a\nb"),
        601: tenant(601, "a\tb"),
        602: replace(tenant(602, "c"), workload=None),
    }
    present = struck(incident(affected=(600, 601, 602, 603), tenants=hit))
    assert by(present, "cuda_mps_fault_last_affected_workload_clients", "workload") == {
        "a\N{REPLACEMENT CHARACTER}b": 2
    }


class TestInfo:
    """What a page to a person needs of the last fault."""

    def test_it_says_what_broke_who_is_suspected_and_how_sure_that_is(self) -> None:
        """Of the last one, and of the likeliest suspect."""
        assert info(held_up()) == {
            "daemon": DAEMON,
            "incident": "f2",
            "kind": "memory",
            "suspect_workload": "user/alice",
            "confidence": "0.62",
        }

    def test_nobody_suspected_is_nobody_named(self) -> None:
        """Unknown is a good answer."""
        labels = info(struck(incident(kind=FaultKind.HARDWARE)))
        assert (labels["kind"], labels["suspect_workload"], labels["confidence"]) == ("hardware", "", "")

    @pytest.mark.parametrize(
        ("accused", "named"),
        [
            (tenant(600, POD, kind=WorkloadKind.POD), f"pod/{POD}"),
            (tenant(600, "vllm.service", kind=WorkloadKind.UNIT), "unit/vllm.service"),
            (tenant(600, "42", kind=WorkloadKind.SLURM_JOB), "slurm_job/42"),
            (tenant(600, "pod/x"), "user/pod/x"),
            (tenant(600, None), "pid/600"),
        ],
    )
    def test_a_suspect_is_named_by_its_owners_kind_and_name(self, accused: object, named: str) -> None:
        """One whose owner is not known is named by its PID."""
        present = struck(incident("f1", replace(suspect(), tenant=accused)))
        assert info(present)["suspect_workload"] == named

    def test_it_is_there_as_long_as_the_fault_lasts(self) -> None:
        """However long that is."""
        assert samples(reduced(look(at=AT + 10 * SHOWN_SECONDS), start=struck(incident())).node, INFO)

    def test_and_for_an_hour_after(self) -> None:
        """So that whoever comes late finds it."""
        over = struck(incident(**RECOVERED))
        assert samples(replace(over, at=AT + 4 + SHOWN_SECONDS), INFO)
        assert not samples(replace(over, at=AT + 5 + SHOWN_SECONDS), INFO)

    def test_a_daemon_that_is_no_longer_told_of_has_none(self) -> None:
        """Its other families have ended, too."""
        assert not samples(struck(incident(daemon="/gone")), INFO)


class TestBlocking:
    """Who holds up recovery."""

    def test_those_who_live_on_are_counted_at_their_server(self) -> None:
        """Those who have left are not."""
        assert by(held_up(), BLOCKING, "server", daemon=DAEMON) == {str(SERVER): 1}

    def test_after_the_fault_nobody_blocks(self) -> None:
        """The server is there, at 0."""
        over = struck(incident(blocking={601: RecoveryDelay(since=AT)}, **RECOVERED))
        assert by(over, BLOCKING, "server", daemon=DAEMON) == {str(SERVER): 0}

    def test_another_daemons_server_of_that_pid_is_another_server(self) -> None:
        """PIDs of containers come twice."""
        elsewhere = struck(incident(daemon="/other", blocking={601: RecoveryDelay(since=AT)}))
        assert by(elsewhere, BLOCKING, "server", daemon=DAEMON) == {str(SERVER): 0}


class TestRecovery:
    """How long faults lasted, as a histogram."""

    def test_its_buckets_are_cumulative_and_end_with_all(self) -> None:
        """Each bound with how many were no longer."""
        within = (2, 2, *(3,) * (len(RECOVERY_SECONDS) - 2))
        present = struck(fault_recoveries=RecoveryTimes(within=within, count=4, seconds=2000.5))
        found = recoveries(present)
        assert found["_bucket", "0.1"] == found["_bucket", "0.25"] == 2
        assert found["_bucket", "0.5"] == found["_bucket", "1800.0"] == 3
        assert found["_bucket", "+Inf"] == found["_count", None] == 4
        assert found["_sum", None] == 2000.5
        assert len(found) == len(RECOVERY_SECONDS) + 3

    def test_it_is_a_histogram_in_both_formats(self) -> None:
        """By the strict parser, too."""
        assert families(held_up())[RECOVERY].type == "histogram"
        assert {each.name: each.type for each in openmetrics_of(held_up())}[RECOVERY] == "histogram"


def test_times_follow_the_wall_clock() -> None:
    daemon = replace(
        idle().daemons[DAEMON], connections=replace(idle().daemons[DAEMON].connections, last_fault_at=AT + 3)
    )
    present = replace(idle(), daemons={DAEMON: daemon})
    (metric,) = (
        each
        for each in NodeCollector(View(present, clock_step=100.0)).collect()
        if each.name == "cuda_mps_fault_last_timestamp_seconds"
    )
    assert [each.value for each in metric.samples] == [AT + 103]


class TestByOwner:
    """Whose clients were hit, and whose may have done it."""

    def test_each_owner_has_both_from_its_first_client_on(self) -> None:
        """At 0, so that the first one is an increase."""
        present = held_up()
        assert by(present, AFFECTED, "workload", workload_kind="user") == {"alice": 0, "bob": 0}
        assert by(present, SUSPECTED, "workload", workload_kind="user") == {"alice": 0, "bob": 0}

    def test_a_fault_counts_once_for_each_owner(self) -> None:
        """However many clients each had."""
        hit = (tenant(600), tenant(601, "bob"), tenant(602))
        present = processes.faulted(held_up(), hit, hit[1])
        assert by(present, AFFECTED, "workload") == {"alice": 1, "bob": 1}
        assert by(present, SUSPECTED, "workload") == {"alice": 0, "bob": 1}

    def test_names_that_look_the_same_are_one_owner(self) -> None:
        """No two series may be the same."""
        hit = [tenant(number, name) for number, name in enumerate(("a\nb", "a\rb", "a\tb"))]
        present = processes.faulted(idle(), hit, hit[2])
        assert by(present, AFFECTED, "workload") == {"a\N{REPLACEMENT CHARACTER}b": 3}
        assert by(present, SUSPECTED, "workload") == {"a\N{REPLACEMENT CHARACTER}b": 1}


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name)[:40])
def test_whatever_a_suspect_calls_itself_it_is_one_short_label(name: str) -> None:
    present = processes.faulted(
        struck(incident("f1", suspect(600, 0.5, name))), (tenant(600, name),), tenant(600, name)
    )
    named = info(present)["suspect_workload"]
    assert len(named) <= LONGEST_TEXT
    assert named.isprintable()
    assert named.startswith("user/")
    assert len(text_of(present).splitlines()) == len(text_of(present).split("\n")) - 1
    assert openmetrics_of(present)
    assert complaints(text_of(present)) == (0, "", "")
