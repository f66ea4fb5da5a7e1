"""Who else tells of a daemon: what is looked for when, what is remembered, and what is not asked because of it."""

from exporter.model.node import Node
from exporter.model.observation import ProcessExit, Wanted
from exporter.model.settings import PollIntervals
from exporter.model.values import replace
from exporter.state import poll_schedule
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    SERVER,
    at_work,
    daemon_process,
    exited,
    gpu_reading,
    holder,
    look,
    no_daemon,
    process,
    reduced,
    refusal,
    servers,
    silence,
    socket,
    standing,
)

UP = reduced(*at_work(CLIENT), daemon_process(), process(SERVER, uid=0), gpu_reading([CLIENT])).node
LATER = 20_000
"""Whatever there is to ask is due by then."""


def asked(node: Node, after: float = LATER) -> tuple[str, ...]:
    return poll_schedule.commands(replace(node, at=AT + after), DAEMON, PollIntervals())


def wanted(node: Node) -> Wanted:
    return poll_schedule.readings_wanted(node)


# -- processes -----------------------------------------------------------------------------------------------------


def test_it_matters_how_daemons_and_servers_stand_and_nobody_else() -> None:
    assert wanted(UP).states == {CONTROL, SERVER}
    foreign = reduced(replace(daemon_process(), protocol=3)).node
    assert wanted(foreign).states == frozenset()


def test_nothing_is_asked_about_a_server_that_was_stopped() -> None:
    """It would hang the daemon for everybody (measured, R580); the daemon itself is asked as ever."""
    stopped = reduced(standing("T", SERVER, at=AT + 1), start=UP).node
    assert any(str(SERVER) in command for command in asked(UP))
    assert not any(str(SERVER) in command for command in asked(stopped))
    assert "get_server_list" in asked(stopped)


def test_once_it_goes_on_it_is_asked_about_again() -> None:
    went_on = reduced(standing("T", SERVER, at=AT + 1), standing("S", SERVER, at=AT + 2), start=UP).node
    assert asked(went_on) == asked(UP)


def test_a_stopped_process_that_had_the_servers_pid_is_not_the_server() -> None:
    another = reduced(standing("T", SERVER, at=AT + 1, ticks=7), start=UP).node
    assert asked(another) == asked(UP)


def test_a_daemon_that_was_stopped_is_asked_at_once_and_again_soon() -> None:
    """Else its silence would be known a minute later."""
    answered = reduced(servers(SERVER, at=AT + 10), start=UP).node
    assert "get_server_list" not in asked(answered, 11)
    stopped = reduced(standing("T", at=AT + 10.5), start=answered).node
    assert asked(stopped, 11) == ("get_server_list",)
    silent = reduced(silence(at=AT + 16), start=stopped).node
    assert asked(silent, 17) == ()
    assert asked(silent, 18) == ("get_server_list",)


def test_one_that_hangs_for_long_is_asked_no_more_often_for_that() -> None:
    hung = reduced(standing("T", at=AT + 1), silence(at=AT + 6), silence(at=AT + 13), start=UP).node
    assert asked(hung, 17) == ()
    assert asked(hung, 18) == ("get_server_list",)


def test_states_of_processes_that_no_longer_matter_are_forgotten() -> None:
    start = reduced(standing("S"), standing("S", SERVER), standing("S", 4242), start=UP).node
    assert reduced(look(at=AT + 1), start=start).node.states.keys() == {CONTROL, SERVER}


# -- whoever holds the session -------------------------------------------------------------------------------------


def test_the_holder_is_looked_for_while_the_daemon_refuses() -> None:
    assert wanted(UP).holders == frozenset()
    refused = reduced(refusal(at=AT + 1), start=UP).node
    held = reduced(refusal(at=AT + 9), start=refused).node
    assert wanted(refused).holders == wanted(held).holders == {DAEMON}
    assert wanted(reduced(servers(SERVER, at=AT + 10), start=held).node).holders == frozenset()


def test_it_is_remembered_until_the_daemon_answers_again_or_is_gone() -> None:
    held = reduced(refusal(at=AT + 1), holder(at=AT + 2), refusal(at=AT + 9), start=UP)
    assert held.daemon.commands.session_holder == holder(at=AT + 2)
    exit_ = ProcessExit(at=AT + 10, pid=CONTROL, start_ticks=CONTROL * 100)
    for over in (servers(SERVER, at=AT + 10), silence(at=AT + 10), holder(None, at=AT + 10), exit_):
        start = reduced(process(CONTROL, uid=0), start=held.node).node
        assert reduced(over, start=start).daemon.commands.session_holder is None


def test_whoever_is_seen_when_nobody_is_refused_holds_nothing() -> None:
    """The observation was under way."""
    assert reduced(holder(at=AT + 1), start=UP).daemon.commands.session_holder is None


# -- whoever listens -----------------------------------------------------------------------------------------------


def test_the_socket_is_looked_at_while_the_daemon_does_not_answer_or_is_gone() -> None:
    assert wanted(UP).sockets == frozenset()
    assert wanted(reduced(silence(at=AT + 1), start=UP).node).sockets == {DAEMON}
    gone = reduced(process(CONTROL, uid=0), exited(CONTROL, at=AT + 1), start=UP).node
    assert wanted(gone).sockets == {DAEMON}
    back = reduced(daemon_process(CONTROL + 1, at=AT + 2), servers(at=AT + 3), start=gone).node
    assert wanted(back).sockets == frozenset()


def test_what_was_seen_is_remembered_until_the_next_answer() -> None:
    gone = reduced(no_daemon(at=AT + 1), socket(False, at=AT + 2), start=reduced(*at_work()).node)
    assert gone.daemon.commands.listening is False
    assert reduced(servers(at=AT + 5), start=gone.node).daemon.commands.listening is None


def test_what_is_seen_of_one_that_answers_by_then_is_not_remembered() -> None:
    assert reduced(socket(False, at=AT + 2), start=UP).daemon.commands.listening is None


def test_a_daemon_that_nobody_knows_is_not_made_by_it() -> None:
    node = reduced(socket(True, daemon="/other"), holder(daemon="/other"), start=UP).node
    assert node.daemons.keys() == {DAEMON}


# -- what a dead daemon left ---------------------------------------------------------------------------------------


def test_a_pid_file_that_a_dead_daemon_left_is_remembered_until_there_is_another() -> None:
    """After SIGKILL it stays, after `quit` it goes (measured, R580)."""
    gone = reduced(process(CONTROL, uid=0), exited(CONTROL, at=AT + 1), start=UP).node
    left = reduced(daemon_process(None, at=AT + 2, left=True), start=gone)
    assert left.daemon.lifecycle.pid_file_left is True
    assert reduced(daemon_process(None, at=AT + 3, left=False), start=left.node).daemon.lifecycle.pid_file_left is False
    assert reduced(daemon_process(CONTROL + 1, at=AT + 3), start=left.node).daemon.lifecycle.pid_file_left is None
