"""The exporter's own commands must appear in the daemon's log: else it is blocked, and tells nothing any more."""

import pytest

from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import LogFile, LogGap, LogLine, Observation, SourceReading
from exporter.model.problem import Problem
from exporter.model.settings import PollIntervals
from exporter.model.values import replace
from exporter.state import poll_schedule
from exporter.state.reducer import reduce
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    HANGS,
    SERVER,
    UNREADABLE,
    at_work,
    clients,
    control_log,
    daemon_process,
    exited,
    look,
    process,
    reduced,
    refusal,
    reply,
    servers,
    stamped,
    status,
)
from tests.core.test_agenda import healthy

LIST = "get_server_list"
FOLLOWED = tuple(LogFile(at=AT, daemon=DAEMON, file=file) for file in ("control.log", "server.log"))
KNOWN = (*FOLLOWED, daemon_process(), process(SERVER, uid=0), *at_work(CLIENT), *control_log(f"Cmd:{LIST}"))
START = reduced(*KNOWN).node
"""A daemon whose log is followed, and has shown a command of the exporter."""


def missing(at: float) -> tuple[Observation, ...]:
    """A command is answered, and six seconds later no line of it was read."""
    return servers(SERVER, at=at), look("log", at=at + 6)


BLOCKED = (*missing(AT + 10), *missing(AT + 20))


def is_blocked(*seen: Observation, start: Node = START) -> bool:
    return reduced(*seen, start=start).daemon.log.own_commands.blocked_since is not None


def test_two_commands_in_a_row_that_are_not_logged_show_a_blocked_log() -> None:
    story = reduced(*BLOCKED, start=START)
    assert story.names() == [EventName.LOG_BLOCKED]
    assert story.daemon.log.own_commands.blocked_since == AT + 26


def test_the_log_of_a_blocked_daemon_is_not_followed() -> None:
    assert START.daemons[DAEMON].log_followed
    assert not reduced(*BLOCKED, start=START).daemon.log_followed


def test_one_command_shows_nothing() -> None:
    assert not is_blocked(*missing(AT + 10))
    assert not is_blocked(servers(SERVER, at=AT + 10), status("ACTIVE", at=AT + 10), look("log", at=AT + 16))


def test_a_command_that_is_logged_late_is_logged() -> None:
    for at in (AT + 9.9985, AT + 10, AT + 15):
        seen = sorted((servers(SERVER, at=AT + 10), *control_log(f"Cmd:{LIST}", at=at)), key=lambda each: each.at)
        assert not is_blocked(*missing(AT + 2), *seen, *missing(AT + 20))


def test_the_next_command_that_is_logged_ends_it() -> None:
    story = reduced(*BLOCKED, *control_log(f"Cmd:{LIST}", at=AT + 40), start=START)
    assert story.names() == [EventName.LOG_BLOCKED, EventName.LOG_UNBLOCKED]
    assert story.daemon.log_followed


@pytest.mark.parametrize(
    "line",
    [
        *control_log("Accepting connection...", at=AT + 40),
        *control_log("Cmd:quit", at=AT + 40),
        *control_log(f"Cmd:{LIST}", at=AT + 40, pid=CONTROL + 1),
        LogLine(at=AT + 40, daemon=DAEMON, file="server.log", line=stamped(f"Cmd:{LIST}")),
        LogLine(at=AT + 40, daemon=DAEMON, file="control.log", line=f"Cmd:{LIST}"),
        LogLine(at=AT + 40, daemon=DAEMON, file="control.log", line=stamped(f"Cmd:{LIST}", "Server", CONTROL)),
    ],
)
def test_other_lines_do_not(line: LogLine) -> None:
    assert is_blocked(*BLOCKED, line)


def test_a_log_that_never_showed_a_command_may_be_another_daemons() -> None:
    never = reduced(*FOLLOWED, daemon_process(), process(SERVER, uid=0), *at_work(CLIENT)).node
    assert not is_blocked(*BLOCKED, start=never)


def test_nor_does_it_say_anything_of_the_daemon_that_comes_after() -> None:
    """That one may write elsewhere."""
    after = (exited(CONTROL, at=AT + 2), daemon_process(900, at=AT + 4), servers(SERVER, at=AT + 5))
    assert not is_blocked(process(CONTROL, uid=0), *after, *BLOCKED)


def test_the_next_daemons_first_command_ends_it() -> None:
    """A new daemon makes a new fifo."""
    after = (exited(CONTROL, at=AT + 32), daemon_process(900, at=AT + 34), servers(at=AT + 35))
    blocked = reduced(process(CONTROL, uid=0), *BLOCKED, *after, start=START)
    assert not blocked.daemon.log_followed
    assert reduced(*control_log(f"Cmd:{LIST}", at=AT + 35.1, pid=900), start=blocked.node).daemon.log_followed


@pytest.mark.parametrize(
    "answer",
    [
        reply("-v", "version: 13000", at=AT + 20),
        reply("ps", "PID\n", at=AT + 20),
        reply("get_default_device_pinned_mem_limit 0", at=AT + 20),
        servers(at=AT + 20),
        refusal(at=AT + 20),
        reply(LIST, exit_code=None, seconds=5.0, at=AT + 20),
    ],
    ids=["not a command", "not the exporter's", "no answer", "no answer beside a server", "refused", "not answered"],
)
def test_what_the_daemon_did_not_answer_need_not_be_logged(answer: Observation) -> None:
    assert not is_blocked(*missing(AT + 10), answer, look("log", at=AT + 26))


def test_an_idle_daemon_without_servers_answers_with_nothing() -> None:
    idle = reduced(*FOLLOWED, daemon_process(), servers(), *control_log(f"Cmd:{LIST}")).node
    seen = (servers(at=AT + 10), look("log", at=AT + 16), servers(at=AT + 20), look("log", at=AT + 26))
    assert is_blocked(*seen, start=idle)


def test_while_lines_are_left_unread_none_is_missing() -> None:
    """A flood of them may keep the exporter busy."""
    behind = SourceReading(at=AT + 25, name="log", seconds=0.1, more=True)
    answered, looked = missing(AT + 20)
    assert not is_blocked(*missing(AT + 10), answered, behind, looked)
    assert is_blocked(*missing(AT + 10), answered, behind, looked, look("log", at=AT + 31))


def test_behind_with_the_logs_of_another_daemon_is_not_behind_with_these() -> None:
    answered, looked = missing(AT + 20)
    other = SourceReading(at=AT + 25, name="log", seconds=0.1, more=True, daemon="/other")
    assert is_blocked(*missing(AT + 10), answered, other, looked)


def test_while_no_look_comes_to_an_end_no_line_is_missing() -> None:
    """The log directory may hang: a look that began before is reported, and has read nothing."""
    hangs = SourceReading(at=AT + 40, name="log", seconds=19.0, problem=HANGS)
    assert not is_blocked(*missing(AT + 10), servers(SERVER, at=AT + 20), hangs)


def test_among_lines_that_were_lost_a_command_may_be() -> None:
    answered, looked = missing(AT + 20)
    assert not is_blocked(
        *missing(AT + 10), answered, LogGap(at=AT + 22, daemon=DAEMON, file="control.log", lines=9), looked
    )


@pytest.mark.parametrize("problem", [UNREADABLE, None])
def test_a_log_that_cannot_be_read_is_not_called_blocked(problem: Problem | None) -> None:
    gone = LogFile(at=AT + 1, daemon=DAEMON, file="control.log", problem=problem, followed=problem is not None)
    assert not is_blocked(gone, *BLOCKED)


def test_the_journal_may_drop_lines() -> None:
    line = replace(control_log(f"Cmd:{LIST}")[0], file="stdout")
    journal = reduced(LogFile(at=AT, daemon=DAEMON, file="stdout"), daemon_process(), *at_work(CLIENT)[1:], line).node
    assert not is_blocked(*BLOCKED, start=journal)


def test_a_forged_command_hides_it_no_longer_than_it_is_repeated() -> None:
    """Into a log that is blocked nobody can write: the daemon no longer reads the fifo."""
    forged = control_log(f"Cmd:{LIST}", at=AT + 11)
    assert not is_blocked(servers(SERVER, at=AT + 10), *forged, look("log", at=AT + 16), *missing(AT + 20))
    assert is_blocked(servers(SERVER, at=AT + 10), *forged, *missing(AT + 20), *missing(AT + 30))


# -- how soon, and what follows ----------------------------------------------------------------------------------------


def seconds_to_blocked(answer: str) -> float:
    """How long it takes with the exporter's own questions; the log is looked at every half second."""
    start = reduced(look("log", at=AT + 1), start=START).node
    present, at = start, AT + 1.0
    while present.daemons[DAEMON].log.own_commands.blocked_since is None:
        at += 0.5
        present = replace(present, at=at)
        for command in poll_schedule.commands(present, DAEMON, PollIntervals()):
            present, _ = reduce(present, replace(healthy(command, at), stdout=answer or healthy(command, at).stdout))
        present, _ = reduce(present, look("log", at=at))
        assert at < AT + 300
    return at - (AT + 1)


def test_a_blocked_log_is_reported_within_60_seconds() -> None:
    assert seconds_to_blocked("") <= 60


def test_a_missing_line_is_asked_about_at_once() -> None:
    after = reduced(*missing(AT + 10), start=START).node
    assert poll_schedule.commands(after, DAEMON, PollIntervals()) == (LIST,)
    again = reduced(servers(SERVER, at=AT + 16.5), start=after).node
    assert LIST not in poll_schedule.commands(again, DAEMON, PollIntervals())


def test_a_daemon_whose_log_is_blocked_is_asked_as_one_whose_log_is_not_followed() -> None:
    blocked = reduced(*BLOCKED, status("ACTIVE", at=AT + 80), clients(CLIENT, at=AT + 80), start=START).node
    assert LIST in poll_schedule.commands(replace(blocked, at=AT + 81), DAEMON, PollIntervals())
