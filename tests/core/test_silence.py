"""A daemon that does not answer hangs where a second witness says so; one slow answer, or two, are no diagnosis."""

import pytest

from exporter.model.daemon import DaemonState
from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.settings import PollIntervals
from exporter.model.values import replace
from exporter.state import poll_schedule
from exporter.state.reducer import reduce
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    SERVER,
    at_work,
    clients,
    control_log,
    daemon_process,
    exited,
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
"""Two commands that got no answer; each took five seconds. The socket is looked at after the first."""

UNLOGGED = reduced(servers(SERVER), status("ACTIVE"), clients(CLIENT), daemon_process(), process(SERVER, uid=0)).node
"""A daemon at work, since AT, whose process is known and whose log is not read."""

LOGGED = reduced(*at_work(CLIENT), daemon_process(), process(SERVER, uid=0)).node
"""One whose log is followed."""


def state(*seen: Observation, start: Node = UNLOGGED) -> DaemonState | None:
    return reduced(*seen, start=start).daemon.state


def late(number: int) -> tuple[Observation, ...]:
    """So many commands without an answer, ten seconds apart, and no connection could be made."""
    first, *others = (silence(at=AT + 10 * each) for each in range(1, number + 1))
    return first, probe(None, at=AT + 10.5), *others


# -- who else may tell -------------------------------------------------------------------------------------------------


def test_two_silences_alone_are_no_diagnosis() -> None:
    assert state(*SILENT, standing("S")) is DaemonState.UP


@pytest.mark.parametrize("letter", ["T", "t", "D"])
def test_its_process_is_stopped_or_cannot_be_woken(letter: str) -> None:
    assert state(standing(letter, at=AT + 4), *SILENT) is DaemonState.UNRESPONSIVE


@pytest.mark.parametrize("letter", ["T", "t", "D"])
def test_or_one_of_its_servers_is(letter: str) -> None:
    """The daemon waits for that one's answer (measured, R580)."""
    assert state(standing(letter, SERVER, at=AT + 4), *SILENT) is DaemonState.UNRESPONSIVE


@pytest.mark.parametrize("letter", ["S", "R", "I"])
def test_one_that_sleeps_or_runs_says_nothing(letter: str) -> None:
    assert state(standing(letter, at=AT + 4), standing(letter, SERVER, at=AT + 4), *SILENT) is DaemonState.UP


def test_one_that_sleeps_for_a_moment_says_nothing_of_the_whole_silence() -> None:
    """It must have been so when the last command was given."""
    assert state(*SILENT, standing("D", at=AT + 20)) is DaemonState.UP


def test_another_process_with_its_pid_says_nothing() -> None:
    for pid in (CONTROL, SERVER):
        assert state(standing("T", pid, at=AT + 4, ticks=7), *SILENT) is DaemonState.UP


def test_nobody_listens_though_it_lives() -> None:
    assert state(*SILENT, socket(False, at=AT + 21)) is DaemonState.UNRESPONSIVE


@pytest.mark.parametrize("listening", [True, None])
def test_whoever_listens_or_cannot_be_seen_says_nothing(listening: bool | None) -> None:
    assert state(*SILENT, socket(listening, at=AT + 21)) is DaemonState.UP


def test_a_log_without_a_line_says_nothing() -> None:
    """If only the control program hangs, the daemon has nothing to write."""
    assert state(*SILENT, start=LOGGED) is DaemonState.UP


def test_lines_in_the_log_say_nothing() -> None:
    """Every user can write them."""
    lines = [line for second in range(8) for line in control_log("NEW UI", at=AT + 10 * second + 6)]
    seen = sorted([*lines, *late(7)], key=lambda each: each.at)
    assert state(*seen, start=LOGGED) is DaemonState.UNRESPONSIVE


def test_two_connections_of_the_exporter_that_get_no_answer_say_that_it_hangs() -> None:
    one = (silence(at=AT + 10), probe(False, at=AT + 12), silence(at=AT + 20))
    assert state(*one) is DaemonState.UP
    assert state(*one, probe(False, at=AT + 22)) is DaemonState.UNRESPONSIVE


def test_an_answer_to_one_of_them_says_that_it_does_not() -> None:
    answered = (silence(at=AT + 10), probe(False, at=AT + 12), silence(at=AT + 20), probe(True, at=AT + 20.1))
    assert state(*answered) is DaemonState.UP
    assert state(*answered, *(silence(at=AT + 30 + 10 * each) for each in range(9))) is DaemonState.UP
    again = (silence(at=AT + 30), probe(False, at=AT + 32), silence(at=AT + 40), probe(False, at=AT + 42))
    assert state(*answered, *again) is DaemonState.UNRESPONSIVE


def test_connections_from_before_the_last_answer_do_not_count() -> None:
    before = (silence(at=AT + 10), probe(False, at=AT + 12), servers(SERVER, at=AT + 20))
    after = (silence(at=AT + 30), probe(False, at=AT + 32), silence(at=AT + 40))
    assert state(*before, *after) is DaemonState.UP


def test_a_process_that_was_stopped_after_the_last_answer_hangs() -> None:
    """No connection is made then, which could say so."""
    answered = (silence(at=AT + 10), probe(True, at=AT + 10.1))
    assert state(*answered, standing("T", at=AT + 11), silence(at=AT + 20)) is DaemonState.UNRESPONSIVE
    assert state(standing("D", SERVER, at=AT + 4), *answered, silence(at=AT + 20)) is DaemonState.UP


def test_one_that_answers_connections_again_is_up() -> None:
    hangs = (silence(at=AT + 10), probe(False, at=AT + 12), silence(at=AT + 20), probe(False, at=AT + 22))
    story = reduced(*hangs, silence(at=AT + 30), probe(True, at=AT + 30.1), start=UNLOGGED)
    assert story.names() == [EventName.DAEMON_UNRESPONSIVE, EventName.DAEMON_RESPONSIVE]


def test_in_a_recording_without_witnesses_two_commands_do_if_the_second_was_given_after_the_first_failed() -> None:
    """Those of other programs have commands and logs alone."""
    assert state(silence(at=AT + 10), silence(at=AT + 15.5)) is DaemonState.UNRESPONSIVE
    assert state(silence(at=AT + 10), silence(at=AT + 13)) is DaemonState.UP


def test_where_nobody_else_could_tell_five_silences_in_half_a_minute_do() -> None:
    assert state(*late(4)) is DaemonState.UP
    assert state(*late(5)) is DaemonState.UNRESPONSIVE
    quick = [silence(at=AT + 10 + each) for each in range(9)]
    assert state(quick[0], probe(None, at=AT + 10), *quick[1:]) is DaemonState.UP


def test_one_silence_is_none_whoever_else_tells() -> None:
    assert state(standing("T", at=AT + 4), silence(at=AT + 10), socket(False, at=AT + 19)) is DaemonState.UP


def test_a_witness_that_comes_last_tells_too() -> None:
    assert reduced(*SILENT, socket(False, at=AT + 21), start=UNLOGGED).names() == [EventName.DAEMON_UNRESPONSIVE]


def test_an_answer_or_a_refusal_between_begins_anew() -> None:
    stopped = standing("T", at=AT + 4)
    for answer in (servers(SERVER, at=AT + 12), refusal(at=AT + 12)):
        assert state(stopped, silence(at=AT + 10), answer, silence(at=AT + 20)) is DaemonState.UP


def test_an_answer_takes_all_back() -> None:
    daemon = reduced(*SILENT, socket(False, at=AT + 21), servers(SERVER, at=AT + 22), start=UNLOGGED).daemon
    assert daemon.state is DaemonState.UP
    assert (daemon.commands.unanswered, daemon.commands.unanswered_since, daemon.commands.listening) == (0, None, None)


def test_a_pid_file_that_was_removed_is_no_silence() -> None:
    """NVIDIA's program does not even try to connect then; the daemon serves its clients on, and nobody can ask it."""
    lost = [no_daemon(at=AT + 10 * each) for each in range(1, 8)]
    assert state(*lost, start=LOGGED) is None


# -- how soon ----------------------------------------------------------------------------------------------------------


def seconds_to_unresponsive(start: Node) -> float:
    """How long it takes, where the process is seen to be stopped half a second later."""
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
def test_a_stopped_daemon_is_unresponsive_within_15_seconds(start: Node) -> None:
    assert seconds_to_unresponsive(reduced(servers(SERVER, at=AT + 99), start=start).node) <= 15


def test_one_that_goes_on_and_answers_is_not_asked_at_once_any_more() -> None:
    went_on = reduced(
        standing("T", at=AT + 5), standing("S", at=AT + 12), servers(SERVER, at=AT + 13), start=LOGGED
    ).node
    assert "get_server_list" not in poll_schedule.commands(replace(went_on, at=AT + 20), DAEMON, PollIntervals())


# -- how processes stand -----------------------------------------------------------------------------------------------


def test_since_when_is_since_it_was_first_seen_so() -> None:
    """A source that begins anew tells again."""
    node = reduced(standing("T", at=AT + 5), standing("T", at=AT + 9), start=UNLOGGED).node
    assert node.states[CONTROL].at == AT + 5
    again = reduced(standing("S", at=AT + 10), standing("T", at=AT + 11), start=node).node
    assert again.states[CONTROL].at == AT + 11


def test_another_process_begins_anew() -> None:
    node = reduced(standing("T", at=AT + 5), standing("T", at=AT + 9, ticks=7), start=UNLOGGED).node
    assert node.states[CONTROL].at == AT + 9


def test_it_is_forgotten_with_the_process() -> None:
    start = reduced(process(CONTROL, uid=0), standing("S"), standing("S", SERVER), start=UNLOGGED).node
    assert reduced(exited(SERVER, at=AT + 5), start=start).node.states.keys() == {CONTROL}
    assert reduced(exited(SERVER, at=AT + 5, ticks=7), start=start).node.states.keys() == {CONTROL, SERVER}
