"""Any user can write the pid file. If it names another process, commands find no daemon although it runs."""

from exporter.model.daemon import DaemonState
from exporter.model.event import EventName
from exporter.report.status_text import status_answer, status_table
from tests.builders import AT, CONTROL, DAEMON, daemon_process, exited, look, no_daemon, reduced, servers

LIVING = (daemon_process(), servers(at=AT))
SPOILT = (no_daemon(at=AT + 30), no_daemon(at=AT + 35))


def test_the_state_of_the_daemon_is_unknown() -> None:
    story = reduced(*LIVING, *SPOILT)

    assert story.daemon.state is None
    assert story.names() == [EventName.DAEMON_UP]
    assert status_answer(story.node)["exit_code"] == 1


def test_another_report_of_the_process_changes_nothing() -> None:
    """The collector reports each daemon that runs every 10 s."""
    story = reduced(*LIVING, *SPOILT, daemon_process(at=AT + 40))

    assert story.daemon.state is None
    assert story.names() == [EventName.DAEMON_UP]


def test_one_failed_command_proves_nothing() -> None:
    assert reduced(*LIVING, SPOILT[0]).daemon.state is DaemonState.UP


def test_status_reports_the_remedy() -> None:
    spoilt = reduced(*LIVING, *SPOILT).node

    assert f"{DAEMON}: its PID file is wrong, so no command reaches it: write {CONTROL} into it" in status_table(spoilt)
    assert "pid file" not in status_table(reduced(*LIVING).node)


def test_the_daemon_is_up_when_it_answers_again() -> None:
    assert reduced(*LIVING, *SPOILT, servers(at=AT + 40)).daemon.state is DaemonState.UP


def test_reports_the_end_of_the_daemon() -> None:
    died = exited(CONTROL, at=AT + 40)
    story = reduced(*LIVING, *SPOILT, died, look("log", at=AT + 42))

    assert story.daemon.state is DaemonState.ABSENT
    assert story.names() == [EventName.DAEMON_UP, EventName.DAEMON_LOST]
