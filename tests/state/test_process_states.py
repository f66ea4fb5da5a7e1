"""Process states, session holders and control sockets: when they are collected, and which queries they prevent."""

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


def test_queries_a_daemon_that_hangs_for_long_no_more_often() -> None:
    hung = reduced(standing("T", at=AT + 1), silence(at=AT + 6), silence(at=AT + 13), start=UP).node
    assert queries(hung, 17) == ()
    assert queries(hung, 18) == ("get_server_list",)


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
