"""A pid file that everybody may write names nobody: NVIDIA's program finds no daemon, though its process lives."""

from exporter.model.daemon import DaemonState
from exporter.model.event import EventName
from exporter.report.status_text import status_answer, status_table
from tests.builders import AT, CONTROL, DAEMON, daemon_process, exited, look, no_daemon, reduced, servers

LIVING = (daemon_process(), servers(at=AT))
SPOILT = (no_daemon(at=AT + 30), no_daemon(at=AT + 35))


def test_it_is_neither_dead_nor_hung_nor_said_to_be_well() -> None:
    story = reduced(*LIVING, *SPOILT)

    assert story.daemon.state is None
    assert story.names() == [EventName.DAEMON_UP]
    assert status_answer(story.node)["exit_code"] == 1


def test_the_same_process_reported_again_changes_nothing() -> None:
    """Its collector reports each daemon that runs on every 10 s."""
    story = reduced(*LIVING, *SPOILT, daemon_process(at=AT + 40))

    assert story.daemon.state is None
    assert story.names() == [EventName.DAEMON_UP]


def test_once_is_nothing() -> None:
    assert reduced(*LIVING, SPOILT[0]).daemon.state is DaemonState.UP


def test_status_says_what_to_do() -> None:
    spoilt = reduced(*LIVING, *SPOILT).node

    assert f"{DAEMON}: its PID file is wrong, so no command reaches it: write {CONTROL} into it" in status_table(spoilt)
    assert "pid file" not in status_table(reduced(*LIVING).node)


def test_it_is_up_again_as_soon_as_it_answers() -> None:
    assert reduced(*LIVING, *SPOILT, servers(at=AT + 40)).daemon.state is DaemonState.UP


def test_its_death_is_seen_all_the_same() -> None:
    died = exited(CONTROL, at=AT + 40)
    story = reduced(*LIVING, *SPOILT, died, look("log", at=AT + 42))

    assert story.daemon.state is DaemonState.ABSENT
    assert story.names() == [EventName.DAEMON_UP, EventName.DAEMON_LOST]
