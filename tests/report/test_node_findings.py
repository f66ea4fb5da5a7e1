"""Findings of GPUs, logs and the exporter itself, and the order of all findings."""

from collections.abc import Callable

import pytest

from exporter.model.daemon import DaemonState
from exporter.model.node import Node
from exporter.model.observation import GpuReading
from exporter.model.reason import Reason, ReasonCode
from exporter.model.values import replace
from exporter.model.watchdog import Condition, Diagnosis, Quarantine
from exporter.report.document_parts import Severity
from exporter.report.finding import MOST_FACTS, Finding, finding_statuses
from exporter.report.node_findings import CONTRADICTED_SECONDS, findings
from exporter.report.node_status import document_of
from exporter.report.problems import DaemonProblem, Entry, NodeProblem, Situation
from tests.builders import (
    AT,
    DAEMON,
    GPU,
    GPU_BYTES,
    OTHER_GPU,
    PAUSED,
    at_work,
    changed,
    daemon_down,
    denied,
    failure,
    gpu_lost,
    gpu_reading,
    idle,
    look,
    looks,
    mig,
    no_daemon,
    no_nvml,
    node,
    process,
    reduced,
    three_clients,
    watched,
)
from tests.state.test_daemon_ends import failures
from tests.status import commands_of

LOST = Reason(ReasonCode.GPU_LOST, detail="GPU is lost")
NEVER_RAN = Diagnosis(condition=Condition.NEVER_STARTED, since=AT)
NO_DRIVER = NodeProblem.NVML_UNUSABLE.definition.label


def found_in(present: Node, *problems: Entry, at: float | None = None) -> list[Finding]:
    """Return the findings of these problems, or all."""
    found = findings(present, present.at if at is None else at)
    return [each for each in found if not problems or each.problem in problems]


@pytest.mark.parametrize(
    "present", [Node(), node(), node(DAEMON, "/run/other")], ids=["no daemon", "a daemon", "two daemons"]
)
def test_nothing_is_known_at_the_start(present: Node) -> None:
    document = document_of(present)
    assert [each.code for each in document.findings] == [NodeProblem.NOTHING_COLLECTED.code]
    assert document.severity is Severity.UNKNOWN


def test_something_is_collected_once_a_daemon_or_a_collector_is_known() -> None:
    two = node(DAEMON, "/run/other")
    known = replace(two, daemons={**two.daemons, DAEMON: replace(two.daemons[DAEMON], state=DaemonState.UP)})
    looked = reduced(look()).node
    for present in (known, looked, changed(node(), runtime__protocol=9)):
        assert not found_in(present, NodeProblem.NOTHING_COLLECTED)


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (daemon_down(), DaemonProblem.DAEMON_DOWN),
        (watched(reduced(no_daemon()).node, diagnosis=NEVER_RAN), DaemonProblem.DAEMON_NEVER_STARTED),
        (reduced(*at_work(), *failures(3)).node, DaemonProblem.SERVER_CRASH_LOOP),
        (reduced(look("process", problem=failure("x"))).node, NodeProblem.EXPORTER_CANNOT_COLLECT),
    ],
    ids=lambda each: each.name if hasattr(each, "name") else "",
)
def test_what_a_missing_driver_can_cause_follows_from_it(start: Node, problem: Entry) -> None:
    missing = look(problem=failure("no", ReasonCode.DRIVER_MISMATCH), at=start.at + 1)
    first, *others = found_in(reduced(missing, start=start).node)
    assert (first.problem, first.follows, first.severity) == (NodeProblem.NVML_UNUSABLE, None, Severity.CRITICAL)
    assert {each.follows for each in others if each.problem is problem} == {NO_DRIVER}
    assert not [each for each in others if each.follows == NO_DRIVER and each.problem is not problem]
    assert found_in(start, problem)[0].follows is None


def test_a_lost_gpu_comes_before_a_daemon_that_is_down() -> None:
    lost = GpuReading(at=AT + 16, gpu=GPU, problem=LOST)
    first, second, *_ = found_in(reduced(lost, start=daemon_down()).node)
    assert (first.problem, second.problem) == (NodeProblem.GPU_LOST, DaemonProblem.DAEMON_DOWN)


def test_a_lost_gpu_has_the_steps_for_its_cause_once() -> None:
    lost = reduced(GpuReading(at=AT + 1, gpu=GPU, problem=LOST), start=idle()).node
    (found,) = found_in(lost, NodeProblem.GPU_LOST)
    assert (found.gpu, f"nvidia-smi --gpu-reset -i {GPU}" in commands_of(found)) == (GPU, True)
    (unlisted,) = found_in(gpu_lost(), NodeProblem.GPU_LOST)
    assert (unlisted.gpu, commands_of(unlisted)) == (OTHER_GPU, ("systemctl reboot",))
    quarantine = Quarantine(at=AT, xid=79, gpu=GPU, action="RESTART_BM")
    assert commands_of(found_in(watched(lost, quarantine=quarantine), NodeProblem.GPU_LOST)[0]) == ()


def test_the_failure_of_nvml_comes_first_and_explains_the_others() -> None:
    no_xids = look("nvml_events", at=AT + 13, problem=failure("no events"))
    no_probes = look("libcuda_probes", at=AT + 13, problem=failure("no probes"))
    no_pods = look("control", at=AT + 13, problem=failure("no program"))
    found = found_in(reduced(no_probes, no_pods, no_xids, start=no_nvml()).node, NodeProblem.EXPORTER_CANNOT_COLLECT)
    cause = "NVML fails"
    assert [(each.values["source"], each.follows) for each in found] == [
        ("nvml", None),
        ("control", None),
        ("libcuda_probes", cause),
        ("nvml_events", cause),
    ]
    assert {each.outlook for each in found} == {"The exporter tries again by itself."}
    alone = reduced(no_probes, start=idle()).node
    assert [each.follows for each in found_in(alone, NodeProblem.EXPORTER_CANNOT_COLLECT)] == [None]


@pytest.mark.parametrize("source", ["nvml_events", "process"])
def test_only_the_xid_events_fail_because_of_a_lost_gpu(source: str) -> None:
    lost = GpuReading(at=AT + 1, gpu=GPU, problem=LOST)
    present = reduced(lost, look(source, at=AT + 1, problem=failure("no")), start=idle()).node
    found = found_in(present, NodeProblem.EXPORTER_CANNOT_COLLECT)
    assert [each.values["source"] for each in found] == ([] if source == "nvml_events" else [source])
    without = reduced(look(source, at=AT + 1, problem=failure("no")), start=idle()).node
    assert len(found_in(without, NodeProblem.EXPORTER_CANNOT_COLLECT)) == 1


def test_a_collector_that_is_not_paused_fails_beside_a_paused_one() -> None:
    present = reduced(look(problem=PAUSED), look("process", problem=failure("no")), start=idle()).node
    paused, failing = found_in(present)
    assert (paused.problem, failing.problem) == (NodeProblem.EXPORTER_PAUSED, NodeProblem.EXPORTER_CANNOT_COLLECT)
    assert failing.values["source"] == "process"


def test_a_gpu_that_cannot_be_read_is_reported_once_and_not_beside_a_failure_of_nvml() -> None:
    present, problem = mig(), failure("Unknown error")
    (whole, first, second) = present.gpus
    for unread, count in (((whole, first, second), 1), ((first,), 1), ((whole, first), 1), ((), 0)):
        gpus = {
            uuid: replace(gpu, reading=replace(gpu.reading, problem=problem if uuid in unread else None))
            for uuid, gpu in present.gpus.items()
        }
        found = found_in(replace(present, gpus=gpus), NodeProblem.GPU_UNREADABLE)
        assert len(found) == count, unread
    (found_one,) = found_in(reduced(GpuReading(at=AT + 1, gpu=GPU, problem=problem), start=idle()).node)
    assert "Unknown error" in found_one.text
    assert commands_of(found_one) == ("nvidia-smi -q", "dmesg | grep -i -e NVRM -e Xid")
    fails = (GpuReading(at=AT + 1, gpu=GPU, problem=problem), look(at=AT + 1, problem=failure("NVML")))
    assert not found_in(reduced(*fails, start=idle()).node, NodeProblem.GPU_UNREADABLE)


def test_a_gpu_that_cannot_be_read_is_as_urgent_as_its_problem() -> None:
    unread = GpuReading(at=AT + 1, gpu=GPU, problem=failure("Unknown error"))
    for observed, severities in (
        ((unread,), (Severity.CRITICAL, Severity.CRITICAL)),
        ((unread, look(at=AT + 1, problem=failure("NVML"))), (Severity.WARNING, Severity.UNKNOWN)),
    ):
        document = document_of(reduced(*observed, start=idle()).node)
        (shown,) = document.gpus
        assert (document.severity, shown.severity) == severities
        assert shown.label == "cannot be read"


@pytest.mark.parametrize(
    ("problem", "named", "situation", "commands"),
    [
        (denied, False, None, ("cuda-mps-exporter doctor",)),
        (lambda _: Reason(ReasonCode.LOG_TO_STDOUT), True, Situation.LOG_TO_STDOUT, ()),
    ],
    ids=["unreadable", "to a pipe"],
)
def test_a_log_that_is_not_followed_has_its_remedy(
    problem: Callable[[str], Reason], named: bool, situation: Situation | None, commands: tuple[str, ...]
) -> None:
    failing = changed(idle(), log__problems={file: problem(file) for file in ("server.log", "control.log")})
    first, second = found_in(failing, NodeProblem.LOG_NOT_FOLLOWED)
    assert (first.daemon, first.situation, first.commands) == (DAEMON if named else None, situation, commands)
    assert ("control.log" in first.text or named, "server.log" in second.text or named) == (True, True)
    starting = replace(failing.daemons[DAEMON], state=DaemonState.STARTING)
    assert not found_in(replace(failing, daemons={DAEMON: starting}), NodeProblem.LOG_NOT_FOLLOWED)


def test_a_contradicted_log_is_a_problem_for_an_hour() -> None:
    present = changed(idle(), log__contradicted_at=AT)
    (found,) = found_in(present, NodeProblem.LOG_CONTRADICTED, at=AT + CONTRADICTED_SECONDS)
    assert (found.since, found.daemon, commands_of(found)) == (AT, DAEMON, ("cuda-mps-exporter doctor",))
    assert CONTRADICTED_SECONDS == 3600
    assert not found_in(present, NodeProblem.LOG_CONTRADICTED, at=AT + CONTRADICTED_SECONDS + 1)


def test_a_gpu_with_several_problems_shows_the_most_urgent_one() -> None:
    reading = replace(gpu_reading({600: 14_000, 601: 120_000}), memory_used_bytes=GPU_BYTES // 100 * 97)
    full = reduced(*at_work(600, 601), *(process(pid, user=f"u{pid}") for pid in (600, 601)), reading, *looks()).node
    (gpu,) = document_of(full).gpus
    filled = NodeProblem.WORKLOAD_FILLS_MEMORY.definition
    assert (gpu.label, gpu.severity) == (filled.label, filled.severity)
    present = watched(full, quarantine=Quarantine(at=AT, xid=79, gpu=GPU, action="RESTART_BM"))
    (gpu,) = document_of(present).gpus
    assert (gpu.label, gpu.severity) == (DaemonProblem.QUARANTINED.definition.label, Severity.CRITICAL)


def test_a_finding_of_a_daemon_has_the_names_of_its_clients_only() -> None:
    present = watched(three_clients(), quarantine=Quarantine(at=AT, xid=79, gpu=GPU, action="RESTART_BM"))
    (found,) = found_in(present, DaemonProblem.QUARANTINED)
    assert (found.affected, [each.split()[1] for each in found.affected_names]) == (
        "3 connected clients",
        ["600", "601", "602"],
    )


def test_a_finding_of_the_document_has_some_of_many_facts_and_names() -> None:
    many = tuple(map(str, range(MOST_FACTS + 1)))
    (status,) = finding_statuses([Finding(NodeProblem.PROCESS_BYPASSING, facts=many, affected_names=many)])
    assert (status.facts, status.affected_names) == (many[:MOST_FACTS], many[:MOST_FACTS])


def test_a_finding_of_several_daemons_has_the_facts_of_each_and_what_all_expect_once() -> None:
    wait = "It ends by itself."
    last = "It will not end by itself."
    found = (
        Finding(DaemonProblem.DAEMON_SUSPENDED, daemon=name, since=1.0, at=3.0, facts=facts, outlook=outlook)
        for name, facts, outlook in (("a", ("PID 1", "state T"), wait), ("b", ("PID 2",), wait), ("c", (), last))
    )
    (status,) = finding_statuses(found)
    what = "has been stopped by a signal or a debugger for 2.0 s"
    assert status.facts == (
        f"MPS daemon a {what}. PID 1. State T",
        f"MPS daemon b {what}. PID 2",
        f"MPS daemon c {what}. {last}",
    )
    assert status.outlook == wait
