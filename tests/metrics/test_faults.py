"""Families of faults."""

from dataclasses import replace

import pytest

from exporter.metrics.catalogue import NodeCollector
from exporter.model.daemon import RECOVERY_SECONDS, FailedStarts, RecoveryTimes
from exporter.model.identity import WorkloadKind
from exporter.model.incident import IncidentEnd, IncidentKind, RecoveryDelay
from exporter.model.node import Node
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
    faulted_client,
    idle,
    incident,
    look,
    reduced,
    server_log,
    suspect,
    three_clients,
    with_incidents,
)
from tests.metrics.test_families import HOSTILE, by, families, openmetrics_of, promtool_check, samples, text_of, value

# The tests state these values, so that they notice a change of the program's constants.
REMEMBERED_SECONDS = 3600.0
LONGEST_TEXT = 128
MAX_SUSPECTS = 16
LOOP_END_SECONDS = 300.0

INFO, BLOCKING = "cuda_mps_fault_info", "cuda_mps_fault_blocking_clients"
RECOVERY = "cuda_mps_fault_recovery_seconds"
AFFECTED, SUSPECTED = "cuda_mps_workload_faults_affected_total", "cuda_mps_workload_faults_suspected_total"
FAULTED = "cuda_mps_workload_faulted_clients_total"

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
        "cuda_mps_server_crash_loop",
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


def test_shows_a_crash_loop_until_it_ends() -> None:
    failed = FailedStarts(count=3, last_exit_at=AT, reported=True)
    connections = replace(idle().daemons[DAEMON].connections, failed_starts=failed)
    begun = replace(idle(), at=AT, daemons={DAEMON: replace(idle().daemons[DAEMON], connections=connections)})
    assert value(begun, "cuda_mps_server_crash_loop") == 1
    assert value(replace(begun, at=AT + LOOP_END_SECONDS + 1), "cuda_mps_server_crash_loop") == 0


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


def test_shows_the_clients_and_workloads_that_the_last_fault_affected_until_an_hour_after_its_end() -> None:
    """A counter's increase() would miss a workload that appears with the fault."""
    clients, workloads = "cuda_mps_fault_last_affected_clients", "cuda_mps_fault_last_affected_workload_clients"
    present = reduced(*fault(AT + 30), start=three_clients()).node
    assert value(present, clients, daemon=DAEMON) == 1
    assert by(present, workloads, "workload", workload_kind="user", daemon=DAEMON) == {"alice": 1}
    ended = with_incidents(incident(**RECOVERED, end_reported=True))
    over, forgotten = (reduced(look(at=AT + 4 + REMEMBERED_SECONDS + after), start=ended).node for after in (0, 1))
    assert samples(over, INFO)
    for none in (idle(), forgotten, with_incidents(incident(daemon="/gone"))):
        assert not any(samples(none, name) for name in (INFO, clients, workloads))


def test_a_fault_is_shown_while_it_lasts() -> None:
    assert samples(reduced(look(at=AT + 10 * REMEMBERED_SECONDS), start=with_incidents(incident())).node, INFO)


def test_affected_workloads_with_equal_shown_names_are_one_and_those_without_a_name_are_omitted() -> None:
    hit = {
        600: faulted_client(600, "a\nb"),
        601: faulted_client(601, "a\tb"),
        602: replace(faulted_client(602, "c"), workload=None),
    }
    present = with_incidents(incident(affected=(600, 601, 602, 603), client_details=hit))
    assert by(present, "cuda_mps_fault_last_affected_workload_clients", "workload") == {
        "a\N{REPLACEMENT CHARACTER}b": 2
    }


def test_info_has_the_kind_the_suspect_and_the_confidence() -> None:
    known = {"daemon": DAEMON, "incident": "f2", "kind": "memory"}
    assert info(blocked_recovery()) == {**known, "suspect_workload": "user/alice", "confidence": "0.62"}
    labels = info(with_incidents(incident(kind=IncidentKind.HARDWARE)))
    assert (labels["kind"], labels["suspect_workload"], labels["confidence"]) == ("hardware", "", "")


def test_names_the_suspect_by_kind_and_name_of_its_workload(subtests: pytest.Subtests) -> None:
    for accused, named in [
        (faulted_client(600, POD, kind=WorkloadKind.POD), f"pod/{POD}"),
        (faulted_client(600, "vllm.service", kind=WorkloadKind.UNIT), "unit/vllm.service"),
        (faulted_client(600, "42", kind=WorkloadKind.JOB), "job/42"),
        (faulted_client(600, "pod/x"), "user/pod/x"),
        (faulted_client(600, None), "pid/600"),
    ]:
        with subtests.test(accused=accused, named=named):
            present = with_incidents(incident("f1", replace(suspect(), client=accused)))
            assert info(present)["suspect_workload"] == named


def test_counts_blocking_clients_by_server_while_the_fault_lasts() -> None:
    """A server of another daemon can have the same PID, because PIDs in containers are not unique."""
    assert by(blocked_recovery(), BLOCKING, "server", daemon=DAEMON) == {str(SERVER): 1}
    blocking = {601: RecoveryDelay(since=AT)}
    for other in (incident(blocking=blocking, **RECOVERED), incident(daemon="/other", blocking=blocking)):
        assert by(with_incidents(other), BLOCKING, "server", daemon=DAEMON) == {str(SERVER): 0}


def test_recovery_is_a_histogram_with_cumulative_buckets() -> None:
    within = (2, 2, *(3,) * (len(RECOVERY_SECONDS) - 2))
    present = with_incidents(fault_recoveries=RecoveryTimes(within=within, count=4, seconds=2000.5))
    found = recoveries(present)
    assert found["_bucket", "0.1"] == found["_bucket", "0.25"] == 2
    assert found["_bucket", "0.5"] == found["_bucket", "1800.0"] == 3
    assert found["_bucket", "+Inf"] == found["_count", None] == 4
    assert found["_sum", None] == 2000.5
    assert len(found) == len(RECOVERY_SECONDS) + 3

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


def test_a_fault_counts_once_for_each_workload_from_0() -> None:
    before, hit = blocked_recovery(), (faulted_client(600), faulted_client(601, "bob"), faulted_client(602))
    after = processes.count_end_of_fault(processes.count_fault(before, hit), hit, suspect(601, 0.5, "bob"))
    assert by(before, AFFECTED, "workload", workload_kind="user") == {"alice": 0, "bob": 0}
    assert by(before, SUSPECTED, "workload", workload_kind="user") == {"alice": 1, "bob": 0}
    assert by(after, AFFECTED, "workload") == {"alice": 1, "bob": 1}
    assert by(after, SUSPECTED, "workload") == {"alice": 1, "bob": 1}


def test_counts_the_clients_that_a_fault_ended_by_main_suspect_when_it_is_over() -> None:
    recovers = server_log("Destroy server context on device 0 (NVIDIA H200)", at=AT + 30)
    lasting = reduced(*fault(AT + 30), start=three_clients()).node
    assert not samples(lasting, FAULTED)
    over = reduced(*recovers, exited(600, at=AT + 30.05), look(at=AT + 33), start=lasting).node
    (ended,) = over.incidents.values()
    named = ("", "none") if ended.suspect is None else (ended.suspect.client.workload_label, ended.suspect.level)
    assert {(*named, 1)} == {
        (each.labels["suspect_workload"], each.labels["confidence"], each.value) for each in samples(over, FAULTED)
    }
    again = reduced(look(at=AT + 60), start=over).node
    assert [each.value for each in samples(again, FAULTED)] == [1]


def test_the_levels_of_confidence_and_the_number_of_suspects_are_bounded() -> None:
    present, hit = idle(), (faulted_client(600), faulted_client(601), faulted_client(602, None))
    for confidence in (0.8, 0.79, 0.5, 0.49):
        present = processes.count_end_of_fault(present, hit, suspect(600, confidence, "bob"))
    present = processes.count_end_of_fault(present, hit, None)
    present = processes.count_end_of_fault(present, hit, suspect(600, 0.1, None))
    labels = ("workload", "suspect_workload", "confidence")
    assert {tuple(each.labels[label] for label in labels): each.value for each in samples(present, FAULTED)} == {
        ("alice", "user/bob", "high"): 2,
        ("alice", "user/bob", "medium"): 4,
        ("alice", "user/bob", "low"): 2,
        ("alice", "", "none"): 2,
        ("alice", "pid/600", "low"): 2,
    }
    for number in range(2 * MAX_SUSPECTS):
        present = processes.count_end_of_fault(present, hit, suspect(number, 0.9, f"user{number}"))
    assert len(samples(present, FAULTED)) == MAX_SUSPECTS


def test_the_last_fault_has_one_id_and_the_time_when_it_began() -> None:
    (began,) = samples(blocked_recovery(), "cuda_mps_incident_timestamp_seconds")
    assert (began.labels, began.value) == ({"daemon": DAEMON, "incident": "f2"}, AT + 3)
    for name in ("cuda_mps_fault_last_affected_clients", "cuda_mps_fault_last_affected_workload_clients"):
        present = with_incidents(incident(affected=(600,), client_details={600: faulted_client(600)}))
        assert {each.labels["incident"] for each in samples(present, name)} == {"f1"}


def test_names_with_the_same_shown_text_are_one_workload() -> None:
    """No two series may have the same labels."""
    hit = [faulted_client(number, name) for number, name in enumerate(("a\nb", "a\rb", "a\tb"))]
    present = processes.count_end_of_fault(processes.count_fault(idle(), hit), hit, suspect(2, 0.5, "a\tb"))
    assert by(present, AFFECTED, "workload") == {"a\N{REPLACEMENT CHARACTER}b": 3}
    assert by(present, SUSPECTED, "workload") == {"a\N{REPLACEMENT CHARACTER}b": 1}


def test_a_hostile_name_of_a_suspect_is_one_short_label(subtests: pytest.Subtests) -> None:
    for name in HOSTILE:
        with subtests.test(name=name):
            hit, cause = (faulted_client(600, name),), suspect(600, 0.5, name)
            present = processes.count_fault(with_incidents(incident("f1", cause)), hit)
            present = processes.count_end_of_fault(present, hit, cause)
            named = info(present)["suspect_workload"]
            assert len(named) <= LONGEST_TEXT
            assert named.isprintable()
            assert named.startswith("user/")
            assert len(text_of(present).splitlines()) == len(text_of(present).split("\n")) - 1
            assert openmetrics_of(present)
            assert promtool_check(text_of(present)) == (0, "", "")
