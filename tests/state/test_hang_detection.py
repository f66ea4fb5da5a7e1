"""A daemon that does not answer hangs if a second indication confirms it. One or two slow answers do not."""

import pytest

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import ControlReply, Observation, ProcessExit, SourceReading, Wanted
from exporter.model.reason import command_failed, timed_out
from exporter.model.server import ServerState
from exporter.model.settings import PollIntervals
from exporter.model.values import replace
from exporter.model.watchdog import Condition
from exporter.reducer import reduce
from exporter.report.document_parts import Severity
from exporter.report.finding import severity_and_label
from exporter.report.node_findings import findings
from exporter.report.node_status import document_of
from exporter.state import poll_schedule
from exporter.watchdog.context import Policy
from exporter.watchdog.evaluation import evaluate
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    HANGS,
    SERVER,
    at_work,
    clients,
    control_log,
    daemon_process,
    exited,
    gpu_reading,
    holder,
    look,
    looks,
    no_daemon,
    probe,
    process,
    reduced,
    refusal,
    reply,
    servers,
    silence,
    socket,
    standing,
    status,
)
from tests.status import commands_of, status_table

# The tests state these values, so that they notice a change of the program's constants.
STARTING_SECONDS = 60.0

SILENT = (silence(at=AT + 10), socket(True, at=AT + 10.5), silence(at=AT + 20))
"""Two unanswered commands of five seconds each. The socket is probed after the first."""

UNLOGGED = reduced(servers(SERVER), status("ACTIVE"), clients(CLIENT), daemon_process(), process(SERVER, uid=0)).node
"""A daemon that serves a client since AT, with a known process and an unread log."""

LOGGED = reduced(*at_work(CLIENT), daemon_process(), process(SERVER, uid=0)).node
"""The same daemon with a followed log."""


def state(*seen: Observation, start: Node = UNLOGGED) -> DaemonState | None:
    return reduced(*seen, start=start).daemon.state


def unanswered(number: int) -> tuple[Observation, ...]:
    """Commands without an answer, ten seconds apart. No connection could be made."""
    first, *others = (silence(at=AT + 10 * each) for each in range(1, number + 1))
    return first, probe(None, at=AT + 10.5), *others


RUNNING, ENDED = daemon_process(at=AT + 0.5), exited(CONTROL, at=AT + 0.8)
NO_FILE, ONLY_A_FILE = (daemon_process(None, at=AT + 0.5, left=left) for left in (False, True))


def program_missing(*, at: float) -> Observation:
    return reply("get_server_list", exit_code=127, stderr="not found", at=at)


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        ((refusal(at=AT + 1), refusal(at=AT + 2.9)), DaemonState.UP),
        ((refusal(at=AT + 1), refusal(at=AT + 3)), DaemonState.HELD),
        ((refusal(at=AT + 1), servers(SERVER, at=AT + 2), refusal(at=AT + 3)), DaemonState.UP),
        ((RUNNING, ENDED, refusal(at=AT + 1), refusal(at=AT + 9)), DaemonState.DOWN),
        ((RUNNING, program_missing(at=AT + 1), program_missing(at=AT + 1.9)), DaemonState.UP),
        ((RUNNING, program_missing(at=AT + 1), program_missing(at=AT + 2)), None),
        ((RUNNING, ENDED, program_missing(at=AT + 1), program_missing(at=AT + 2)), DaemonState.DOWN),
        ((RUNNING, no_daemon(at=AT + 1), no_daemon(at=AT + 1.9)), DaemonState.UP),
        ((RUNNING, no_daemon(at=AT + 1), no_daemon(at=AT + 2)), None),
        ((no_daemon(at=AT + 1),), DaemonState.DOWN),
    ],
)
def test_failed_commands_change_the_state_only_after_their_time(
    seen: tuple[Observation, ...], wanted: DaemonState | None
) -> None:
    """A refusal for 2 s is a session of another program. Other failures for 1 s leave the state unknown."""
    without_process = reduced(*at_work(CLIENT)).node
    assert state(*seen, start=without_process) is wanted


@pytest.mark.parametrize(("found", "wanted"), [((), DaemonState.UP), ((RUNNING,), DaemonState.UNRESPONSIVE)])
def test_a_socket_without_a_listener_indicates_a_hang_only_of_a_process_that_is_known_to_run(
    found: tuple[Observation, ...], wanted: DaemonState
) -> None:
    without_process = reduced(*at_work(CLIENT)).node
    assert state(*found, *SILENT, socket(False, at=AT + 21), start=without_process) is wanted


@pytest.mark.parametrize(("reading", "wanted"), [(NO_FILE, DaemonState.DOWN), (ONLY_A_FILE, None)])
def test_without_a_control_program_only_a_daemon_without_a_pid_file_is_down(
    reading: Observation, wanted: DaemonState | None
) -> None:
    """The file may name a process of another PID namespace."""
    without_process = reduced(*at_work(CLIENT)).node
    assert state(reading, program_missing(at=AT + 1), program_missing(at=AT + 2), start=without_process) is wanted


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        ((), ServerState.ACTIVE),
        ((clients(at=AT + 11),), ServerState.ACTIVE),
        ((clients(CLIENT, at=AT + 11),), ServerState.FAULT),
        ((status("ACTIVE", at=AT + 11), clients(CLIENT, at=AT + 12)), ServerState.ACTIVE),
    ],
)
def test_a_fault_in_a_reply_counts_if_the_server_runs_and_does_not_revoke_it(
    seen: tuple[Observation, ...], wanted: ServerState
) -> None:
    found = reduced(status("FAULT", at=AT + 10), *seen, start=LOGGED)
    assert found.daemon.servers[SERVER].state is wanted


def test_a_second_fault_in_a_reply_counts_for_a_server_of_which_only_the_pid_is_known() -> None:
    """So it is after a start of the exporter."""
    replies = (replace(status("FAULT", at=AT + at), seconds=0.01) for at in (10, 15))
    assert reduced(servers(SERVER), *replies).daemon.servers[SERVER].state is ServerState.FAULT


# -- other indications -------------------------------------------------------------------------------------------------


def test_whether_a_daemon_responds_is_unknown_while_a_query_of_it_hangs() -> None:
    """In a directory that hangs, the exit of a daemon whose process is not known would never be seen."""
    up = reduced(*at_work()).node
    hung = reduced(replace(look("control", at=AT + 15, problem=HANGS), daemon=DAEMON), start=up).node
    assert (up.daemons[DAEMON].state, hung.daemons[DAEMON].state) == (DaemonState.UP, None)
    assert reduced(servers(SERVER, at=AT + 20), start=hung).daemon.state is DaemonState.UP
    unknown = replace(look("control", at=AT + 15, problem=HANGS), daemon="/gone")
    assert reduced(unknown, start=up).node.daemons == up.daemons
    silent = reduced(
        replace(look("control", at=AT + 15, problem=timed_out("get_server_list", 5.0)), daemon=DAEMON), start=up
    ).node
    assert silent.daemons[DAEMON].state is DaemonState.UP


CONFIRMED: dict[str, tuple[Observation, ...]] = {
    **{f"process in {letter}": (standing(letter, at=AT + 4), *SILENT) for letter in "TtD"},
    # The daemon waits for the server's answer (measured, R580).
    **{f"server in {letter}": (standing(letter, SERVER, at=AT + 4), *SILENT) for letter in "TtD"},
    "no listener": (*SILENT, socket(False, at=AT + 21)),
    # Recordings of other programs have only commands and logs.
    "two sequential commands without an attempt to connect": (silence(at=AT + 10), silence(at=AT + 15.5)),
}


@pytest.mark.parametrize("seen", CONFIRMED.values(), ids=CONFIRMED)
def test_a_second_indication_confirms_a_hang(seen: tuple[Observation, ...]) -> None:
    assert state(*seen) is DaemonState.UNRESPONSIVE


STOPPED = standing("T", at=AT + 4)
UNCONFIRMED: dict[str, tuple[Observation, ...]] = {
    **{f"in {each}": (standing(each, at=AT + 4), standing(each, SERVER, at=AT + 4), *SILENT) for each in "SRI"},
    "not stuck when the last command was sent": (*SILENT, standing("D", at=AT + 20)),
    **{f"another process {pid}": (standing("T", pid, at=AT + 4, ticks=7), *SILENT) for pid in (CONTROL, SERVER)},
    "a listener": (*SILENT, socket(True, at=AT + 21)),
    "an unknown listener": (*SILENT, socket(None, at=AT + 21)),
    "two overlapping commands": (silence(at=AT + 10), silence(at=AT + 13)),
    "one command": (STOPPED, silence(at=AT + 10), socket(False, at=AT + 19)),
    "an answer between": (STOPPED, silence(at=AT + 10), servers(SERVER, at=AT + 12), silence(at=AT + 20)),
    "a refusal between": (STOPPED, silence(at=AT + 10), refusal(at=AT + 12), silence(at=AT + 20)),
}


@pytest.mark.parametrize("seen", UNCONFIRMED.values(), ids=UNCONFIRMED)
def test_does_not_confirm_a_hang(seen: tuple[Observation, ...]) -> None:
    assert state(*seen) is DaemonState.UP


def test_a_log_without_new_lines_does_not_confirm_a_hang() -> None:
    """If only the control program hangs, the daemon has nothing to write."""
    assert state(*SILENT, start=LOGGED) is DaemonState.UP


def test_log_lines_do_not_refute_a_hang() -> None:
    """Every user can write them."""
    lines = [line for second in range(8) for line in control_log("NEW UI", at=AT + 10 * second + 6)]
    seen = sorted([*lines, *unanswered(7)], key=lambda each: each.at)
    assert state(*seen, start=LOGGED) is DaemonState.UNRESPONSIVE


def test_two_unanswered_connections_confirm_a_hang() -> None:
    one = (silence(at=AT + 10), probe(False, at=AT + 12), silence(at=AT + 20))
    assert state(*one) is DaemonState.UP
    assert state(*one, probe(False, at=AT + 22)) is DaemonState.UNRESPONSIVE


def test_unanswered_connections_count_again_after_another_program_was_connected() -> None:
    """The daemon serves one connection at a time. So its silence beside another one proves nothing."""
    other = replace(probe(False, at=AT + 22), others=True)
    seen = (silence(at=AT + 10), probe(False, at=AT + 12), silence(at=AT + 20), other, silence(at=AT + 30))
    assert state(*seen, probe(False, at=AT + 32)) is not DaemonState.UNRESPONSIVE
    assert state(*seen, probe(False, at=AT + 32), probe(False, at=AT + 42)) is DaemonState.UNRESPONSIVE


def test_an_answered_connection_refutes_a_hang() -> None:
    answered = (silence(at=AT + 10), probe(False, at=AT + 12), silence(at=AT + 20), probe(True, at=AT + 20.1))
    assert state(*answered) is DaemonState.UP
    assert state(*answered, *(silence(at=AT + 30 + 10 * each) for each in range(9))) is DaemonState.UP
    again = (silence(at=AT + 30), probe(False, at=AT + 32), silence(at=AT + 40), probe(False, at=AT + 42))
    assert state(*answered, *again) is DaemonState.UNRESPONSIVE


def test_connections_before_the_last_answer_do_not_count() -> None:
    before = (silence(at=AT + 10), probe(False, at=AT + 12), servers(SERVER, at=AT + 20))
    after = (silence(at=AT + 30), probe(False, at=AT + 32), silence(at=AT + 40))
    assert state(*before, *after) is DaemonState.UP


def test_a_process_suspended_after_an_answered_connection_hangs() -> None:
    answered = (silence(at=AT + 10), probe(True, at=AT + 10.1))
    assert state(*answered, standing("T", at=AT + 11), silence(at=AT + 20)) is DaemonState.UNRESPONSIVE
    assert state(standing("D", SERVER, at=AT + 4), *answered, silence(at=AT + 20)) is DaemonState.UP


def test_a_daemon_that_answers_connections_again_is_up() -> None:
    hangs = (silence(at=AT + 10), probe(False, at=AT + 12), silence(at=AT + 20), probe(False, at=AT + 22))
    result = reduced(*hangs, silence(at=AT + 30), probe(True, at=AT + 30.1), start=UNLOGGED)
    assert result.names() == [EventName.DAEMON_UNRESPONSIVE, EventName.DAEMON_RESPONSIVE]


def test_five_unanswered_commands_confirm_a_hang_without_other_indications() -> None:
    assert state(*unanswered(4)) is DaemonState.UP
    assert state(*unanswered(5)) is DaemonState.UNRESPONSIVE
    quick = [silence(at=AT + 10 + each) for each in range(9)]
    assert state(quick[0], probe(None, at=AT + 10), *quick[1:]) is DaemonState.UP


def test_an_answer_ends_the_hang() -> None:
    daemon = reduced(*SILENT, socket(False, at=AT + 21), servers(SERVER, at=AT + 22), start=UNLOGGED).daemon
    assert daemon.state is DaemonState.UP
    assert (daemon.commands.unanswered, daemon.commands.unanswered_since, daemon.commands.listening) == (0, None, None)


def test_a_removed_pid_file_is_no_hang() -> None:
    """NVIDIA's program does not connect then. The daemon still serves its clients, but cannot be queried."""
    lost = [no_daemon(at=AT + 10 * each) for each in range(1, 8)]
    assert state(*lost, start=LOGGED) is None


# -- delays ------------------------------------------------------------------------------------------------------------


def seconds_to_unresponsive(start: Node) -> float:
    """Return the time until a hang is detected. The process is observed as suspended half a second later."""
    present, _ = reduce(replace(start, at=AT + 100), standing("T", at=AT + 100.5))
    at = AT + 100.5
    while present.daemons[DAEMON].state is not DaemonState.UNRESPONSIVE:
        if poll_schedule.commands(replace(present, at=at), DAEMON, PollIntervals()):
            at += 5
            present, _ = reduce(present, silence(at=at))
        else:
            at += 0.5
        assert at < AT + 200
    return at - (AT + 100)


@pytest.mark.parametrize("start", [UNLOGGED, LOGGED], ids=("without its log", "with its log"))
def test_a_suspended_daemon_is_unresponsive_within_15_seconds(start: Node) -> None:
    assert seconds_to_unresponsive(reduced(servers(SERVER, at=AT + 99), start=start).node) <= 15


def test_a_resumed_daemon_that_answers_is_queried_at_the_usual_interval() -> None:
    went_on = reduced(
        standing("T", at=AT + 5), standing("S", at=AT + 12), servers(SERVER, at=AT + 13), start=LOGGED
    ).node
    assert "get_server_list" not in poll_schedule.commands(replace(went_on, at=AT + 20), DAEMON, PollIntervals())


# -- process states ----------------------------------------------------------------------------------------------------


def test_an_unchanged_state_retains_its_first_time() -> None:
    node = reduced(standing("T", at=AT + 5), standing("T", at=AT + 9), start=UNLOGGED).node
    assert node.states[CONTROL].at == AT + 5
    again = reduced(standing("S", at=AT + 10), standing("T", at=AT + 11), start=node).node
    assert again.states[CONTROL].at == AT + 11


def test_the_state_of_another_process_has_its_own_time() -> None:
    node = reduced(standing("T", at=AT + 5), standing("T", at=AT + 9, ticks=7), start=UNLOGGED).node
    assert node.states[CONTROL].at == AT + 9


def test_the_state_is_removed_with_its_process() -> None:
    start = reduced(process(CONTROL, uid=0), standing("S"), standing("S", SERVER), start=UNLOGGED).node
    assert reduced(exited(SERVER, at=AT + 5), start=start).node.states.keys() == {CONTROL}
    assert reduced(exited(SERVER, at=AT + 5, ticks=7), start=start).node.states.keys() == {CONTROL, SERVER}


# Process states, session holders and control sockets: when they are collected, and which queries they prevent.


UP = reduced(*at_work(CLIENT), daemon_process(), process(SERVER, uid=0), gpu_reading([CLIENT])).node
LATER = 20_000
"""After this time, every query is due."""


def queries(node: Node, after: float = LATER) -> tuple[str, ...]:
    return poll_schedule.commands(replace(node, at=AT + after), DAEMON, PollIntervals())


def wanted(node: Node) -> Wanted:
    return poll_schedule.readings_wanted(node)


# -- processes -----------------------------------------------------------------------------------------------------


def test_collects_states_of_daemons_and_servers_only() -> None:
    assert wanted(UP).states == {CONTROL, SERVER}
    foreign = reduced(replace(daemon_process(), protocol=4)).node
    assert wanted(foreign).states == frozenset()


def test_sends_no_query_about_a_suspended_server() -> None:
    """It would hang the daemon (measured, R580). The daemon itself is queried as usual."""
    stopped = reduced(standing("T", SERVER, at=AT + 1), start=UP).node
    assert any(str(SERVER) in command for command in queries(UP))
    assert not any(str(SERVER) in command for command in queries(stopped))
    assert "get_server_list" in queries(stopped)


def test_queries_a_resumed_server_again() -> None:
    went_on = reduced(standing("T", SERVER, at=AT + 1), standing("S", SERVER, at=AT + 2), start=UP).node
    assert queries(went_on) == queries(UP)


def test_a_suspended_process_with_an_earlier_pid_is_not_the_server() -> None:
    another = reduced(standing("T", SERVER, at=AT + 1, ticks=7), start=UP).node
    assert queries(another) == queries(UP)


def test_queries_a_suspended_daemon_at_once_and_soon_again() -> None:
    """Otherwise its hang would be detected a minute later."""
    answered = reduced(servers(SERVER, at=AT + 10), start=UP).node
    assert "get_server_list" not in queries(answered, 11)
    stopped = reduced(standing("T", at=AT + 10.5), start=answered).node
    assert queries(stopped, 11) == ("get_server_list",)
    silent = reduced(silence(at=AT + 16), start=stopped).node
    assert queries(silent, 17) == ()
    assert queries(silent, 18) == ("get_server_list",)


def test_removes_states_of_unneeded_processes() -> None:
    start = reduced(standing("S"), standing("S", SERVER), standing("S", 4242), start=UP).node
    assert reduced(look(at=AT + 1), start=start).node.states.keys() == {CONTROL, SERVER}


# -- session holders ---------------------------------------------------------------------------------------------------


def test_collects_the_session_holder_while_commands_are_refused() -> None:
    assert wanted(UP).holders == frozenset()
    refused = reduced(refusal(at=AT + 1), start=UP).node
    held = reduced(refusal(at=AT + 9), start=refused).node
    assert wanted(refused).holders == wanted(held).holders == {DAEMON}
    assert wanted(reduced(servers(SERVER, at=AT + 10), start=held).node).holders == frozenset()


def test_stores_the_session_holder_until_the_daemon_answers_or_ends() -> None:
    held = reduced(refusal(at=AT + 1), holder(at=AT + 2), refusal(at=AT + 9), start=UP)
    assert held.daemon.commands.session_holder == holder(at=AT + 2)
    exit_ = ProcessExit(at=AT + 10, pid=CONTROL, start_ticks=CONTROL * 100)
    for over in (servers(SERVER, at=AT + 10), holder(None, at=AT + 10), exit_):
        start = reduced(process(CONTROL, uid=0), start=held.node).node
        assert reduced(over, start=start).daemon.commands.session_holder is None


def test_ignores_a_session_holder_without_refused_commands() -> None:
    """The collection was running."""
    assert reduced(holder(at=AT + 1), start=UP).daemon.commands.session_holder is None


# -- control sockets ---------------------------------------------------------------------------------------------------


def test_probes_the_socket_while_the_daemon_does_not_answer_or_has_ended() -> None:
    assert wanted(UP).sockets == frozenset()
    assert wanted(reduced(silence(at=AT + 1), start=UP).node).sockets == {DAEMON}
    gone = reduced(process(CONTROL, uid=0), exited(CONTROL, at=AT + 1), start=UP).node
    assert wanted(gone).sockets == {DAEMON}
    back = reduced(daemon_process(CONTROL + 1, at=AT + 2), servers(at=AT + 3), start=gone).node
    assert wanted(back).sockets == frozenset()


def test_stores_the_probe_until_the_next_answer() -> None:
    gone = reduced(no_daemon(at=AT + 1), socket(False, at=AT + 2), start=reduced(*at_work()).node)
    assert gone.daemon.commands.listening is False
    assert reduced(servers(at=AT + 5), start=gone.node).daemon.commands.listening is None


def test_ignores_a_probe_of_a_daemon_that_answers() -> None:
    assert reduced(socket(False, at=AT + 2), start=UP).daemon.commands.listening is None


def test_a_probe_does_not_create_a_daemon() -> None:
    node = reduced(socket(True, daemon="/other"), holder(daemon="/other"), start=UP).node
    assert node.daemons.keys() == {DAEMON}


# -- pid files ---------------------------------------------------------------------------------------------------------


def test_stores_a_remaining_pid_file_until_the_next_daemon() -> None:
    """It remains after SIGKILL and is removed by `quit` (measured, R580)."""
    gone = reduced(process(CONTROL, uid=0), exited(CONTROL, at=AT + 1), start=UP).node
    left = reduced(daemon_process(None, at=AT + 2, left=True), start=gone)
    assert left.daemon.lifecycle.pid_file_left is True
    assert reduced(daemon_process(None, at=AT + 3, left=False), start=left.node).daemon.lifecycle.pid_file_left is False
    assert reduced(daemon_process(CONTROL + 1, at=AT + 3), start=left.node).daemon.lifecycle.pid_file_left is None


# Any user can write the pid file. If it names another process, commands find no daemon although it runs.


LIVING = (daemon_process(), servers(at=AT))
SPOILT = (no_daemon(at=AT + 30), no_daemon(at=AT + 35))


def test_the_state_of_the_daemon_is_unknown() -> None:
    result = reduced(*LIVING, *SPOILT)

    assert result.daemon.state is None
    assert result.names() == [EventName.DAEMON_UP]
    assert document_of(result.node).severity is Severity.CRITICAL


def test_another_report_of_the_process_changes_nothing() -> None:
    """The collector reports each daemon that runs every 10 s."""
    result = reduced(*LIVING, *SPOILT, daemon_process(at=AT + 40))

    assert result.daemon.state is None
    assert result.names() == [EventName.DAEMON_UP]


def test_one_failed_command_proves_nothing() -> None:
    assert reduced(*LIVING, SPOILT[0]).daemon.state is DaemonState.UP


def test_status_reports_the_remedy() -> None:
    spoilt = reduced(*LIVING, *SPOILT).node

    assert f"The PID file of MPS daemon {DAEMON} does not contain the daemon's PID ({CONTROL})" in status_table(spoilt)
    assert "pid file" not in status_table(reduced(*LIVING).node)


def test_the_daemon_is_up_when_it_answers_again() -> None:
    assert reduced(*LIVING, *SPOILT, servers(at=AT + 40)).daemon.state is DaemonState.UP


def test_reports_the_end_of_the_daemon() -> None:
    died = exited(CONTROL, at=AT + 40)
    result = reduced(*LIVING, *SPOILT, died, look("log", at=AT + 42))

    assert result.daemon.state is DaemonState.DOWN
    assert result.names() == [EventName.DAEMON_UP, EventName.DAEMON_LOST]


# Daemons that cannot be queried, and starts that do not end: no state lasts forever or is invented.


MISSING = "nvidia-cuda-mps-control: No such file or directory"
PROBLEM = command_failed("nvidia-cuda-mps-control", 127, MISSING)
TEXT = f"nvidia-cuda-mps-control failed with exit code 127: {MISSING}"


def unusable(at: float) -> tuple[ControlReply, SourceReading]:
    """The control program does not exist."""
    return (
        reply("get_server_list", exit_code=127, stderr=MISSING, at=at),
        SourceReading(at=at, name="control", seconds=0.01, problem=PROBLEM, daemon=DAEMON),
    )


def queried_twice(*before: Observation) -> Node:
    return reduced(*before, *unusable(AT + 1), *unusable(AT + 3)).node


def daemon_of(present: Node) -> Daemon:
    return present.daemons[DAEMON]


def bypassing_known(present: Node) -> Node:
    return evaluate(present, Policy(), at=present.at, chance=0.0)[0]


def test_without_process_and_pid_file_there_is_no_daemon() -> None:
    assert daemon_of(queried_twice(daemon_process(None, left=False))).state is DaemonState.DOWN


@pytest.mark.parametrize("left", [True, None])
def test_the_state_is_unknown_if_a_pid_file_may_name_an_invisible_process(left: bool | None) -> None:
    assert daemon_of(queried_twice(daemon_process(None, left=left))).state is None


def test_one_start_of_an_unusable_program_proves_nothing() -> None:
    assert daemon_of(reduced(daemon_process(None, left=False), *unusable(AT + 1)).node).state is None


@pytest.mark.parametrize("before", [(), tuple(at_work())], ids=["starting", "up"])
def test_the_state_of_a_running_process_becomes_unknown(before: tuple[Observation, ...]) -> None:
    present = queried_twice(*before, daemon_process())

    assert (daemon_of(present).state, daemon_of(present).runtime.process is not None) == (None, True)


def test_an_absent_daemon_stays_absent() -> None:
    gone = queried_twice(daemon_process(None, left=False))

    later = reduced(*unusable(AT + 40), *unusable(AT + 80), start=gone).node

    assert daemon_of(later).lifecycle.state_since == daemon_of(gone).lifecycle.state_since


def test_the_daemon_answers_again_once_the_program_exists() -> None:
    assert daemon_of(reduced(*at_work(at=AT + 10), start=queried_twice(daemon_process())).node).state is DaemonState.UP


@pytest.mark.parametrize(("after", "state"), [(STARTING_SECONDS, DaemonState.STARTING), (STARTING_SECONDS + 1, None)])
def test_the_starting_state_is_bounded(after: float, state: DaemonState | None) -> None:
    present = reduced(daemon_process(), *looks(at=AT + after)).node

    assert daemon_of(present).state is state


def test_reports_an_absent_daemon_and_its_cause_at_once() -> None:
    present = bypassing_known(queried_twice(daemon_process(None, left=False)))

    first = findings(present, present.at, Policy())[0]

    assert (first.severity, commands_of(first)) == (Severity.CRITICAL, ("cuda-mps-exporter doctor",))
    assert f"it cannot be queried: {TEXT}" in first.text
    assert "Wait" not in first.all_steps[0].text
    assert present.watches[DAEMON].diagnosis is not None
    assert present.watches[DAEMON].diagnosis.condition is Condition.NEVER_STARTED


def test_does_not_report_a_daemon_that_cannot_be_queried_as_starting() -> None:
    present = bypassing_known(queried_twice(daemon_process()))

    first = findings(present, present.at, Policy())[0]

    assert (first.severity, first.daemon) == (Severity.WARNING, DAEMON)
    assert TEXT in first.text
    assert "Wait" not in first.all_steps[0].text
    assert severity_and_label(daemon_of(present), (first,)) == (Severity.WARNING, "not queried")


@pytest.mark.parametrize(("after", "waits"), [(5.0, True), (STARTING_SECONDS + 1, False)])
def test_status_names_a_bounded_waiting_time(after: float, waits: bool) -> None:
    present = reduced(*looks(at=AT), *looks(at=AT + after)).node

    first = findings(present, present.at, Policy())[0]

    assert first.remedy.startswith("Wait") is waits
    assert first.severity is (Severity.UNKNOWN if waits else Severity.WARNING)
    assert commands_of(first) == (() if waits else ("cuda-mps-exporter doctor",))


def test_the_remedy_creates_the_directories_of_a_daemon() -> None:
    present = bypassing_known(
        reduced(
            daemon_process(None, left=False),
            reply("get_server_list", exit_code=1, at=AT + 1, stderr="Cannot find MPS control daemon process\n"),
            *looks(at=AT + 2),
        ).node
    )

    first = findings(present, present.at, Policy())[0]

    where = f"CUDA_MPS_PIPE_DIRECTORY={DAEMON} CUDA_MPS_LOG_DIRECTORY={DAEMON}/log"
    assert first.steps[0].commands == (f"mkdir -p {DAEMON} {DAEMON}/log && {where} nvidia-cuda-mps-control -d",)


def test_stores_the_time_of_the_exporters_start() -> None:
    assert reduced(*looks(at=AT), *looks(at=AT + 7)).node.began_at == AT
    assert replace(Node(), at=AT).began_at is None
