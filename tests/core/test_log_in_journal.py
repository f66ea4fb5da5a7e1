"""A daemon in the foreground: in the journal its lines come a little late or not at all, in a file at once."""

from exporter.model.daemon import DaemonState
from exporter.model.event import EventName
from exporter.model.observation import LogFile, LogGap, LogLine
from exporter.model.values import replace
from exporter.state.lifecycle import LOG_SECONDS
from tests.builders import AT, CONTROL, DAEMON, at_work, daemon_process, exited, failure, look, reduced, stamped

BY_JOURNAL = LogFile(at=AT, daemon=DAEMON, file="stdout")


def line(text: str, at: float = AT) -> LogLine:
    return LogLine(at=at, daemon=DAEMON, file="stdout", line=stamped(text))


def test_a_quit_that_is_told_after_the_daemons_end_is_still_a_quit() -> None:
    """Its files have long been looked at by then, and say nothing: they are not there."""
    ended = AT + 10
    story = reduced(
        BY_JOURNAL,
        *at_work(),
        daemon_process(),
        exited(CONTROL, at=ended),
        look("log", at=ended + 0.2),
        line("Cmd:quit", at=ended + 0.3),
        line("Exit with status 0", at=ended + 0.3),
        daemon_process(None, left=False, at=ended + 0.4),
    )
    assert story.daemon.state is DaemonState.STOPPED
    assert not story.of(EventName.DAEMON_LOST)


def test_without_last_words_it_is_lost_after_its_moment() -> None:
    ended = AT + 10
    start = reduced(BY_JOURNAL, *at_work(), daemon_process(), exited(CONTROL, at=ended), look("log", at=ended + 0.2))
    assert not start.of(EventName.DAEMON_LOST)
    story = reduced(look("log", at=ended + LOG_SECONDS + 0.1), start=start.node)
    assert [each.at for each in story.of(EventName.DAEMON_LOST)] == [ended]


def test_it_is_followed_though_it_has_no_files() -> None:
    absent = LogFile(at=AT, daemon=DAEMON, file="control.log", problem=failure("control.log does not exist"))
    assert not reduced(absent, BY_JOURNAL).daemon.log_followed
    assert reduced(absent, BY_JOURNAL, line("UI closed")).daemon.log_followed


def test_a_journal_that_cannot_be_read_is_not_followed() -> None:
    refused = LogFile(at=AT + 1, daemon=DAEMON, file="stdout", problem=failure("no permission"))
    daemon = reduced(BY_JOURNAL, line("UI closed"), refused).daemon
    assert not daemon.log_followed
    assert not daemon.in_journal


def test_lines_let_fall_are_counted_from_0_on() -> None:
    assert reduced(BY_JOURNAL).daemon.totals.log_lines_lost == {"stdout": 0}
    gaps = (LogGap(at=AT, daemon=DAEMON, file="stdout", lines=lines) for lines in (71, 1))
    assert reduced(BY_JOURNAL, *gaps).daemon.totals.log_lines_lost == {"stdout": 72}


def test_where_its_stdout_is_a_file_nothing_is_said_of_those_that_are_not_there() -> None:
    absent = LogFile(at=AT, daemon=DAEMON, file="control.log", problem=failure("control.log does not exist"))
    process = replace(daemon_process(), foreground=True, stdout_in_file=True)
    daemon = reduced(absent, process, LogFile(at=AT, daemon=DAEMON, file="stdout.log"), process).daemon

    assert daemon.log.problems == {"stdout.log": None}
    assert not daemon.in_journal


def test_files_that_turned_out_to_be_none_of_its_logs_are_no_longer_told_of() -> None:
    """Also where they had been looked at once more by then."""
    absent = LogFile(at=AT, daemon=DAEMON, file="control.log", problem=failure("control.log does not exist"))
    left = replace(absent, problem=None, followed=False)

    assert reduced(BY_JOURNAL, absent, left).daemon.log.problems == {"stdout": None}


def test_a_file_of_a_daemon_that_is_forgotten_does_not_bring_it_back() -> None:
    story = reduced(LogFile(at=AT, daemon="gone", file="control.log", followed=False))

    assert "gone" not in story.node.daemons
