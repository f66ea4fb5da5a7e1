"""A daemon that does not answer hangs if a second indication confirms it. One or two slow answers do not."""

import pytest

from exporter.model.daemon import DaemonState
from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.reason import timed_out
from exporter.model.settings import PollIntervals
from exporter.model.values import replace
from exporter.reducer import reduce
from exporter.state import poll_schedule
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
    look,
    no_daemon,
    probe,
    process,
    reduced,
    refusal,
    servers,
    silence,
    socket,
    standing,
    status,
)

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


# -- other indications -------------------------------------------------------------------------------------------------


def test_two_unanswered_commands_alone_do_not_confirm_a_hang() -> None:
    assert state(*SILENT, standing("S")) is DaemonState.UP


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


@pytest.mark.parametrize("letter", ["T", "t", "D"])
def test_a_suspended_or_stuck_process_confirms_a_hang(letter: str) -> None:
    assert state(standing(letter, at=AT + 4), *SILENT) is DaemonState.UNRESPONSIVE


@pytest.mark.parametrize("letter", ["T", "t", "D"])
def test_a_suspended_or_stuck_server_confirms_a_hang(letter: str) -> None:
    """The daemon waits for the server's answer (measured, R580)."""
    assert state(standing(letter, SERVER, at=AT + 4), *SILENT) is DaemonState.UNRESPONSIVE


@pytest.mark.parametrize("letter", ["S", "R", "I"])
def test_a_running_or_sleeping_process_does_not_confirm_a_hang(letter: str) -> None:
    assert state(standing(letter, at=AT + 4), standing(letter, SERVER, at=AT + 4), *SILENT) is DaemonState.UP


def test_a_process_that_was_stuck_only_later_does_not_confirm_a_hang() -> None:
    """It must have been stuck when the last command was sent."""
    assert state(*SILENT, standing("D", at=AT + 20)) is DaemonState.UP


def test_another_process_with_the_pid_does_not_confirm_a_hang() -> None:
    for pid in (CONTROL, SERVER):
        assert state(standing("T", pid, at=AT + 4, ticks=7), *SILENT) is DaemonState.UP


def test_a_socket_without_a_listener_confirms_a_hang() -> None:
    assert state(*SILENT, socket(False, at=AT + 21)) is DaemonState.UNRESPONSIVE


@pytest.mark.parametrize("listening", [True, None])
def test_a_listener_or_an_unknown_socket_does_not_confirm_a_hang(listening: bool | None) -> None:
    assert state(*SILENT, socket(listening, at=AT + 21)) is DaemonState.UP


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
    story = reduced(*hangs, silence(at=AT + 30), probe(True, at=AT + 30.1), start=UNLOGGED)
    assert story.names() == [EventName.DAEMON_UNRESPONSIVE, EventName.DAEMON_RESPONSIVE]


def test_two_sequential_commands_confirm_a_hang_in_a_recording_of_commands_only() -> None:
    """Recordings of other programs have only commands and logs."""
    assert state(silence(at=AT + 10), silence(at=AT + 15.5)) is DaemonState.UNRESPONSIVE
    assert state(silence(at=AT + 10), silence(at=AT + 13)) is DaemonState.UP


def test_five_unanswered_commands_confirm_a_hang_without_other_indications() -> None:
    assert state(*unanswered(4)) is DaemonState.UP
    assert state(*unanswered(5)) is DaemonState.UNRESPONSIVE
    quick = [silence(at=AT + 10 + each) for each in range(9)]
    assert state(quick[0], probe(None, at=AT + 10), *quick[1:]) is DaemonState.UP


def test_one_unanswered_command_never_confirms_a_hang() -> None:
    assert state(standing("T", at=AT + 4), silence(at=AT + 10), socket(False, at=AT + 19)) is DaemonState.UP


def test_an_indication_after_the_commands_confirms_a_hang() -> None:
    assert reduced(*SILENT, socket(False, at=AT + 21), start=UNLOGGED).names() == [EventName.DAEMON_UNRESPONSIVE]


def test_an_answer_or_a_refusal_restarts_the_detection() -> None:
    stopped = standing("T", at=AT + 4)
    for answer in (servers(SERVER, at=AT + 12), refusal(at=AT + 12)):
        assert state(stopped, silence(at=AT + 10), answer, silence(at=AT + 20)) is DaemonState.UP


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
