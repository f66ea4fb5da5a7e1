"""Several witnesses, and what they make together: never one of them alone."""

from dataclasses import replace
from itertools import count
from random import Random
from typing import Any, NamedTuple

import pytest

from exporter.model.action import Action, EndProcess, RunCommand
from exporter.model.daemon import DaemonState
from exporter.model.event import EventName
from exporter.model.identity import ProcessIdentity
from exporter.model.node import Node
from exporter.model.observation import ControlSocket, DaemonFound, DaemonProcess, LogFile, LogGap, Observation
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import DEVICE_ORDER, VISIBLE_DEVICES, PollIntervals
from exporter.model.watchdog import BlockReason, Condition
from exporter.parse.proc import MpsProgram, mps_program
from exporter.report.node_findings import findings
from exporter.state import poll_schedule
from exporter.watchdog.context import block_reasons
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    FAULT_BLOCK,
    SERVER,
    active,
    at_work,
    clients,
    control_log,
    daemon_process,
    exited,
    failure,
    gpu_reading,
    look,
    no_daemon,
    node,
    probe,
    process,
    reduced,
    refusal,
    server_log,
    servers,
    silence,
    status,
)
from tests.state.test_daemon_ends import failures
from tests.watchdog.watched_daemon import (
    BY_UNIT,
    COMMAND,
    DEATH,
    HUNG,
    KILL,
    NEXT,
    WatchedDaemon,
    alive,
    asks_a_server,
    deaf,
    dies,
    hangs,
    holder,
    left,
    quits,
    returns,
    silences,
    suspended,
    unit,
)

UNREAD = (daemon_process(), *(each for each in at_work() if not hasattr(each, "line")))
"""A daemon whose log cannot be read."""


UNCONNECTED = Reason(ReasonCode.CONNECTIONS_UNANSWERED)
GONE = Reason(ReasonCode.PROCESS_GONE, pid=CONTROL)
UNANSWERED = Reason(ReasonCode.COMMANDS_UNANSWERED)
ALIVE = Reason(ReasonCode.PROCESS_ALIVE, pid=CONTROL)
UNANSWERING = Reason(ReasonCode.DAEMON_UNANSWERING)
REFUSED = Reason(ReasonCode.COMMANDS_REFUSED)
QUERIED = Reason(ReasonCode.SERVER_QUERIED, server=SERVER)
STOPPED = Reason(ReasonCode.PROCESS_SUSPENDED, pid=CONTROL, state="T")
SERVER_STOPPED = Reason(ReasonCode.SERVER_SUSPENDED, server=SERVER, state="T")
IN_FAULT = Reason(ReasonCode.SERVER_IN_FAULT, server=SERVER)
HANG = (UNANSWERED, ALIVE, UNCONNECTED)


class Case(NamedTuple):
    """What is seen of a daemon that was well, and what is the matter with it then."""

    seen: tuple[Observation, ...]
    condition: Condition
    indications: tuple[Reason, ...] = ()
    pid: int | None = None
    start: tuple[Observation, ...] = ()


FAULT = (*server_log(*FAULT_BLOCK, at=DEATH), status("FAULT", at=DEATH))
CASES = {
    "nothing": Case((), Condition.WELL),
    "one command without an answer": Case((silence(at=DEATH),), Condition.WELL),
    "a collision": Case((refusal(at=DEATH),), Condition.WELL),
    "its process ends, and its log has no quit": Case(
        dies(),
        Condition.DOWN,
        (GONE, Reason(ReasonCode.LOG_ENDS_WITHOUT_QUIT)),
    ),
    "its process ends": Case((exited(CONTROL, at=DEATH),), Condition.UNKNOWN, (GONE,)),
    "its process ends, and its log cannot be read": Case(
        (exited(CONTROL, at=DEATH), look("log", at=DEATH + 2)),
        Condition.UNKNOWN,
        (GONE,),
        start=UNREAD,
    ),
    "and a command finds none": Case(
        (exited(CONTROL, at=DEATH), no_daemon(at=DEATH + 2)),
        Condition.DOWN,
        (GONE, Reason(ReasonCode.NO_DAEMON_FOUND)),
        start=UNREAD,
    ),
    "and its pid file stays": Case(
        (exited(CONTROL, at=DEATH), left(DEATH + 2)),
        Condition.DOWN,
        (GONE, Reason(ReasonCode.PID_FILE_LEFT)),
        start=UNREAD,
    ),
    "and no process listens": Case(
        (exited(CONTROL, at=DEATH), deaf(DEATH + 2)),
        Condition.DOWN,
        (GONE, Reason(ReasonCode.NO_LISTENER)),
        start=UNREAD,
    ),
    "and its pid file is gone": Case(
        (exited(CONTROL, at=DEATH), left(DEATH + 2, behind=False), no_daemon(at=DEATH + 3)),
        Condition.STOPPED,
        (Reason(ReasonCode.NO_PID_FILE_LEFT),),
        start=UNREAD,
    ),
    "an operator quits it": Case(quits(), Condition.STOPPED, (Reason(ReasonCode.QUIT_RECEIVED),)),
    "signals stop it, and it answers": Case((suspended(),), Condition.WELL),
    "signals stop it, and it does not answer": Case(
        (suspended(), silence(at=DEATH + 5)),
        Condition.SUSPENDED,
        (STOPPED, UNANSWERING),
        CONTROL,
    ),
    "a debugger stops it": Case(
        (suspended(state="t"), *silences()),
        Condition.SUSPENDED,
        (Reason(ReasonCode.PROCESS_SUSPENDED, pid=CONTROL, state="t"), UNANSWERING),
        CONTROL,
    ),
    "another process was stopped": Case((replace(suspended(), start_ticks=1), silence(at=DEATH + 5)), Condition.WELL),
    "it does not answer": Case(silences(), Condition.UNRESPONSIVE, HANG),
    "and no process listens either": Case(
        (*silences(), deaf(DEATH + 11)),
        Condition.UNRESPONSIVE,
        (
            *HANG,
            Reason(ReasonCode.NO_LISTENER),
        ),
    ),
    "it sleeps in the kernel": Case(
        (suspended(state="D"), *silences()),
        Condition.STUCK_IN_DRIVER,
        (Reason(ReasonCode.PROCESS_STUCK_IN_KERNEL, pid=CONTROL), UNANSWERING),
        CONTROL,
    ),
    "its server sleeps in the kernel": Case(
        (suspended(SERVER, state="D"), *silences()),
        Condition.STUCK_IN_DRIVER,
        (Reason(ReasonCode.PROCESS_STUCK_IN_KERNEL, pid=SERVER), UNANSWERING),
        SERVER,
    ),
    "its server sleeps for a moment": Case((suspended(SERVER, state="D"),), Condition.WELL),
    "its server was stopped": Case(
        (suspended(SERVER), look("log", at=DEATH + 2)),
        Condition.SERVER_SUSPENDED,
        (SERVER_STOPPED, Reason(ReasonCode.DAEMON_NOT_WAITING)),
        SERVER,
    ),
    "its server was stopped for a moment": Case((suspended(SERVER),), Condition.WELL),
    "its server was stopped, and it hangs": Case(
        (suspended(SERVER), *silences()),
        Condition.SERVER_SUSPENDED,
        (SERVER_STOPPED, UNANSWERING),
        SERVER,
    ),
    "it asks its server, which does not answer": Case(
        (*asks_a_server(), *silences()),
        Condition.SERVER_UNRESPONSIVE,
        (UNANSWERED, QUERIED),
        SERVER,
    ),
    "it asks all its servers, and there is one": Case(
        (*asks_a_server("ps"), *silences()),
        Condition.SERVER_UNRESPONSIVE,
        (UNANSWERED, QUERIED),
        SERVER,
    ),
    "it had asked its server, and got the answer": Case(
        (servers(SERVER, at=DEATH - 0.2), status("ACTIVE", at=DEATH - 0.1), *silences()),
        Condition.UNRESPONSIVE,
        HANG,
    ),
    "it was asked for a server that is not there": Case(
        (*asks_a_server("get_client_list 514"), *silences()),
        Condition.UNRESPONSIVE,
        HANG,
    ),
    "it is not known to have answered just before it asked its server": Case(
        (silence(at=DEATH + 5, command=f"get_server_status {SERVER}"), *silences(DEATH + 1)),
        Condition.UNRESPONSIVE,
        HANG,
    ),
    "only its log shows a query of its server": Case(
        (*control_log("NEW UI", f"Cmd:get_server_status {SERVER}", at=DEATH), *silences()),
        Condition.UNRESPONSIVE,
        (
            *HANG,
            Reason(ReasonCode.LOG_ENDS_WITH_QUERY, server=SERVER),
        ),
    ),
    "lines were lost after its log showed a query of its server": Case(
        (
            *control_log("NEW UI", f"Cmd:get_server_status {SERVER}", at=DEATH),
            LogGap(at=DEATH, daemon=DAEMON, file="control.log", lines=1),
            *silences(),
        ),
        Condition.UNRESPONSIVE,
        HANG,
    ),
    "the control program gets no answer, and the daemon answers": Case(
        (silence(at=DEATH + 5), probe(True, at=DEATH + 5.1), silence(at=DEATH + 15), probe(True, at=DEATH + 15.1)),
        Condition.PROGRAM_UNRESPONSIVE,
        (Reason(ReasonCode.PROGRAM_UNANSWERED), Reason(ReasonCode.CONNECTIONS_ANSWERED)),
    ),
    "it sleeps in the kernel, and is seen where": Case(
        (replace(suspended(state="D"), wait_channel="nvidia_ioctl"), *silences()),
        Condition.STUCK_IN_DRIVER,
        (
            Reason(ReasonCode.PROCESS_STUCK_IN_KERNEL, pid=CONTROL, wait_channel="nvidia_ioctl"),
            UNANSWERING,
        ),
        CONTROL,
    ),
    "both were stopped": Case((suspended(SERVER), *hangs()), Condition.SUSPENDED, (STOPPED, UNANSWERING), CONTROL),
    "a session is open": Case((refusal(at=DEATH), refusal(at=DEATH + 3)), Condition.HELD, (REFUSED,)),
    "and its process is known": Case(
        (refusal(at=DEATH), holder(DEATH + 1), refusal(at=DEATH + 3)),
        Condition.HELD,
        (Reason(ReasonCode.SESSION_OPEN, pid=700, user="alice"), REFUSED),
        700,
    ),
    "a fault": Case(
        FAULT,
        Condition.FAULT,
        (IN_FAULT, Reason(ReasonCode.AFFECTED_CLIENTS_CONNECTED)),
        start=alive(CLIENT),
    ),
    "a fault that a client holds up": Case(
        (*FAULT, look("log", at=DEATH + 2)),
        Condition.FAULT,
        (IN_FAULT, Reason(ReasonCode.AFFECTED_CLIENTS_CONNECTED, pids=(600,))),
        start=alive(CLIENT),
    ),
    "servers that cannot start": Case(
        failures(3, at=DEATH),
        Condition.CRASH_LOOP,
        (Reason(ReasonCode.SERVERS_EXITED_EARLY, count=3), Reason(ReasonCode.NO_SERVER_STARTED)),
    ),
    "they could not, long ago": Case((*failures(3, at=DEATH), look("log", at=DEATH + 400)), Condition.WELL),
}


def test_diagnoses_the_condition_with_its_indications(subtests: pytest.Subtests) -> None:
    for case in CASES.values():
        with subtests.test(case=case):
            post = WatchedDaemon(*(case.start or alive())).observe(*case.seen)
            found = post.diagnosis
            assert (found.condition, found.indications) == (case.condition, case.indications)
            assert (None if found.process is None else found.process.pid) == case.pid


def test_the_condition_is_unknown_before_the_first_observation() -> None:
    assert WatchedDaemon(look("log")).condition is Condition.UNKNOWN


def test_a_daemon_that_never_ran_is_not_down() -> None:
    post = WatchedDaemon(no_daemon(), left(AT + 1), deaf(AT + 1), no_daemon(at=AT + 20))
    assert (post.condition, post.actions, post.watch.process) == (Condition.NEVER_STARTED, [], None)


def test_the_state_of_the_unit_shows_a_stop(subtests: pytest.Subtests) -> None:
    for seen, condition in [
        (unit("inactive"), Condition.STOPPED),
        (unit("inactive", result="signal"), Condition.DOWN),
        (unit("inactive", at=DEATH - 1), Condition.DOWN),
        (unit("failed", result="signal"), Condition.DOWN),
        (unit("inactive", problem=failure("Permission denied")), Condition.DOWN),
    ]:
        with subtests.test(seen=seen, condition=condition):
            post = WatchedDaemon(daemon_policy=BY_UNIT).observe(*dies(), seen)
            post.until(DEATH + 3)
            assert post.condition is condition


def test_ignores_a_unit_that_the_daemon_did_not_run_in() -> None:
    post = WatchedDaemon(replace(daemon_process(), unit="other.service"), *alive()[1:], daemon_policy=BY_UNIT)
    post.observe(*dies(), unit("inactive"))
    assert post.condition is Condition.DOWN


def test_reports_a_diagnosis_once_and_its_end() -> None:
    post = WatchedDaemon().observe(*hangs())
    post.until(DEATH + 40)
    post.observe(*at_work(at=DEATH + 50))
    reported = [(each.state, each.pid) for each in post.events if each.event is EventName.DAEMON_DIAGNOSED]
    assert reported == [("suspended", CONTROL), ("well", None)]


def test_does_not_report_the_first_harmless_condition() -> None:
    post = WatchedDaemon(
        *control_log("Starting control daemon using socket /tmp/nvidia-mps/control"), *at_work(at=AT + 1)
    )
    assert (post.condition, post.reported(EventName.DAEMON_DIAGNOSED)) == (Condition.WELL, [])


def test_a_hang_begins_with_its_first_indication() -> None:
    post = WatchedDaemon().observe(*silences())
    since = post.diagnosis.since
    assert since <= DEATH + 5
    post.observe(suspended(at=DEATH + 20))
    assert (post.condition, post.diagnosis.since) == (Condition.SUSPENDED, since)


def test_remembers_a_stop_until_the_daemon_runs_again() -> None:
    post = WatchedDaemon().observe(*quits())
    stopped_at = post.watch.stopped_at
    assert stopped_at == DEATH
    post.restarted()
    post.observe(no_daemon(at=DEATH + 60), left(DEATH + 61))
    post.until(DEATH + 200)
    assert (post.condition, post.watch.stopped_at, post.actions) == (Condition.STOPPED, stopped_at, [])
    post.observe(*returns(DEATH + 300))
    assert (post.condition, post.watch.stopped_at) == (Condition.WELL, None)


def test_diagnoses_an_unobserved_crash_by_its_traces() -> None:
    post = WatchedDaemon()
    post.restarted()
    post.observe(no_daemon(at=DEATH), left(DEATH), deaf(DEATH + 1))
    assert post.condition is Condition.DOWN
    assert post.diagnosis.indications == (
        Reason(ReasonCode.NO_DAEMON_FOUND),
        Reason(ReasonCode.NO_LISTENER),
        Reason(ReasonCode.PID_FILE_LEFT),
    )


def test_a_damaged_pid_file_is_no_crash() -> None:
    """Any user can write the pid file, and NVIDIA's program trusts it (measured, R580)."""
    post = WatchedDaemon()
    post.restarted()
    post.observe(no_daemon(at=DEATH), left(DEATH), replace(deaf(DEATH + 1), listening=True), no_daemon(at=DEATH + 10))
    post.until(DEATH + 200)
    assert (post.condition, post.actions) == (Condition.UNKNOWN, [])


def test_a_daemon_is_not_hung_after_its_suspended_server_continues() -> None:
    """An operator continues the server, as the remedy advises. The daemon was not queried since."""
    post = WatchedDaemon().observe(suspended(SERVER), *silences())
    post.until(DEATH + 300)
    post.observe(suspended(SERVER, at=DEATH + 300, state="S"))
    post.until(DEATH + 305)
    assert (post.condition, post.diagnosis.since) == (Condition.UNRESPONSIVE, DEATH + 300)
    assert post.actions == []


def test_a_daemon_is_not_hung_after_its_own_process_continues() -> None:
    post = WatchedDaemon(restarts=5).observe(*hangs())
    post.until(DEATH + 88)
    post.observe(suspended(at=DEATH + 88, state="S"))
    post.until(DEATH + 93)
    assert post.actions == []
    post.observe(silence(at=DEATH + 99))
    assert post.kinds == [("restart", "hung")]


def test_an_unobserved_quit_is_no_crash() -> None:
    post = WatchedDaemon()
    post.restarted()
    post.observe(no_daemon(at=DEATH), deaf(DEATH), left(DEATH, behind=False))
    assert (post.condition, post.actions) == (Condition.STOPPED, [])


def test_a_daemon_with_an_unsupported_protocol_is_well_while_it_runs() -> None:
    post = WatchedDaemon(replace(daemon_process(), protocol=4))
    assert (post.daemon.state, post.condition) == (None, Condition.WELL)


def test_evaluates_only_expected_daemons() -> None:
    post = WatchedDaemon(process(), *alive())
    post.node = replace(
        post.node,
        watches={},
        daemons={"d": replace(post.daemon, declared=replace(post.daemon.declared, expected=False))},
    )
    post.evaluate(AT + 1)
    assert post.node.watches == {}


def test_what_any_user_can_write_and_the_log_are_no_two_indications_of_an_exit() -> None:
    """After a restart of the exporter, /proc could not be read: the process is known only from before."""
    post = WatchedDaemon(*alive())
    post.restarted()
    post.observe(LogFile(at=post.at, daemon=DAEMON, file="control.log"), *at_work(at=post.at))
    post.observe(no_daemon(at=post.at + 1), no_daemon(at=post.at + 3), look("log", at=post.at + 5))
    post.until(post.at + 20)
    assert (post.condition, post.actions) == (Condition.UNKNOWN, [])


# What any user can do to a daemon's control socket never ends the daemon.


TRIALS = 100


def _step(chance: Random, at: float) -> tuple[Observation, ...]:
    """What a query shows while users connect, stay, and leave. One moment in ten shows nobody."""
    kind = chance.randrange(10)
    if kind == 0:
        return (servers(SERVER, at=at),)
    if kind == 1:
        return (refusal(at=at),)
    others = chance.choice((True, True, None))
    return silence(at=at), _connection(at + 2, others), holder(at + 2.1, chance.choice((700, 701, None)))


def _connection(at: float, others: bool | None) -> ControlSocket:
    return replace(probe(False, at=at), others=others)


def test_idle_and_slow_connections_restart_nothing() -> None:
    wrong = []
    for trial in range(TRIALS):
        chance, post = Random(trial), WatchedDaemon(hung_after=15.0)
        for number in count():
            at = DEATH + 7.5 * number
            if number == 40:
                break
            post.observe(*_step(chance, at))
            post.until(at + 7, every=1)
        if post.kinds:
            wrong.append((trial, post.kinds))
    assert not wrong


def test_a_hold_is_shown_with_its_process_and_user() -> None:
    post = WatchedDaemon()
    for number in range(3):
        at = DEATH + 10 * number
        post.observe(silence(at=at), _connection(at + 2, True), holder(at + 3))
    assert (post.daemon.state, post.condition) == (DaemonState.HELD, Condition.HELD)
    assert post.diagnosis.indications[0] == Reason(ReasonCode.SESSION_OPEN, pid=700, user="alice")


def test_a_user_who_also_stops_an_own_server_restarts_nothing() -> None:
    post = WatchedDaemon(hung_after=15.0)
    for number in range(30):
        at = DEATH + 7.5 * number
        state = suspended(SERVER, at=at - 0.5, state="ST"[number // 3 % 2])
        post.observe(state, silence(at=at), _connection(at + 2, True), holder(at + 2.1))
        post.until(at + 6.5)
    assert post.kinds == []


def test_a_hang_remains_confirmed_when_the_queue_is_full_later() -> None:
    post = WatchedDaemon().observe(*silences(), _connection(DEATH + 80, None))
    post.until(DEATH + 110)
    assert post.kinds == [("restart", "hung")]


def test_who_connects_after_a_hang_was_suspected_holds_the_daemon() -> None:
    post = WatchedDaemon().observe(*silences(), _connection(DEATH + 80, True))
    post.until(DEATH + 400)
    assert (post.kinds, post.daemon.state) == ([], DaemonState.HELD)


# Another user's daemon in an expected directory is not the expected one: that is down, not asked, not restarted.


TENANT = 65534


def taken(at: float = AT) -> DaemonProcess:
    """Another user's daemon is found in the directory."""
    return DaemonProcess(at=at, daemon=DAEMON, pid=None, foreign_owner=TENANT)


def test_the_daemon_is_down_without_a_loss() -> None:
    result = reduced(taken())

    assert (result.daemon.state, result.daemon.runtime.foreign_owner, result.events) == (DaemonState.DOWN, TENANT, ())


def test_sends_the_daemon_no_command() -> None:
    daemon = reduced(taken()).daemon

    assert poll_schedule.commands(Node(daemons={DAEMON: daemon}, at=AT + 1000), DAEMON, PollIntervals()) == ()


def test_starts_no_daemon_in_the_directory_of_another_user() -> None:
    post = WatchedDaemon()
    end, _, last_look = dies()
    post.observe(end, taken(DEATH + 0.1), last_look)
    post.until(DEATH + 2000)
    assert (post.actions, post.watch.reason) == (
        [],
        Reason(ReasonCode.FOREIGN_DIRECTORY, uid=TENANT),
    )
    assert block_reasons(post.policy, post.daemon, post.watch) == (BlockReason.FOREIGN_DIRECTORY,)

    post.observe(left(DEATH + 2001))
    assert post.kinds == [("restart", "down")]
    assert block_reasons(post.policy, post.daemon, post.watch) == ()


def test_the_finding_names_the_directory_the_user_and_the_fix() -> None:
    (found,) = (each for each in findings(reduced(taken()).node, AT) if each.daemon == DAEMON)

    assert found.text == (
        f"The pipe directory of MPS daemon {DAEMON} belongs to a user who must not run this daemon "
        f"(UID {TENANT}, {DAEMON})"
    )
    assert "set `user` in [[daemons]]" in found.remedy


def restart(owner: int | None, **known: Any) -> RunCommand:
    """Return the start command of a daemon that had this process."""
    post = WatchedDaemon()
    process = DaemonProcess(at=AT, daemon=DAEMON, pid=441, start_ticks=44100, **known)
    daemon = replace(
        post.daemon,
        declared=replace(post.daemon.declared, owner=owner),
        runtime=replace(post.daemon.runtime, visible_devices=None),
    )
    post.node = replace(
        post.node, daemons={DAEMON: daemon}, watches={DAEMON: replace(post.watch, process=process, children=())}
    )
    post.observe(*dies())
    (step,) = (each for each in post.actions[0].steps if isinstance(each, RunCommand))
    return step


def test_the_command_runs_as_the_configured_user_in_its_own_environment() -> None:
    own = {VISIBLE_DEVICES: "7", DEVICE_ORDER: "PCI_BUS_ID"}
    step = restart(1001, uid=TENANT, environment=own)
    assert (step.arguments, step.uid, own.keys() & step.environment.keys()) == (COMMAND, 1001, set())

    step = restart(1001, uid=1001, environment=own)
    assert step.uid == 1001
    assert step.environment.items() >= own.items()


def found(owner: int | None, by: str, unit: str | None = None) -> DaemonFound:
    return DaemonFound(
        at=AT, daemon=DAEMON, pipe_directory=DAEMON, log_directory="/l", expected=True, unit=unit, by=by, owner=owner
    )


def test_the_configuration_or_the_unit_names_the_user() -> None:
    unit = found(1002, "unit", "mps.service")
    assert reduced(unit, start=node("/other")).node.daemons[DAEMON].declared.owner == 1002
    both = reduced(found(None, "configuration", "mps.service"), unit, start=node("/other")).node
    assert both.daemons[DAEMON].declared.owner == 1002
    assert reduced(found(1001, "configuration", "mps.service"), start=both).node.daemons[DAEMON].declared.owner == 1001
    assert reduced(found(None, "configuration", "mps.service"), start=both).node.daemons[DAEMON].declared.owner == 1002
    named = reduced(found(1001, "configuration"), start=node("/other")).node
    assert reduced(found(None, "configuration"), start=named).node.daemons[DAEMON].declared.owner is None


# Which processes may get a signal: facts of /proc decide, and a PID that a log line names is never enough.


FORGED = 4711
OTHER_SERVER = 514
SERVER_NAME = "nvidia-cuda-mps-server"


def forged(pid: int = FORGED, *, at: float = AT + 1) -> tuple[Observation, ...]:
    """Return lines with which any user can make a PID look like a server of the daemon."""
    return (
        *control_log(f"Starting new server {pid} for user 0", at=at, pid=pid),
        *server_log("Server has started", active(), server=pid, at=at),
    )


def child(pid: int = OTHER_SERVER, parent: int | None = CONTROL, **known: Any) -> Observation:
    """Return what /proc shows of a server of this parent."""
    return process(pid, at=AT + 1, parent=parent, **{"uid": 0, "user": "root", "command": SERVER_NAME, **known})


def ended(action: Action) -> list[int]:
    """Return the PIDs that an action ends."""
    return [step.identity.pid for step in action.steps if isinstance(step, EndProcess)]


def test_a_forged_line_adds_no_server_to_end(subtests: pytest.Subtests) -> None:
    for reading in [
        child(FORGED, parent=CONTROL + 1),
        child(FORGED, parent=None),
        child(FORGED, parent=1),
        child(FORGED, ticks=CONTROL * 100 - 1),
        child(FORGED, command="python3"),
    ]:
        with subtests.test(reading=reading):
            post = WatchedDaemon().observe(*forged(), reading)
            post.observe(*dies())

            assert ended(post.actions[0]) == [SERVER]


@pytest.mark.parametrize(("uid", "remembered"), [(1001, [SERVER]), (1002, []), (0, [])])
def test_a_server_of_an_ordinary_user_has_the_same_user(uid: int, remembered: list[int]) -> None:
    started = DaemonProcess(at=AT, daemon=DAEMON, pid=CONTROL, start_ticks=CONTROL * 100, uid=1001)
    post = WatchedDaemon(started, *at_work(), child(SERVER, uid=uid))

    pids: list[int] = [each.pid for each in post.watch.children]
    assert pids == remembered


def test_a_forged_exit_does_not_make_the_watchdog_forget_a_server() -> None:
    post = WatchedDaemon().observe(*control_log(f"Server {SERVER} exited with status 0", at=AT + 1))
    post.observe(*dies())

    assert ended(post.actions[0]) == [SERVER]


def test_remembers_a_server_until_its_exit_or_the_reuse_of_its_pid() -> None:
    post = WatchedDaemon().observe(*forged(OTHER_SERVER), child(OTHER_SERVER))
    assert post.watch.children == (
        ProcessIdentity(pid=SERVER, start_ticks=SERVER * 100),
        ProcessIdentity(pid=OTHER_SERVER, start_ticks=OTHER_SERVER * 100),
    )

    post.observe(process(SERVER, at=AT + 2, ticks=99_999_999))
    assert [each.pid for each in post.watch.children] == [OTHER_SERVER]


def test_the_servers_of_another_daemon_process_are_not_remembered() -> None:
    post = WatchedDaemon().observe(daemon_process(NEXT, at=AT + 1))

    assert post.watch.children == ()


def test_remembers_the_newest_servers() -> None:
    post = WatchedDaemon()
    for pid in range(5000, 5020):
        post.observe(*forged(pid), child(pid))

    assert [each.pid for each in post.watch.children] == list(range(5004, 5020))


def test_ends_no_hung_server_without_a_parent_in_proc() -> None:
    post = WatchedDaemon(allow=HUNG).observe(*forged(), child(FORGED, parent=CONTROL + 1), suspended(FORGED))
    post.until(DEATH + 200)

    assert post.actions == []
    assert post.watch.reason is not None
    assert post.watch.reason.code is ReasonCode.SERVER_PARENT_UNKNOWN


STRUCK = AT + 10


def faulted(*seen: Observation, reading: Observation | None = None) -> WatchedDaemon:
    """Return a watchdog some time after a fault that CLIENT holds up, as the daemon confirms."""
    start = [*alive(CLIENT), *([] if reading is None else [reading])]
    post = WatchedDaemon(*start, allow=KILL)
    post.observe(*server_log(*FAULT_BLOCK, at=STRUCK), status("FAULT", at=STRUCK + 1), clients(CLIENT, at=STRUCK + 1))
    post.observe(*seen)
    post.until(STRUCK + 200)
    return post


@pytest.mark.parametrize("reading", [gpu_reading([CLIENT], at=STRUCK + 2), gpu_reading([], at=STRUCK - 1)])
def test_ends_a_client_that_the_daemon_lists_and_nvml_too_if_it_was_read_since(reading: Observation) -> None:
    assert ended(faulted(reading).actions[0]) == [CLIENT]


def test_ends_no_client_that_nvml_no_longer_shows() -> None:
    assert faulted(gpu_reading([601], at=STRUCK + 2)).actions == []


@pytest.mark.parametrize("command", [SERVER_NAME, "nvidia-cuda-mps-control"])
def test_ends_no_mps_program_as_an_affected_client(command: str) -> None:
    assert faulted(reading=process(CLIENT, command=command)).actions == []


def test_the_executable_shows_which_mps_program_a_process_runs(subtests: pytest.Subtests) -> None:
    for executable, command, program in [
        ("/usr/bin/nvidia-cuda-mps-server", "x", MpsProgram.SERVER),
        ("/usr/bin/nvidia-cuda-mps-control", SERVER_NAME, MpsProgram.CONTROL),
        ("/usr/bin/nvidia-cuda-mps-server (deleted)", None, MpsProgram.SERVER),
        (None, SERVER_NAME, MpsProgram.SERVER),
        (None, "nvidia-cuda-mps", MpsProgram.CONTROL),
        ("/usr/bin/python3", SERVER_NAME, MpsProgram.SERVER),
        ("/usr/bin/python3", "python3", None),
        (None, None, None),
    ]:
        with subtests.test(executable=executable, command=command, program=program):
            assert mps_program(executable, command) is program


def test_a_recording_without_parents_leads_to_no_signal() -> None:
    post = WatchedDaemon(
        daemon_process(), *(each for each in alive() if each != alive()[-1]), child(SERVER, parent=None)
    )
    post.observe(*dies(), look("log", at=DEATH + 5))

    assert ended(post.actions[0]) == []


# When a condition began, and which of several is named.


@pytest.mark.parametrize(
    ("seen", "condition", "since"),
    [
        (hangs(), Condition.SUSPENDED, DEATH),
        ((silence(at=DEATH), suspended(at=DEATH + 3)), Condition.SUSPENDED, DEATH),
        (silences(), Condition.UNRESPONSIVE, DEATH + 5),
        ((*asks_a_server(), *silences()), Condition.SERVER_UNRESPONSIVE, DEATH + 4.5),
        ((suspended(SERVER, state="D", at=DEATH + 1), *silences()), Condition.STUCK_IN_DRIVER, DEATH + 1),
        ((suspended(SERVER), look("log", at=DEATH + 3)), Condition.SERVER_SUSPENDED, DEATH),
        ((refusal(at=DEATH), refusal(at=DEATH + 3)), Condition.HELD, DEATH + 3),
        (failures(3, at=DEATH), Condition.CRASH_LOOP, DEATH),
        (FAULT, Condition.FAULT, DEATH),
        (dies(), Condition.DOWN, DEATH),
    ],
    ids=lambda each: each.value if isinstance(each, Condition) else "",
)
def test_a_condition_has_the_time_of_its_first_indication(
    seen: tuple[Observation, ...], condition: Condition, since: float
) -> None:
    post = WatchedDaemon(*alive(CLIENT)).observe(*seen)
    assert (post.condition, post.diagnosis.since) == (condition, since)


@pytest.mark.parametrize(("seconds", "condition"), [(0.9, Condition.WELL), (1.0, Condition.SERVER_SUSPENDED)])
def test_names_the_server_that_was_stopped_first_after_a_second(seconds: float, condition: Condition) -> None:
    two = (servers(SERVER, OTHER_SERVER), child(OTHER_SERVER))
    post = WatchedDaemon(*alive(), *two).observe(suspended(OTHER_SERVER), suspended(SERVER, at=DEATH + 0.5))
    post.evaluate(DEATH + seconds)
    assert (post.condition, post.diagnosis.server) == (condition, None if seconds < 1 else OTHER_SERVER)


@pytest.mark.parametrize(
    ("seen", "condition"),
    [
        ((unit("failed", result="signal"),), Condition.DOWN),
        ((unit("activating", sub="auto-restart"),), Condition.DOWN),
        ((unit("active"),), Condition.UNKNOWN),
        ((no_daemon(at=DEATH + 1),), Condition.DOWN),
    ],
    ids=["unit failed", "unit restarts", "unit active", "no daemon"],
)
def test_an_exit_needs_a_second_indication(seen: tuple[Observation, ...], condition: Condition) -> None:
    post = WatchedDaemon(*UNREAD, unit("active", at=AT), daemon_policy=BY_UNIT)
    post.observe(exited(CONTROL, at=DEATH), *seen)
    post.until(DEATH + 5)
    assert post.condition is condition


def test_two_statements_of_systemd_are_one_indication() -> None:
    """Nothing else shows the exit of a daemon whose process was never known."""
    post = WatchedDaemon(unit("active", at=AT), servers(SERVER), daemon_policy=BY_UNIT)
    post.observe(deaf(DEATH), no_daemon(at=DEATH), no_daemon(at=DEATH + 2))
    alone = replace(post.daemon, commands=replace(post.daemon.commands, listening=None))
    alone = replace(alone, lifecycle=replace(alone.lifecycle, not_found_at=None, unexplained_end_at=None))
    post.node = replace(post.node, daemons={DAEMON: alone})
    post.observe(unit("failed", at=DEATH + 3, sub="auto-restart", result="signal"))
    codes = [each.code for each in post.diagnosis.indications]
    assert codes == [ReasonCode.UNIT_FAILED, ReasonCode.UNIT_RESTARTING]
    assert post.condition is Condition.UNKNOWN


@pytest.mark.parametrize(
    ("result", "code"), [("success", ReasonCode.UNIT_ENDED), ("timeout", ReasonCode.UNIT_STOP_TIMED_OUT)]
)
def test_a_stop_by_the_unit_says_how_it_ended(result: str, code: ReasonCode) -> None:
    post = WatchedDaemon(daemon_policy=BY_UNIT)
    post.observe(*dies(), unit("failed" if result == "timeout" else "inactive", sub="failed", result=result))
    assert (post.condition, post.diagnosis.indications[0].code) == (Condition.STOPPED, code)


def test_one_of_several_servers_that_may_hang_is_not_ended() -> None:
    post = WatchedDaemon(*alive(), servers(SERVER, OTHER_SERVER), child(OTHER_SERVER), allow=HUNG)
    post.observe(*asks_a_server(), *silences())
    post.until(DEATH + 200)
    assert (post.condition, post.actions) == (Condition.SERVER_UNRESPONSIVE, [])
    assert post.watch.reason == Reason(ReasonCode.HUNG_SERVER_AMBIGUOUS, server=SERVER)
    stopped = WatchedDaemon(*alive(), servers(SERVER, OTHER_SERVER), child(OTHER_SERVER), allow=HUNG)
    stopped.observe(suspended(SERVER))
    stopped.until(DEATH + 95)
    assert [ended(action) for action in stopped.actions] == [[SERVER]]


def test_only_connections_without_an_answer_indicate_a_hang() -> None:
    """The exporter may lack file descriptors."""
    post = WatchedDaemon()
    for at in range(int(DEATH) + 5, int(DEATH) + 55, 10):
        post.observe(silence(at=at), probe(None, at=at + 0.1))
    codes = [each.code for each in post.diagnosis.indications]
    assert codes == [ReasonCode.COMMANDS_UNANSWERED, ReasonCode.PROCESS_ALIVE]


def test_reports_a_condition_again_if_it_is_that_of_another_process() -> None:
    post = WatchedDaemon(*alive(), servers(SERVER, OTHER_SERVER), child(OTHER_SERVER))
    post.observe(suspended(SERVER), suspended(OTHER_SERVER, at=DEATH + 1))
    post.until(DEATH + 3)
    post.observe(suspended(SERVER, at=DEATH + 3, state="S"))
    reported = [(each.state, each.pid) for each in post.events if each.event is EventName.DAEMON_DIAGNOSED]
    assert reported == [("server_suspended", SERVER), ("server_suspended", OTHER_SERVER)]
