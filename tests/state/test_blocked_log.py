"""The exporter's commands must appear in the daemon's log. Otherwise the log is blocked and not followed."""

import pytest

from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import LogFile, LogGap, LogLine, Observation, SourceReading
from exporter.model.reason import Reason
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
from tests.state.test_poll_schedule import healthy

LIST = "get_server_list"
FOLLOWED = tuple(LogFile(at=AT, daemon=DAEMON, file=file) for file in ("control.log", "server.log"))
KNOWN = (*FOLLOWED, daemon_process(), process(SERVER, uid=0), *at_work(CLIENT), *control_log(f"Cmd:{LIST}"))
START = reduced(*KNOWN).node
"""A daemon with a followed log that has a command of the exporter."""


def missing(at: float) -> tuple[Observation, ...]:
    """A command is answered. Six seconds later, its line was not read."""
    return servers(SERVER, at=at), look("log", at=at + 6)


BLOCKED = (*missing(AT + 10), *missing(AT + 20))


def is_blocked(*seen: Observation, start: Node = START) -> bool:
    return reduced(*seen, start=start).daemon.log.own_commands.blocked_since is not None


def test_two_consecutive_missing_commands_show_a_blocked_log() -> None:
    story = reduced(*BLOCKED, start=START)
    assert story.names() == [EventName.LOG_BLOCKED]
    assert story.daemon.log.own_commands.blocked_since == AT + 26


def test_does_not_follow_a_blocked_log() -> None:
    assert START.daemons[DAEMON].log_followed
    assert not reduced(*BLOCKED, start=START).daemon.log_followed


def test_one_missing_command_proves_nothing() -> None:
    assert not is_blocked(*missing(AT + 10))
    assert not is_blocked(servers(SERVER, at=AT + 10), status("ACTIVE", at=AT + 10), look("log", at=AT + 16))


def test_a_late_line_counts_as_logged() -> None:
    for at in (AT + 9.9985, AT + 10, AT + 15):
        seen = sorted((servers(SERVER, at=AT + 10), *control_log(f"Cmd:{LIST}", at=at)), key=lambda each: each.at)
        assert not is_blocked(*missing(AT + 2), *seen, *missing(AT + 20))


def test_a_logged_command_shows_that_the_log_is_no_longer_blocked() -> None:
    story = reduced(*BLOCKED, *control_log(f"Cmd:{LIST}", at=AT + 40), start=START)
    assert story.names() == [EventName.LOG_BLOCKED, EventName.LOG_UNBLOCKED]
    assert story.daemon.log_followed


def test_other_lines_do_not_show_that_the_log_is_no_longer_blocked(subtests: pytest.Subtests) -> None:
    for line in [
        *control_log("Accepting connection...", at=AT + 40),
        *control_log("Cmd:quit", at=AT + 40),
        *control_log(f"Cmd:{LIST}", at=AT + 40, pid=CONTROL + 1),
        LogLine(at=AT + 40, daemon=DAEMON, file="server.log", line=stamped(f"Cmd:{LIST}")),
        LogLine(at=AT + 40, daemon=DAEMON, file="control.log", line=f"Cmd:{LIST}"),
        LogLine(at=AT + 40, daemon=DAEMON, file="control.log", line=stamped(f"Cmd:{LIST}", "Server", CONTROL)),
    ]:
        with subtests.test(line=line):
            assert is_blocked(*BLOCKED, line)


def test_a_log_that_never_had_a_command_may_be_of_another_daemon() -> None:
    never = reduced(*FOLLOWED, daemon_process(), process(SERVER, uid=0), *at_work(CLIENT)).node
    assert not is_blocked(*BLOCKED, start=never)


def test_an_earlier_log_proves_nothing_about_the_next_daemon() -> None:
    """The next daemon may write elsewhere."""
    after = (exited(CONTROL, at=AT + 2), daemon_process(900, at=AT + 4), servers(SERVER, at=AT + 5))
    assert not is_blocked(process(CONTROL, uid=0), *after, *BLOCKED)


def test_the_first_logged_command_of_the_next_daemon_ends_the_block() -> None:
    """A new daemon creates a new fifo."""
    after = (exited(CONTROL, at=AT + 32), daemon_process(900, at=AT + 34), servers(at=AT + 35))
    blocked = reduced(process(CONTROL, uid=0), *BLOCKED, *after, start=START)
    assert not blocked.daemon.log_followed
    assert reduced(*control_log(f"Cmd:{LIST}", at=AT + 35.1, pid=900), start=blocked.node).daemon.log_followed


def test_does_not_expect_unanswered_commands_in_the_log(subtests: pytest.Subtests) -> None:
    for answer in [
        reply("-v", "version: 13000", at=AT + 20),
        reply("ps", "PID\n", at=AT + 20),
        reply("get_default_device_pinned_mem_limit 0", at=AT + 20),
        servers(at=AT + 20),
        refusal(at=AT + 20),
        reply(LIST, exit_code=None, seconds=5.0, at=AT + 20),
    ]:
        with subtests.test(answer=answer):
            assert not is_blocked(*missing(AT + 10), answer, look("log", at=AT + 26))


def test_expects_the_empty_list_of_an_idle_daemon_in_the_log() -> None:
    idle = reduced(*FOLLOWED, daemon_process(), servers(), *control_log(f"Cmd:{LIST}")).node
    seen = (servers(at=AT + 10), look("log", at=AT + 16), servers(at=AT + 20), look("log", at=AT + 26))
    assert is_blocked(*seen, start=idle)


def test_no_command_is_missing_while_lines_are_unread() -> None:
    """A flood of lines may delay the exporter."""
    behind = SourceReading(at=AT + 25, name="log", seconds=0.1, more=True)
    answered, looked = missing(AT + 20)
    assert not is_blocked(*missing(AT + 10), answered, behind, looked)
    assert is_blocked(*missing(AT + 10), answered, behind, looked, look("log", at=AT + 31))


def test_unread_lines_of_another_daemon_do_not_matter() -> None:
    answered, looked = missing(AT + 20)
    other = SourceReading(at=AT + 25, name="log", seconds=0.1, more=True, daemon="/other")
    assert is_blocked(*missing(AT + 10), answered, other, looked)


def test_no_command_is_missing_while_no_collection_ends() -> None:
    """The log directory may hang. A collection that began before is reported, and has read nothing."""
    hangs = SourceReading(at=AT + 40, name="log", seconds=19.0, problem=HANGS)
    assert not is_blocked(*missing(AT + 10), servers(SERVER, at=AT + 20), hangs)


def test_a_command_may_be_among_lost_lines() -> None:
    answered, looked = missing(AT + 20)
    assert not is_blocked(
        *missing(AT + 10), answered, LogGap(at=AT + 22, daemon=DAEMON, file="control.log", lines=9), looked
    )


@pytest.mark.parametrize("problem", [UNREADABLE, None])
def test_an_unreadable_log_is_not_blocked(problem: Reason | None) -> None:
    gone = LogFile(at=AT + 1, daemon=DAEMON, file="control.log", problem=problem, followed=problem is not None)
    assert not is_blocked(gone, *BLOCKED)


def test_missing_lines_of_the_journal_prove_nothing() -> None:
    line = replace(control_log(f"Cmd:{LIST}")[0], file="stdout")
    journal = reduced(LogFile(at=AT, daemon=DAEMON, file="stdout"), daemon_process(), *at_work(CLIENT)[1:], line).node
    assert not is_blocked(*BLOCKED, start=journal)


def test_forged_commands_hide_a_blocked_log_only_while_they_continue() -> None:
    """No process can write into a blocked log, because the daemon no longer reads the fifo."""
    forged = control_log(f"Cmd:{LIST}", at=AT + 11)
    assert not is_blocked(servers(SERVER, at=AT + 10), *forged, look("log", at=AT + 16), *missing(AT + 20))
    assert is_blocked(servers(SERVER, at=AT + 10), *forged, *missing(AT + 20), *missing(AT + 30))


# -- delays and queries ------------------------------------------------------------------------------------------------


def seconds_to_blocked(answer: str) -> float:
    """Return the time until the exporter's own queries show a blocked log. The log is collected every half second."""
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


def test_sends_another_query_at_once_after_a_missing_line() -> None:
    after = reduced(*missing(AT + 10), start=START).node
    assert poll_schedule.commands(after, DAEMON, PollIntervals()) == (LIST,)
    again = reduced(servers(SERVER, at=AT + 16.5), start=after).node
    assert LIST not in poll_schedule.commands(again, DAEMON, PollIntervals())


def test_queries_a_daemon_with_a_blocked_log_as_one_without_a_log() -> None:
    blocked = reduced(*BLOCKED, status("ACTIVE", at=AT + 80), clients(CLIENT, at=AT + 80), start=START).node
    assert LIST in poll_schedule.commands(replace(blocked, at=AT + 81), DAEMON, PollIntervals())
