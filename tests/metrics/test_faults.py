"""Families of faults."""

from dataclasses import replace

import pytest

from exporter.incidents.incidents import REMEMBERED_SECONDS
from exporter.metrics.catalogue import NodeCollector
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
    blocked_recovery,
    exited,
    fault,
    idle,
    incident,
    look,
    reduced,
    server_log,
    suspect,
    tenant,
    three_clients,
    with_incidents,
)
from tests.metrics.test_families import HOSTILE, by, families, openmetrics_of, promtool_check, samples, text_of, value

INFO, BLOCKING = "cuda_mps_fault_info", "cuda_mps_fault_blocking_clients"
RECOVERY = "cuda_mps_fault_recovery_seconds"
AFFECTED, SUSPECTED = "cuda_mps_workload_faults_affected_total", "cuda_mps_workload_faults_suspected_total"

RECOVERED = {"ended_at": AT + 4, "ending": IncidentEnd.RECOVERED}


def info(present: Node) -> dict[str, str]:
    """Return the labels of the last fault."""
    (sample,) = samples(present, INFO)
    assert sample.value == 1
    return sample.labels


def recoveries(present: Node) -> dict[tuple[str, str | None], float]:
    """Return the histogram by the suffix of the sample's name and by bound."""
    return {
        (each.name.removeprefix(RECOVERY), each.labels.get("le")): each.value for each in samples(present, RECOVERY)
    }


def test_counters_are_0_before_the_first_fault() -> None:
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


def test_shows_the_counters_of_the_daemon() -> None:
    present = with_incidents(faults=2, fault_affected=5, faults_contained=3, crash_loops=1)
    assert value(present, "cuda_mps_faults_total") == 2
    assert value(present, "cuda_mps_fault_affected_clients_total") == 5
    assert value(present, "cuda_mps_client_faults_contained_total") == 3
    assert value(present, "cuda_mps_server_crash_loops_total") == 1


def test_shows_a_fault_when_the_log_reports_it() -> None:
    present = reduced(*fault(AT + 30), start=three_clients()).node
    assert value(present, "cuda_mps_faults_total") == 1
    assert value(present, "cuda_mps_fault_last_timestamp_seconds") == AT + 30
    assert value(present, "cuda_mps_fault_affected_clients_total") == 1
    assert info(present)["incident"]
    assert value(present, BLOCKING) == 0


def test_an_ended_fault_has_its_duration_and_workloads() -> None:
    recovers = server_log("Destroy server context on device 0 (NVIDIA H200)", at=AT + 30)
    over = (*fault(AT + 30), *recovers, exited(600, at=AT + 30.05))
    present = reduced(*over, look(at=AT + 33), start=three_clients()).node
    assert recoveries(present)["_count", None] == recoveries(present)["_bucket", "0.1"] == 1
    assert by(present, AFFECTED, "workload") == {"alice": 1, "bob": 0}


def test_shows_how_many_clients_the_last_fault_affected() -> None:
    name = "cuda_mps_fault_last_affected_clients"
    assert not samples(idle(), name)
    assert value(reduced(*fault(AT + 30), start=three_clients()).node, name, daemon=DAEMON) == 1
    over = with_incidents(incident(**RECOVERED))
    assert not samples(replace(over, at=AT + 5 + REMEMBERED_SECONDS), name)


def test_shows_the_workloads_that_the_last_fault_affected() -> None:
    """A counter's increase() would miss a workload that appears with the fault."""
    name = "cuda_mps_fault_last_affected_workload_clients"
    assert not samples(idle(), name)
    present = reduced(*fault(AT + 30), start=three_clients()).node
    assert by(present, name, "workload", workload_kind="user", daemon=DAEMON) == {"alice": 1}
    assert not samples(replace(with_incidents(incident(**RECOVERED)), at=AT + 5 + REMEMBERED_SECONDS), name)


def test_affected_workloads_with_equal_shown_names_are_one_and_those_without_a_name_are_omitted() -> None:
    hit = {
        600: tenant(600, "a\nb"),
        601: tenant(601, "a\tb"),
        602: replace(tenant(602, "c"), workload=None),
    }
    present = with_incidents(incident(affected=(600, 601, 602, 603), client_details=hit))
    assert by(present, "cuda_mps_fault_last_affected_workload_clients", "workload") == {
        "a\N{REPLACEMENT CHARACTER}b": 2
    }


class TestInfo:
    """Labels of the last fault."""

    def test_has_the_kind_the_suspect_and_the_confidence(self) -> None:
        """Of the last fault and its main suspect."""
        assert info(blocked_recovery()) == {
            "daemon": DAEMON,
            "incident": "f2",
            "kind": "memory",
            "suspect_workload": "user/alice",
            "confidence": "0.62",
        }

    def test_without_a_suspect_the_labels_are_empty(self) -> None:
        """The suspect is unknown."""
        labels = info(with_incidents(incident(kind=FaultKind.HARDWARE)))
        assert (labels["kind"], labels["suspect_workload"], labels["confidence"]) == ("hardware", "", "")

    def test_names_the_suspect_by_kind_and_name_of_its_workload(self, subtests: pytest.Subtests) -> None:
        """A suspect without a known workload is named by its PID."""
        for accused, named in [
            (tenant(600, POD, kind=WorkloadKind.POD), f"pod/{POD}"),
            (tenant(600, "vllm.service", kind=WorkloadKind.UNIT), "unit/vllm.service"),
            (tenant(600, "42", kind=WorkloadKind.SLURM_JOB), "slurm_job/42"),
            (tenant(600, "pod/x"), "user/pod/x"),
            (tenant(600, None), "pid/600"),
        ]:
            with subtests.test(accused=accused, named=named):
                present = with_incidents(incident("f1", replace(suspect(), client=accused)))
                assert info(present)["suspect_workload"] == named

    def test_is_present_while_the_fault_lasts(self) -> None:
        """For any duration."""
        assert samples(reduced(look(at=AT + 10 * REMEMBERED_SECONDS), start=with_incidents(incident())).node, INFO)

    def test_is_present_for_an_hour_after_the_fault(self) -> None:
        """The fault remains visible after its end."""
        over = with_incidents(incident(**RECOVERED))
        assert samples(replace(over, at=AT + 4 + REMEMBERED_SECONDS), INFO)
        assert not samples(replace(over, at=AT + 5 + REMEMBERED_SECONDS), INFO)

    def test_a_daemon_without_series_has_none(self) -> None:
        """Its other series have ended, too."""
        assert not samples(with_incidents(incident(daemon="/gone")), INFO)


class TestBlocking:
    """Clients that delay recovery."""

    def test_counts_blocking_clients_by_server(self) -> None:
        """Disconnected clients do not count."""
        assert by(blocked_recovery(), BLOCKING, "server", daemon=DAEMON) == {str(SERVER): 1}

    def test_is_0_after_the_fault(self) -> None:
        """The server still has its series."""
        over = with_incidents(incident(blocking={601: RecoveryDelay(since=AT)}, **RECOVERED))
        assert by(over, BLOCKING, "server", daemon=DAEMON) == {str(SERVER): 0}

    def test_a_server_of_another_daemon_with_the_same_pid_is_another_server(self) -> None:
        """PIDs in containers are not unique."""
        elsewhere = with_incidents(incident(daemon="/other", blocking={601: RecoveryDelay(since=AT)}))
        assert by(elsewhere, BLOCKING, "server", daemon=DAEMON) == {str(SERVER): 0}


class TestRecovery:
    """Histogram of the duration of faults."""

    def test_buckets_are_cumulative(self) -> None:
        """The last bucket has all faults."""
        within = (2, 2, *(3,) * (len(RECOVERY_SECONDS) - 2))
        present = with_incidents(fault_recoveries=RecoveryTimes(within=within, count=4, seconds=2000.5))
        found = recoveries(present)
        assert found["_bucket", "0.1"] == found["_bucket", "0.25"] == 2
        assert found["_bucket", "0.5"] == found["_bucket", "1800.0"] == 3
        assert found["_bucket", "+Inf"] == found["_count", None] == 4
        assert found["_sum", None] == 2000.5
        assert len(found) == len(RECOVERY_SECONDS) + 3

    def test_is_a_histogram_in_both_formats(self) -> None:
        """Also for the strict parser."""
        assert families(blocked_recovery())[RECOVERY].type == "histogram"
        assert {each.name: each.type for each in openmetrics_of(blocked_recovery())}[RECOVERY] == "histogram"


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


class TestByWorkload:
    """Affected and suspected workloads."""

    def test_each_workload_has_both_counters_from_its_first_client(self) -> None:
        """They start at 0, so the first fault is an increase."""
        present = blocked_recovery()
        assert by(present, AFFECTED, "workload", workload_kind="user") == {"alice": 0, "bob": 0}
        assert by(present, SUSPECTED, "workload", workload_kind="user") == {"alice": 0, "bob": 0}

    def test_a_fault_counts_once_for_each_workload(self) -> None:
        """For any number of clients."""
        hit = (tenant(600), tenant(601, "bob"), tenant(602))
        present = processes.count_fault(blocked_recovery(), hit, hit[1])
        assert by(present, AFFECTED, "workload") == {"alice": 1, "bob": 1}
        assert by(present, SUSPECTED, "workload") == {"alice": 0, "bob": 1}

    def test_names_with_the_same_shown_text_are_one_workload(self) -> None:
        """No two series may have the same labels."""
        hit = [tenant(number, name) for number, name in enumerate(("a\nb", "a\rb", "a\tb"))]
        present = processes.count_fault(idle(), hit, hit[2])
        assert by(present, AFFECTED, "workload") == {"a\N{REPLACEMENT CHARACTER}b": 3}
        assert by(present, SUSPECTED, "workload") == {"a\N{REPLACEMENT CHARACTER}b": 1}


def test_a_hostile_name_of_a_suspect_is_one_short_label(subtests: pytest.Subtests) -> None:
    for name in HOSTILE:
        with subtests.test(name=name):
            present = processes.count_fault(
                with_incidents(incident("f1", suspect(600, 0.5, name))), (tenant(600, name),), tenant(600, name)
            )
            named = info(present)["suspect_workload"]
            assert len(named) <= LONGEST_TEXT
            assert named.isprintable()
            assert named.startswith("user/")
            assert len(text_of(present).splitlines()) == len(text_of(present).split("\n")) - 1
            assert openmetrics_of(present)
            assert promtool_check(text_of(present)) == (0, "", "")
