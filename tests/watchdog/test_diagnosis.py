"""Several witnesses, and what they make together: never one of them alone."""

from dataclasses import replace
from typing import NamedTuple

import pytest

from exporter.model.event import EventName
from exporter.model.observation import LogFile, Observation
from exporter.model.reason import Reason, ReasonCode
from exporter.model.watchdog import Condition
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    FAULT_BLOCK,
    SERVER,
    at_work,
    control_log,
    daemon_process,
    exited,
    failure,
    look,
    no_daemon,
    probe,
    process,
    refusal,
    server_log,
    servers,
    silence,
    status,
)
from tests.state.test_crash_loop import failures
from tests.watchdog.watched_daemon import (
    BY_UNIT,
    DEATH,
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
        Condition.CRASHED,
        (Reason(ReasonCode.PROCESS_GONE, pid=CONTROL), Reason(ReasonCode.LOG_ENDS_WITHOUT_QUIT)),
    ),
    "its process ends": Case(
        (exited(CONTROL, at=DEATH),), Condition.UNKNOWN, (Reason(ReasonCode.PROCESS_GONE, pid=CONTROL),)
    ),
    "its process ends, and its log cannot be read": Case(
        (exited(CONTROL, at=DEATH), look("log", at=DEATH + 2)),
        Condition.UNKNOWN,
        (Reason(ReasonCode.PROCESS_GONE, pid=CONTROL),),
        start=UNREAD,
    ),
    "and a command finds none": Case(
        (exited(CONTROL, at=DEATH), no_daemon(at=DEATH + 2)),
        Condition.CRASHED,
        (Reason(ReasonCode.PROCESS_GONE, pid=CONTROL), Reason(ReasonCode.NO_DAEMON_FOUND)),
        start=UNREAD,
    ),
    "and its pid file stays": Case(
        (exited(CONTROL, at=DEATH), left(DEATH + 2)),
        Condition.CRASHED,
        (Reason(ReasonCode.PROCESS_GONE, pid=CONTROL), Reason(ReasonCode.PID_FILE_LEFT)),
        start=UNREAD,
    ),
    "and no process listens": Case(
        (exited(CONTROL, at=DEATH), deaf(DEATH + 2)),
        Condition.CRASHED,
        (Reason(ReasonCode.PROCESS_GONE, pid=CONTROL), Reason(ReasonCode.NO_LISTENER)),
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
        (Reason(ReasonCode.PROCESS_SUSPENDED, pid=CONTROL, state="T"), Reason(ReasonCode.DAEMON_UNANSWERING)),
        CONTROL,
    ),
    "a debugger stops it": Case(
        (suspended(state="t"), *silences()),
        Condition.SUSPENDED,
        (Reason(ReasonCode.PROCESS_SUSPENDED, pid=CONTROL, state="t"), Reason(ReasonCode.DAEMON_UNANSWERING)),
        CONTROL,
    ),
    "another process was stopped": Case((replace(suspended(), start_ticks=1), silence(at=DEATH + 5)), Condition.WELL),
    "it does not answer": Case(
        silences(),
        Condition.UNRESPONSIVE,
        (Reason(ReasonCode.COMMANDS_UNANSWERED), Reason(ReasonCode.PROCESS_ALIVE, pid=CONTROL), UNCONNECTED),
    ),
    "and no process listens either": Case(
        (*silences(), deaf(DEATH + 11)),
        Condition.UNRESPONSIVE,
        (
            Reason(ReasonCode.COMMANDS_UNANSWERED),
            Reason(ReasonCode.PROCESS_ALIVE, pid=CONTROL),
            UNCONNECTED,
            Reason(ReasonCode.NO_LISTENER),
        ),
    ),
    "it sleeps in the kernel": Case(
        (suspended(state="D"), *silences()),
        Condition.STUCK_IN_DRIVER,
        (Reason(ReasonCode.PROCESS_STUCK_IN_KERNEL, pid=CONTROL), Reason(ReasonCode.DAEMON_UNANSWERING)),
        CONTROL,
    ),
    "its server sleeps in the kernel": Case(
        (suspended(SERVER, state="D"), *silences()),
        Condition.STUCK_IN_DRIVER,
        (Reason(ReasonCode.PROCESS_STUCK_IN_KERNEL, pid=SERVER), Reason(ReasonCode.DAEMON_UNANSWERING)),
        SERVER,
    ),
    "its server sleeps for a moment": Case((suspended(SERVER, state="D"),), Condition.WELL),
    "its server was stopped": Case(
        (suspended(SERVER), look("log", at=DEATH + 2)),
        Condition.SERVER_SUSPENDED,
        (Reason(ReasonCode.SERVER_SUSPENDED, server=SERVER, state="T"), Reason(ReasonCode.DAEMON_NOT_WAITING)),
        SERVER,
    ),
    "its server was stopped for a moment": Case((suspended(SERVER),), Condition.WELL),
    "its server was stopped, and it hangs": Case(
        (suspended(SERVER), *silences()),
        Condition.SERVER_SUSPENDED,
        (Reason(ReasonCode.SERVER_SUSPENDED, server=SERVER, state="T"), Reason(ReasonCode.DAEMON_UNANSWERING)),
        SERVER,
    ),
    "it asks its server, which does not answer": Case(
        (*asks_a_server(), *silences()),
        Condition.SERVER_UNRESPONSIVE,
        (Reason(ReasonCode.COMMANDS_UNANSWERED), Reason(ReasonCode.SERVER_QUERIED, server=SERVER)),
        SERVER,
    ),
    "it asks all its servers, and there is one": Case(
        (*asks_a_server("ps"), *silences()),
        Condition.SERVER_UNRESPONSIVE,
        (Reason(ReasonCode.COMMANDS_UNANSWERED), Reason(ReasonCode.SERVER_QUERIED, server=SERVER)),
        SERVER,
    ),
    "it had asked its server, and got the answer": Case(
        (servers(SERVER, at=DEATH - 0.2), status("ACTIVE", at=DEATH - 0.1), *silences()),
        Condition.UNRESPONSIVE,
        (Reason(ReasonCode.COMMANDS_UNANSWERED), Reason(ReasonCode.PROCESS_ALIVE, pid=CONTROL), UNCONNECTED),
    ),
    "it was asked for a server that is not there": Case(
        (*asks_a_server("get_client_list 514"), *silences()),
        Condition.UNRESPONSIVE,
        (Reason(ReasonCode.COMMANDS_UNANSWERED), Reason(ReasonCode.PROCESS_ALIVE, pid=CONTROL), UNCONNECTED),
    ),
    "it is not known to have answered just before it asked its server": Case(
        (silence(at=DEATH + 5, command=f"get_server_status {SERVER}"), *silences(DEATH + 1)),
        Condition.UNRESPONSIVE,
        (Reason(ReasonCode.COMMANDS_UNANSWERED), Reason(ReasonCode.PROCESS_ALIVE, pid=CONTROL), UNCONNECTED),
    ),
    "only its log shows a query of its server": Case(
        (*control_log("NEW UI", f"Cmd:get_server_status {SERVER}", at=DEATH), *silences()),
        Condition.UNRESPONSIVE,
        (
            Reason(ReasonCode.COMMANDS_UNANSWERED),
            Reason(ReasonCode.PROCESS_ALIVE, pid=CONTROL),
            UNCONNECTED,
            Reason(ReasonCode.LOG_ENDS_WITH_QUERY, server=SERVER),
        ),
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
            Reason(ReasonCode.DAEMON_UNANSWERING),
        ),
        CONTROL,
    ),
    "both were stopped": Case(
        (suspended(SERVER), *hangs()),
        Condition.SUSPENDED,
        (Reason(ReasonCode.PROCESS_SUSPENDED, pid=CONTROL, state="T"), Reason(ReasonCode.DAEMON_UNANSWERING)),
        CONTROL,
    ),
    "a session is open": Case(
        (refusal(at=DEATH), refusal(at=DEATH + 3)),
        Condition.HELD,
        (Reason(ReasonCode.COMMANDS_REFUSED),),
    ),
    "and its process is known": Case(
        (refusal(at=DEATH), holder(DEATH + 1), refusal(at=DEATH + 3)),
        Condition.HELD,
        (Reason(ReasonCode.SESSION_OPEN, pid=700, user="alice"), Reason(ReasonCode.COMMANDS_REFUSED)),
        700,
    ),
    "a fault": Case(
        FAULT,
        Condition.FAULT,
        (Reason(ReasonCode.SERVER_IN_FAULT, server=SERVER), Reason(ReasonCode.AFFECTED_CLIENTS_CONNECTED)),
        start=alive(CLIENT),
    ),
    "a fault that a client holds up": Case(
        (*FAULT, look("log", at=DEATH + 2)),
        Condition.FAULT,
        (Reason(ReasonCode.SERVER_IN_FAULT, server=SERVER), Reason(ReasonCode.AFFECTED_CLIENTS_CONNECTED, pids=(600,))),
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
            post = WatchedDaemon(*(case.start or alive()))
            post.observe(*case.seen)
            found = post.diagnosis
            assert (found.condition, found.indications) == (case.condition, case.indications)
            assert (None if found.process is None else found.process.pid) == case.pid


def test_the_condition_is_unknown_before_the_first_observation() -> None:
    assert WatchedDaemon(look("log")).condition is Condition.UNKNOWN


def test_a_daemon_that_never_ran_is_not_crashed() -> None:
    post = WatchedDaemon(no_daemon(), left(AT + 1), deaf(AT + 1), no_daemon(at=AT + 20))
    assert (post.condition, post.actions, post.watch.process) == (Condition.NEVER_SEEN, [], None)


def test_the_state_of_the_unit_shows_a_stop(subtests: pytest.Subtests) -> None:
    for seen, condition in [
        (unit("inactive"), Condition.STOPPED),
        (unit("inactive", result="signal"), Condition.CRASHED),
        (unit("inactive", at=DEATH - 1), Condition.CRASHED),
        (unit("failed", result="signal"), Condition.CRASHED),
        (unit("inactive", problem=failure("Permission denied")), Condition.CRASHED),
    ]:
        with subtests.test(seen=seen, condition=condition):
            post = WatchedDaemon(daemon_policy=BY_UNIT)
            post.observe(*dies(), seen)
            post.until(DEATH + 3)
            assert post.condition is condition


def test_ignores_a_unit_that_the_daemon_did_not_run_in() -> None:
    post = WatchedDaemon(replace(daemon_process(), unit="other.service"), *alive()[1:], daemon_policy=BY_UNIT)
    post.observe(*dies(), unit("inactive"))
    assert post.condition is Condition.CRASHED


def test_reports_a_diagnosis_once_and_its_end() -> None:
    post = WatchedDaemon()
    post.observe(*hangs())
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
    post = WatchedDaemon()
    post.observe(*silences())
    since = post.diagnosis.since
    assert since <= DEATH + 5
    post.observe(suspended(at=DEATH + 20))
    assert (post.condition, post.diagnosis.since) == (Condition.SUSPENDED, since)


def test_remembers_a_stop_until_the_daemon_runs_again() -> None:
    post = WatchedDaemon()
    post.observe(*quits())
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
    assert post.condition is Condition.CRASHED
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
    post = WatchedDaemon()
    post.observe(suspended(SERVER), *silences())
    post.until(DEATH + 300)
    post.observe(suspended(SERVER, at=DEATH + 300, state="S"))
    post.until(DEATH + 305)
    assert (post.condition, post.diagnosis.since) == (Condition.UNRESPONSIVE, DEATH + 300)
    assert post.actions == []


def test_a_daemon_is_not_hung_after_its_own_process_continues() -> None:
    post = WatchedDaemon(restarts=5)
    post.observe(*hangs())
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
