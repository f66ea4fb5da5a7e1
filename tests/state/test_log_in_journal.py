"""The log of a daemon in the foreground: in the journal, lines are late or missing; in a file they are not."""

from typing import Any

import pytest

from exporter.model.daemon import DaemonState
from exporter.model.event import EventName
from exporter.model.observation import DaemonProcess, LogFile, LogGap, LogLine
from exporter.model.reason import Reason, ReasonCode
from exporter.model.values import replace
from exporter.state.lifecycle import LOG_SECONDS
from tests.builders import AT, CONTROL, DAEMON, at_work, daemon_process, exited, failure, look, reduced, stamped

BY_JOURNAL = LogFile(at=AT, daemon=DAEMON, file="stdout")


def line(text: str, at: float = AT) -> LogLine:
    return LogLine(at=at, daemon=DAEMON, file="stdout", line=stamped(text))


def test_a_quit_in_the_journal_counts_after_the_daemon_ended() -> None:
    """The log files, which do not exist, were collected long before."""
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


def test_without_a_quit_the_daemon_is_lost_after_a_delay() -> None:
    ended = AT + 10
    start = reduced(BY_JOURNAL, *at_work(), daemon_process(), exited(CONTROL, at=ended), look("log", at=ended + 0.2))
    assert not start.of(EventName.DAEMON_LOST)
    story = reduced(look("log", at=ended + LOG_SECONDS + 0.1), start=start.node)
    assert [each.at for each in story.of(EventName.DAEMON_LOST)] == [ended]


def test_follows_a_journal_without_files() -> None:
    absent = LogFile(at=AT, daemon=DAEMON, file="control.log", problem=failure("control.log does not exist"))
    assert not reduced(absent, BY_JOURNAL).daemon.log_followed
    assert reduced(absent, BY_JOURNAL, line("UI closed")).daemon.log_followed


def test_does_not_follow_an_unreadable_journal() -> None:
    refused = LogFile(at=AT + 1, daemon=DAEMON, file="stdout", problem=failure("no permission"))
    daemon = reduced(BY_JOURNAL, line("UI closed"), refused).daemon
    assert not daemon.log_followed
    assert not daemon.in_journal


def test_counts_lost_lines_from_0() -> None:
    assert reduced(BY_JOURNAL).daemon.totals.log_lines_lost == {"stdout": 0}
    gaps = (LogGap(at=AT, daemon=DAEMON, file="stdout", lines=lines) for lines in (71, 1))
    assert reduced(BY_JOURNAL, *gaps).daemon.totals.log_lines_lost == {"stdout": 72}


def test_reports_no_missing_files_if_stdout_is_a_file() -> None:
    absent = LogFile(at=AT, daemon=DAEMON, file="control.log", problem=failure("control.log does not exist"))
    process = replace(daemon_process(), foreground=True, stdout_in_file=True)
    daemon = reduced(absent, process, LogFile(at=AT, daemon=DAEMON, file="stdout.log"), process).daemon

    assert daemon.log.problems == {"stdout.log": None}
    assert not daemon.in_journal


def to_pipe(**changes: Any) -> DaemonProcess:
    """Return a foreground daemon that writes to a pipe, with these changes."""
    usual = {"foreground": True, "stdout_in_file": False, "stdout_in_journal": False}
    return replace(daemon_process(), **usual | changes)


@pytest.mark.parametrize("unit", [None, "user@1000.service", "mps.service"])
def test_reports_a_log_that_goes_to_a_pipe_as_not_followed(unit: str | None) -> None:
    absent = LogFile(at=AT, daemon=DAEMON, file="control.log", problem=failure("control.log does not exist"))
    daemon = reduced(*at_work(), absent, to_pipe(unit=unit)).daemon

    assert daemon.log.problems == {"stdout": Reason(ReasonCode.LOG_TO_STDOUT)}
    assert not daemon.log_followed


def test_reports_no_lost_log_of_another_daemon(subtests: pytest.Subtests) -> None:
    for process in [
        to_pipe(unit="mps.service", stdout_in_journal=True),
        to_pipe(unit="mps.service", stdout_in_journal=None),
        to_pipe(stdout_in_file=None, stdout_in_journal=None),
        to_pipe(stdout_in_file=True),
        to_pipe(foreground=False),
    ]:
        with subtests.test(process=process):
            assert not any(reduced(*at_work(), process).daemon.log.problems.values())


def test_a_daemon_that_logs_to_a_file_replaces_one_that_logged_to_a_pipe() -> None:
    later = to_pipe(foreground=False, at=AT + 1, pid=CONTROL + 1)

    assert reduced(*at_work(), to_pipe(), later).daemon.log.problems == {}


def test_removes_files_that_are_not_logs_of_the_daemon() -> None:
    """Even if they were collected once more."""
    absent = LogFile(at=AT, daemon=DAEMON, file="control.log", problem=failure("control.log does not exist"))
    left = replace(absent, problem=None, followed=False)

    assert reduced(BY_JOURNAL, absent, left).daemon.log.problems == {"stdout": None}


def test_a_file_of_a_removed_daemon_does_not_restore_it() -> None:
    story = reduced(LogFile(at=AT, daemon="gone", file="control.log", followed=False))

    assert "gone" not in story.node.daemons
