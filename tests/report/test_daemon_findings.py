"""Findings of daemons and their servers: what is wrong, since when, who is affected, and what to do."""

from typing import Any

import pytest

from exporter.model.daemon import DaemonState
from exporter.model.identity import ProcessIdentity
from exporter.model.incident import IncidentEnd, IncidentKind, RecoveryDelay
from exporter.model.node import CollectorName, Node
from exporter.model.reason import Reason, ReasonCode
from exporter.model.server import ServerState
from exporter.model.settings import Mode
from exporter.model.values import replace
from exporter.model.watchdog import BlockReason, Condition, Diagnosis, Quarantine, WatchdogPhase
from exporter.report.daemon_findings import STATE_PROBLEMS
from exporter.report.document_parts import Severity
from exporter.report.finding import COUNTED_SECONDS, Finding, severity_and_label
from exporter.report.incident_findings import ALERT_SECONDS, PAGED_SECONDS, recovered
from exporter.report.node_findings import findings
from exporter.report.problems import BLOCK_PROBLEMS, DaemonProblem, Entry, NodeProblem, Situation
from exporter.watchdog.context import DaemonPolicy, Policy
from tests.builders import (
    AT,
    CONTROL,
    DAEMON,
    GPU,
    GPU_BYTES,
    OTHER_GPU,
    SERVER,
    at_work,
    backing_off,
    changed,
    circuit_open,
    daemon_down,
    daemon_process,
    failure,
    faulted_client,
    gpu_reading,
    idle,
    incident,
    look,
    node,
    process,
    reduced,
    silence,
    standing,
    three_clients,
    watched,
    with_fields,
    with_incidents,
    with_living,
)
from tests.state.test_daemon_ends import failures
from tests.status import commands_of

ACTS = Policy(mode=Mode.ACT, daemon_policies={DAEMON: DaemonPolicy(command=("start",))})


def found_in(present: Node, *problems: Entry, policy: Policy | None = None, at: float | None = None) -> list[Finding]:
    """Return the findings of these problems, or all."""
    found = findings(present, present.at if at is None else at, policy)
    return [each for each in found if not problems or each.problem in problems]


def diagnosed(present: Node, condition: Condition, **known: Any) -> Node:
    """Return the node with this diagnosis of its daemon since AT, and these other values of the watchdog."""
    return watched(present, diagnosis=Diagnosis(condition=condition, since=AT), **known)


# -- faults ------------------------------------------------------------------------------------------------------------


def in_fault(present: Node, *servers: int) -> Node:
    """Return the node with servers in FAULT."""
    known = present.daemons[DAEMON].servers
    return changed(present, servers={pid: replace(known[SERVER], pid=pid, state=ServerState.FAULT) for pid in servers})


def test_a_server_in_fault_without_an_incident_is_a_problem() -> None:
    present = in_fault(three_clients(), SERVER)
    (found,) = found_in(present, DaemonProblem.SERVER_FAULT)
    assert (found.daemon, found.server, found.situation) == (DAEMON, SERVER, Situation.FAULT_WITHOUT_INCIDENT)
    assert (found.affected, [each.split()[1] for each in found.affected_names]) == ("3 clients", ["600", "601", "602"])
    with_its_own = with_incidents(incident(), start=in_fault(three_clients(), SERVER, 514))
    assert [each.server for each in found_in(with_its_own, DaemonProblem.SERVER_FAULT)] == [SERVER, 514]
    over = with_incidents(incident(ended_at=AT + 4, ending=IncidentEnd.RECOVERED), start=present)
    assert [each.situation for each in found_in(over, DaemonProblem.SERVER_FAULT)] == [found.situation]
    assert not found_in(three_clients(), DaemonProblem.SERVER_FAULT)


def blocked_by(*pids: int, affected: int = 20, **known: Any) -> Node:
    """Return an open fault that affected clients from PID 600 on, and whose recovery some of them block."""
    everyone = range(600, 600 + affected)
    clients = {pid: faulted_client(pid) for pid in everyone}
    blocking = {pid: RecoveryDelay(since=AT + 4) for pid in pids}
    struck = incident(affected=tuple(everyone), client_details=clients, blocking=blocking, **known)
    start = reduced(daemon_process(), *at_work(*everyone), *(process(pid, ticks=1) for pid in everyone)).node
    return with_living(with_incidents(struck, start=start), *clients.values())


@pytest.mark.parametrize(
    ("pids", "text", "client"),
    [
        ((601,), "; PID 601 blocks recovery", 601),
        ((610, 605), "; 2 clients block recovery", 610),
        ((), "", None),
        (tuple(range(600, 617)), "; 17 clients block recovery", 600),
    ],
)
def test_a_fault_names_what_blocks_recovery_and_ends_it(pids: tuple[int, ...], text: str, client: int | None) -> None:
    (found,) = found_in(blocked_by(*pids), DaemonProblem.SERVER_FAULT, policy=ACTS)
    assert (text in found.text, "recovery" in found.text, found.client) == (True, bool(pids), client)
    assert (found.since, found.affected, len(found.affected_names)) == (
        AT + 3,
        "20 clients; new clients are refused",
        20,
    )
    assert [each.endswith(", which blocks recovery") for each in found.affected_names].count(True) == len(pids)
    assert [f"PID {pid}" in each for pid, each in zip(pids, found.affected_names, strict=False)] == [True] * len(pids)
    assert "The server recovers after the exit of the last affected client." in found.outlook
    each_alone = tuple(f"kill -KILL {pid}" for pid in pids)
    assert commands_of(found) == (each_alone if len(pids) < 17 else (f"kill -KILL {' '.join(map(str, pids))}",))
    assert [step.ends for step in found.steps] == ([len(pids)] if pids else [])
    assert found.situation is (None if pids else Situation.CLIENTS_ENDING)


def test_a_server_that_is_stuck_is_ended_with_the_clients_that_it_has_now() -> None:
    (found,) = found_in(blocked_by(stuck=True), DaemonProblem.SERVER_FAULT)
    assert [(step.text, step.ends) for step in found.steps] == [(Situation.SERVER_STUCK.value, 20)]
    assert "shutdown_server 513 -f" in commands_of(found)[0]
    assert "recovers after" not in found.outlook
    faults = (incident("ending"), incident("stuck", server=514, stuck=True))
    order = found_in(with_incidents(*faults, start=idle()), DaemonProblem.SERVER_FAULT)
    assert [each.server for each in order] == [514, SERVER], "the first is that which a command can end"


def test_names_the_healthy_clients_that_would_end_with_a_stuck_server() -> None:
    """A fault on one of several GPUs does not affect those on the others."""
    present = blocked_by(stuck=True, affected=5)
    struck = {name: replace(each, affected=(600, 601, 602)) for name, each in present.incidents.items()}
    (found,) = found_in(replace(present, incidents=struck), DaemonProblem.SERVER_FAULT)
    wait, end = found.steps
    assert all(f"PID {pid} " in wait.text for pid in (603, 604))
    assert (wait.commands, end.ends) == ((), 5)


def test_a_fault_with_unknown_clients_does_not_affect_none() -> None:
    """Without the log, an Xid and a common GPU, they are unknown."""
    for known in ({}, {"ended_at": AT + 4, "ending": IncidentEnd.RECOVERED}):
        (found,) = found_in(with_incidents(incident(**known), start=idle()))
        assert found.affected.startswith("an unknown number of clients")
        assert "0 clients" not in found.text


def ended(seconds: float) -> Node:
    """Return a fault that ended after so many seconds, and after which a client still ran."""
    blocking = {601: RecoveryDelay(since=AT + 4)}
    return with_incidents(
        incident(affected=(600, 601), blocking=blocking, ended_at=AT + 3 + seconds, ending=IncidentEnd.RECOVERED)
    )


@pytest.mark.parametrize(
    ("seconds", "problem"),
    [(PAGED_SECONDS - 1, DaemonProblem.FAULT), (PAGED_SECONDS, DaemonProblem.FAULT_LASTED)],
)
def test_a_fault_that_lasted_is_another_problem_than_a_short_one(seconds: float, problem: Entry) -> None:
    (found,) = recovered(ended(seconds), AT + 3 + seconds + ALERT_SECONDS - 1)
    assert (found.problem, found.since, found.server, found.affected) == (problem, AT + 3, SERVER, "2 clients")
    assert not any("blocks" in each for each in found.affected_names)
    assert not list(recovered(ended(seconds), AT + 3 + seconds + ALERT_SECONDS))


# -- daemons that are up again -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("down_for", "problem"),
    [(PAGED_SECONDS - 1, DaemonProblem.DAEMON_DIED), (PAGED_SECONDS, DaemonProblem.DAEMON_WAS_DOWN)],
)
def test_a_daemon_that_was_down_for_long_had_another_alert(down_for: float, problem: Entry) -> None:
    back = AT + down_for
    known: dict[str, object] = {"last_loss_at": AT, "clients_at_end": frozenset({602, 600}), "state_since": back}
    over = {"affected": (600, 602), "affected_confirmed": True, "ended_at": back, "ending": IncidentEnd.RECOVERED}
    record = incident(at=AT, server=0, kind=IncidentKind.DAEMON_DIED, **over)
    present = changed(with_incidents(record), **{f"lifecycle__{name}": value for name, value in known.items()})
    (found,) = recovered(present, back + ALERT_SECONDS - 1)
    assert (found.problem, found.since, found.affected) == (problem, AT, "2 clients ended")
    assert [each.split()[1] for each in found.affected_names] == ["600", "602"]
    assert commands_of(found) == (f"tail -n 30 {DAEMON}/log/control.log",)
    assert not list(recovered(present, back + ALERT_SECONDS))


@pytest.mark.parametrize("ended_at", [None, AT + 49])
def test_a_restart_that_ended_clients_names_them(ended_at: float | None) -> None:
    present = changed(
        three_clients(), lifecycle__watchdog_ended_at=ended_at, lifecycle__clients_at_end=frozenset({600})
    )
    restarted = watched(changed(present, lifecycle__state_since=AT + 60), last_restart_at=AT + 50)
    (found,) = recovered(restarted, AT + 60 + COUNTED_SECONDS - 1)
    assert (found.problem, found.since) == (DaemonProblem.DAEMON_RESTARTED, AT + 50)
    assert found.affected == ("" if ended_at is None else "1 client ended")
    assert not list(recovered(restarted, AT + 60 + COUNTED_SECONDS))


# -- states and conditions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", BLOCK_PROBLEMS)
def test_a_lock_is_a_problem_only_if_the_watchdog_would_act(block: BlockReason) -> None:
    locked, problem = replace(ACTS, locks={DAEMON: block}), BLOCK_PROBLEMS[block]
    assert [each.daemon for each in found_in(idle(), problem, policy=locked)] == [DAEMON]
    unexpected = changed(idle(), declared__expected=False)
    for present, policy in ((idle(), replace(locked, mode=Mode.OBSERVE)), (unexpected, locked), (idle(), ACTS)):
        assert not found_in(present, *BLOCK_PROBLEMS.values(), policy=policy)


@pytest.mark.parametrize(("phase", "since"), [(WatchdogPhase.CIRCUIT_OPEN, AT + 1), (WatchdogPhase.STATE_LOST, AT + 2)])
def test_suspended_restarts_of_a_daemon_that_is_up_have_the_steps_to_resume(phase: WatchdogPhase, since: float) -> None:
    present = watched(idle(), phase=phase, circuit_opened_at=AT + 1, state_lost_at=AT + 2)
    (found,) = found_in(present, policy=ACTS)
    assert (found.since, found.outlook.startswith("The watchdog: ")) == (since, True)
    logs = (f"tail -n 30 {DAEMON}/log/control.log {DAEMON}/log/server.log",)
    assert found.steps[0].commands == (logs if phase is WatchdogPhase.CIRCUIT_OPEN else ())
    assert (found.steps[-1].commands, found.steps[-1].ends) == ((f"cuda-mps-exporter resume {DAEMON}",), 0)


@pytest.mark.parametrize("mode", Mode)
def test_a_daemon_is_started_by_hand_only_if_the_watchdog_will_not(mode: Mode) -> None:
    """After `resume`, a watchdog that acts starts it."""
    policy, start = replace(ACTS, mode=mode), " start"
    (found,) = found_in(circuit_open(), DaemonProblem.DAEMON_DOWN, policy=policy)
    assert [command for command in commands_of(found) if command.endswith(start)] == (
        [] if mode is Mode.ACT else [commands_of(found)[-1]]
    )
    (waiting,) = found_in(backing_off(), DaemonProblem.DAEMON_DOWN, policy=policy)
    assert waiting.steps[0].text == "Wait for the restart."
    assert not any(command.endswith(start) for command in commands_of(waiting))


def test_a_daemon_that_is_down_is_started_and_what_bypasses_it_restarted() -> None:
    unit = "0::/system.slice/jupyter.service\n"
    bypassing = replace(process(801, user="carol", cgroup=unit), unit_users=(1001,))
    (found,) = found_in(reduced(bypassing, start=daemon_down()).node, DaemonProblem.DAEMON_DOWN, policy=ACTS)
    start, ended, rerun, cause = found.steps
    assert ended.text.startswith("Restart the clients that ended")
    assert (start.text, start.commands[0].endswith(" start"), start.ends) == ("Start the daemon.", True, 0)
    assert rerun.commands == ("systemctl restart jupyter.service",)
    assert cause.commands == (f"tail -n 30 {DAEMON}/log/control.log",)
    (without,) = found_in(changed(daemon_down(), runtime__in_foreign_namespace=True), DaemonProblem.DAEMON_DOWN)
    assert "Delete its pod" in without.steps[0].text
    assert (without.steps[0].commands, without.steps[0].ends) == ((), None)
    assert found.affected == "3 clients ended"


def test_a_daemon_in_quarantine_is_not_started_before_its_gpu_is_reset() -> None:
    present = watched(daemon_down(), quarantine=Quarantine(at=AT, xid=79, gpu=GPU, action="RESTART_BM"))
    (down,) = found_in(present, DaemonProblem.DAEMON_DOWN, policy=ACTS)
    assert not any(command.endswith(" start") for command in commands_of(down))
    (quarantined,) = found_in(present, DaemonProblem.QUARANTINED, policy=ACTS)
    first, *_, last = commands_of(quarantined)
    assert (first, last) == ("systemctl reboot", f"cuda-mps-exporter resume {DAEMON}")
    for start, stops in ((daemon_down(), False), (idle(), True)):
        needs_reset = watched(start, quarantine=Quarantine(at=AT, xid=95, gpu=GPU, action="RESET_GPU"))
        (quarantined,) = found_in(needs_reset, DaemonProblem.QUARANTINED, policy=ACTS)
        assert any(step.text.startswith("Stop MPS") for step in quarantined.steps) is stops


HUNG = reduced(daemon_process(), *at_work(600, 601), silence(at=AT + 5), silence(at=AT + 10)).node


@pytest.mark.parametrize(
    ("policy", "phase", "texts"),
    [
        (None, WatchdogPhase.IDLE, ["Resume its process, if that is stopped.", "If it still does not answer"]),
        (ACTS, WatchdogPhase.IDLE, ["Resume its", "If the watchdog does not restart the daemon, restart it."]),
        (ACTS, WatchdogPhase.ACTING, ["Wait for the restart."]),
    ],
)
def test_a_hung_daemon_is_restarted_unless_that_happens_by_itself(
    policy: Policy | None, phase: WatchdogPhase, texts: list[str]
) -> None:
    present = diagnosed(HUNG, Condition.UNRESPONSIVE, phase=phase)
    (found,) = found_in(present, DaemonProblem.DAEMON_UNRESPONSIVE, policy=policy)
    assert [step.text.startswith(text) for step, text in zip(found.steps, texts, strict=False)] == [True] * len(texts)
    assert (len(found.steps), found.since) == (len(texts) + 1, AT)
    ends = {step.ends for step in found.steps if "estart" in step.text and step.commands}
    assert ends == (set() if phase is WatchdogPhase.ACTING else {2})


@pytest.mark.parametrize(("state", "resumes"), [("T", True), ("S", False), ("D", False)])
def test_only_a_process_that_may_be_stopped_is_resumed(state: str, resumes: bool) -> None:
    present = reduced(standing(state, at=AT + 11), start=HUNG).node
    (found,) = found_in(present, DaemonProblem.DAEMON_UNRESPONSIVE)
    assert (f"kill -CONT {CONTROL}" in commands_of(found)) is resumes
    gone = changed(HUNG, runtime__process=None)
    assert not any("-CONT" in each for each in commands_of(found_in(gone, DaemonProblem.DAEMON_UNRESPONSIVE)[0]))


def test_a_problem_of_a_diagnosis_shows_its_process_and_indications() -> None:
    indications = (Reason(ReasonCode.SERVER_SUSPENDED, server=SERVER, state="T"), Reason(ReasonCode.DAEMON_UNANSWERING))
    server = ProcessIdentity(pid=SERVER, start_ticks=SERVER * 100)
    known = Diagnosis(
        condition=Condition.SERVER_SUSPENDED, since=AT, indications=indications, process=server, server=SERVER
    )
    failed = Reason(ReasonCode.DAEMON_MISSING)
    (found,) = found_in(
        watched(three_clients(), diagnosis=known, problem=failed, restarts=(AT, AT + 1)), DaemonProblem.SERVER_SUSPENDED
    )
    first, problem, last = found.facts
    assert first.startswith(f"PID {SERVER} (nvidia-cuda-mps-server")
    assert problem.startswith("the last action of the watchdog failed: ")
    assert last.startswith("indications: ")
    assert found.notes == ("restarted 2 times",)
    assert [(step.commands, step.ends) for step in found.steps] == [((f"kill -CONT {SERVER}",), 0)]
    other = replace(known, process=replace(server, start_ticks=1))
    (found,) = found_in(watched(three_clients(), diagnosis=other), DaemonProblem.SERVER_SUSPENDED)
    assert found.facts[0] == f"PID {SERVER}", "another process has the PID"
    assert commands_of(found) == ()


def test_the_end_of_a_server_that_does_not_answer_ends_its_clients() -> None:
    server = ProcessIdentity(pid=SERVER, start_ticks=SERVER * 100)
    known = Diagnosis(condition=Condition.SERVER_UNRESPONSIVE, since=AT, process=server, server=SERVER)
    (found,) = found_in(watched(three_clients(), diagnosis=known), DaemonProblem.SERVER_UNRESPONSIVE)
    assert [(step.commands, step.ends) for step in found.steps] == [((f"kill -KILL {SERVER}",), 3)]
    elsewhere = watched(three_clients(), diagnosis=replace(known, server=77))
    assert found_in(elsewhere, DaemonProblem.SERVER_UNRESPONSIVE)[0].steps[0].ends is None


def crash_looping(*extra: Any, own: int = 600) -> Node:
    """Return a daemon of a GPU in exclusive mode whose servers exit early, with a client left."""
    seen = (daemon_process(), *at_work(own), *extra, *failures(3))
    return reduced(*seen, process(own), process(801, user="carol")).node


def test_a_crash_loop_names_what_prevents_a_start() -> None:
    exclusive = {"compute_mode": "exclusive_process"}
    own = crash_looping(gpu_reading([600], **exclusive))
    other = crash_looping(gpu_reading([600], beside=[801], **exclusive))
    shared = crash_looping(gpu_reading([600], beside=[801]))
    (found,) = found_in(own, DaemonProblem.SERVER_CRASH_LOOP)
    assert not any("EXCLUSIVE_PROCESS" in fact for fact in found.facts), "its own client prevents nothing"
    (found,) = found_in(other, DaemonProblem.SERVER_CRASH_LOOP)
    (blamed,) = (fact for fact in found.facts if "EXCLUSIVE_PROCESS" in fact)
    assert blamed.startswith("PID 801 (train.py of carol) uses GPU 0 (GPU-1efa3f60) without this daemon, ")
    (found,) = found_in(shared, DaemonProblem.SERVER_CRASH_LOOP)
    assert not any("EXCLUSIVE_PROCESS" in fact for fact in found.facts)
    assert found.since == shared.daemons[DAEMON].connections.failed_starts.started_at[0]
    assert "the last server exited " in found.facts[0]
    assert commands_of(found)[1:] == ("dmesg | grep -i -e NVRM -e Xid", "cuda-mps-exporter doctor")


@pytest.mark.parametrize(("percent", "full"), [(95, False), (96, True)])
def test_a_crash_loop_on_a_full_gpu_says_so(percent: int, full: bool) -> None:
    used = replace(gpu_reading([600]), memory_used_bytes=GPU_BYTES // 100 * percent)
    elsewhere = replace(gpu_reading(gpu=OTHER_GPU, index=1), memory_used_bytes=GPU_BYTES)
    on_first = reduced(start=crash_looping(used, elsewhere)).node
    on_first = changed(on_first, runtime__visible_devices=GPU, runtime__devices={0: GPU})
    (found,) = found_in(on_first, DaemonProblem.SERVER_CRASH_LOOP)
    full_gpus = [fact for fact in found.facts if "is full" in fact]
    assert full_gpus == (["the memory of GPU 0 (GPU-1efa3f60) is full: 5775 MiB are free"] if full else [])
    unsure = changed(on_first, runtime__devices={}, runtime__seen_on=frozenset(), runtime__visible_devices=None)
    assert not [fact for fact in found_in(unsure, DaemonProblem.SERVER_CRASH_LOOP)[0].facts if "is full" in fact]


@pytest.mark.parametrize(("after", "problem"), [(60.0, "DAEMON_UNKNOWN"), (61.0, "DAEMON_STATE_UNKNOWN")])
def test_a_daemon_may_take_a_minute_to_answer(after: float, problem: str) -> None:
    present = replace(node(), began_at=AT, sources=reduced(look()).node.sources)
    (found,) = found_in(present, at=AT + after)
    assert found.problem is DaemonProblem[problem]
    assert found.since == (AT if after > 60 else None)
    assert ("cuda-mps-exporter doctor" in commands_of(found)) is (after > 60)
    began = changed(present, commands__unanswered_since=AT + 30)
    assert found_in(began, at=AT + 90)[0].problem is DaemonProblem.DAEMON_UNKNOWN


@pytest.mark.parametrize("state", STATE_PROBLEMS)
def test_a_state_without_a_diagnosis_is_the_problem(state: DaemonState) -> None:
    (found,) = found_in(changed(idle(), state=state, lifecycle__state_since=AT + 1, lifecycle__last_loss_at=AT + 1))
    assert (found.problem, found.since) == (STATE_PROBLEMS[state], AT + 1)


def test_a_daemon_that_died_before_the_exporter_started_has_been_down_since_its_recorded_death() -> None:
    present = changed(idle(), state=DaemonState.DOWN, lifecycle__state_since=AT + 1)
    (found,) = found_in(present)
    assert (found.since, found.affected) == (None, ""), "it may have been down for hours"
    death = incident("d1", at=AT - 90, server=0, kind=IncidentKind.DAEMON_DIED, affected=(7, 8), ended_at=None)
    (found,) = found_in(replace(present, incidents={death.id: death}), DaemonProblem.DAEMON_DOWN)
    assert found.since == AT - 90
    assert found.affected.startswith("2 clients ended")


def test_a_daemon_that_cannot_be_queried_says_why() -> None:
    control = CollectorName.CONTROL

    def with_problem(present: Node) -> Node:
        source = reduced(look(control)).node.sources[control]
        problems = {DAEMON: failure("no program")}
        return replace(present, sources={**present.sources, control: replace(source, problems=problems)})

    down = with_problem(daemon_down())
    (found,) = found_in(down, DaemonProblem.DAEMON_DOWN)
    assert found.notes[-1].startswith("it cannot be queried: ")
    assert [step.text for step in found.steps] == [Situation.CANNOT_QUERY.value]
    (unknown,) = found_in(with_problem(node()), DaemonProblem.DAEMON_NOT_QUERIED)
    assert (unknown.notes, commands_of(unknown)) == ((), ("cuda-mps-exporter doctor",))
    (hung,) = found_in(with_problem(HUNG), DaemonProblem.DAEMON_UNRESPONSIVE)
    assert not any("cannot be queried" in note for note in hung.notes), "it was queried, and did not answer"


def test_a_blocked_log_is_repaired_by_a_restart_that_ends_clients() -> None:
    own = replace(three_clients().daemons[DAEMON].log.own_commands, blocked_since=AT + 1)
    (found,) = found_in(changed(three_clients(), log__own_commands=own), NodeProblem.LOG_BLOCKED, policy=ACTS)
    assert (found.since, found.daemon, found.affected) == (AT + 1, DAEMON, "no client")
    assert (found.steps[0].commands[-1].endswith(" start"), found.steps[0].ends) == (True, 3)


def test_reports_the_clients_that_wait_for_another_user() -> None:
    waiting = changed(
        three_clients(), connections__waiting={602: AT, 601: AT - 9}, connections__queued={601: 1002, 602: 1001}
    )
    (found,) = found_in(replace(waiting, began_at=AT - 60), NodeProblem.CLIENTS_WAITING)
    assert (found.affected, [each.split()[1] for each in found.affected_names]) == ("2 clients", ["601", "602"])
    assert found.since == AT - 9
    assert found.facts == ()
    assert found.steps[0].commands == ()


def test_names_the_clients_for_which_another_user_waits_and_ends_them_together() -> None:
    """A client of the waiting user itself, or of an unknown one, is not hidden or ended by mistake."""
    waiting = changed(three_clients(), connections__waiting={700: AT}, connections__queued={700: 1002})
    (found,) = found_in(waiting, NodeProblem.CLIENTS_WAITING)
    assert [each.partition(", ")[0] for each in found.facts] == [
        "PID 600 (train.py of alice) occupies the server",
        "PID 602 (eval.py of alice) occupies the server",
    ]
    assert (found.steps[0].commands, found.steps[0].ends) == (("kill -TERM 600 602",), 2)


@pytest.mark.parametrize(
    ("state", "expected", "severity"),
    [
        (DaemonState.UP, True, Severity.WELL),
        (None, True, Severity.UNKNOWN),
        (DaemonState.DOWN, True, Severity.CRITICAL),
        (DaemonState.DOWN, False, Severity.WARNING),
        (DaemonState.UNRESPONSIVE, True, Severity.CRITICAL),
        (DaemonState.UNRESPONSIVE, False, Severity.WARNING),
        (DaemonState.STOPPED, True, Severity.WARNING),
        (DaemonState.HELD, True, Severity.WARNING),
    ],
)
def test_a_daemon_has_the_severity_of_its_state_or_of_a_more_urgent_finding(
    state: DaemonState | None, expected: bool, severity: Severity
) -> None:
    daemon = with_fields(idle().daemons[DAEMON], state=state, declared__expected=expected)
    name = "unknown" if state is None else state.value
    assert severity_and_label(daemon, ()) == (severity, name)
    warning, critical = Finding(DaemonProblem.DAEMON_STOPPED), Finding(DaemonProblem.QUARANTINED)
    assert severity_and_label(daemon, (warning, critical)) == (severity, name), "they are of other daemons"
    own = (replace(warning, daemon=DAEMON), replace(critical, daemon=DAEMON))
    label = name if severity is Severity.CRITICAL else DaemonProblem.QUARANTINED.definition.label
    assert severity_and_label(daemon, own) == (Severity.CRITICAL, label)
    unsupported = with_fields(daemon, state=None, runtime__protocol=9)
    assert severity_and_label(unsupported, ()) == (Severity.WARNING, "unsupported")
