"""A file that is written to is told of; what cannot be watched is said not to be."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors.file_changes import FileChanges
from exporter.collectors.log_file import LogFollower
from exporter.collectors.logs import DaemonLogs
from exporter.collectors.pipe_dir import on_host
from exporter.collectors.thread import CollectorThread, Inbox, close
from exporter.model.observation import LogLine
from tests.clocks import HandClock
from tests.eventually import PATIENCE_SECONDS, eventually


@pytest.fixture
def changed() -> threading.Event:
    """What is set when a change was told of."""
    return threading.Event()


@pytest.fixture
def changes() -> Iterator[FileChanges]:
    """Changes, told."""
    changes = FileChanges()
    yield changes
    changes.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with one line."""
    file = tmp_path / "control.log"
    file.write_text("old\n")
    return file


def append(file: Path, text: str) -> None:
    with file.open("a") as stream:
        stream.write(text)


def test_what_is_written_to_an_open_file_is_told(changes: FileChanges, changed: threading.Event, log: Path) -> None:
    with log.open() as stream:
        watch = changes.watch(stream.fileno(), changed.set)
    assert watch is not None

    append(log, "new\n")

    assert changed.wait(PATIENCE_SECONDS)
    assert changes.was_notified(watch, changed.set)
    assert not changes.was_notified(watch, changed.set)


def test_a_renamed_file_is_still_watched(changes: FileChanges, changed: threading.Event, log: Path) -> None:
    with log.open() as stream:
        changes.watch(stream.fileno(), changed.set)
    renamed = log.rename(log.with_suffix(".1"))

    append(renamed, "new\n")

    assert changed.wait(PATIENCE_SECONDS)


def test_what_cannot_be_watched_is_not(changes: FileChanges) -> None:
    assert changes.watch(1 << 20, lambda: None) is None


def test_two_that_watch_one_file_are_both_called_and_one_can_stop(changes: FileChanges, log: Path) -> None:
    """Two daemons may share a log directory; a file has one watch for the whole process."""
    first, second = threading.Event(), threading.Event()
    with log.open() as stream:
        watches = [changes.watch(stream.fileno(), each.set) for each in (first, second)]
    assert watches[0] is not None
    append(log, "to both\n")
    assert first.wait(PATIENCE_SECONDS)
    assert second.wait(PATIENCE_SECONDS)

    changes.forget(watches[0], first.set)
    first.clear()
    second.clear()
    append(log, "to one\n")

    assert second.wait(PATIENCE_SECONDS)
    assert not first.is_set()


def test_a_file_that_is_written_to_all_the_time_does_not_delay_another(changes: FileChanges, tmp_path: Path) -> None:
    """After a call for a file, the thread must not rest before it reads what happened to others."""
    called: list[str] = []
    flooded, other = tmp_path / "flooded", tmp_path / "other"
    done = threading.Event()

    def of_other() -> None:
        called.append("other")
        done.set()

    def of_flooded() -> None:
        called.append("flooded")
        append(flooded, "again\n")
        if len(called) == 5:
            append(other, "once\n")

    for file, changed in ((flooded, of_flooded), (other, of_other)):
        file.touch()
        with file.open() as stream:
            assert changes.watch(stream.fileno(), changed) is not None
    append(flooded, "first\n")

    assert done.wait(PATIENCE_SECONDS)
    assert called.index("other") <= 6


def test_after_its_end_nothing_is_watched_and_no_descriptor_is_left(log: Path) -> None:
    before = os.listdir("/proc/self/fd")
    changes = FileChanges()
    with log.open() as stream:
        changes.watch(stream.fileno(), lambda: None)

    changes.close()

    assert os.listdir("/proc/self/fd") == before
    assert changes.watch(0, lambda: None) is None


class Untold(FileChanges):
    """A file system of which no change is told."""

    def was_notified(self, _watch: int, _changed: object) -> bool:
        """Never."""
        return False


def test_a_file_of_which_no_change_is_told_is_looked_at_often_again(log: Path) -> None:
    changes = Untold()
    follower = LogFollower(on_host("node", log.parent, log.parent), log.name, HandClock(), changes)
    follower.collect()
    assert follower.watched

    for number in range(3):
        append(log, f"{number}\n")
        assert len(follower.collect().observations) == 1

    assert not follower.watched
    follower.close()
    changes.close()


def test_logs_that_are_watched_are_looked_at_when_they_change(log: Path, changes: FileChanges) -> None:
    inbox: Inbox = Inbox()
    (log.parent / "server.log").touch()
    logs = DaemonLogs(on_host("node", log.parent, log.parent), SystemClock(), changes, changed=lambda: thread.trigger())
    thread = CollectorThread(
        "log",
        logs.collect,
        period=0.001,
        deadline=PATIENCE_SECONDS,
        inbox=inbox,
        clock=SystemClock(),
        report_interval=3600.0,
        at_end=logs.close,
    )
    thread.start()
    inbox.get(timeout=PATIENCE_SECONDS)
    eventually(lambda: idle(thread))

    append(log, "new\n")

    seen = inbox.get(timeout=PATIENCE_SECONDS)
    assert [each.line for each in seen if isinstance(each, LogLine)] == ["new"]
    close([thread], PATIENCE_SECONDS)


def idle(thread: CollectorThread) -> None:
    assert not thread.busy


def test_logs_that_cannot_be_watched_are_looked_at_many_times_a_second(log: Path) -> None:
    (log.parent / "server.log").touch()
    logs = DaemonLogs(on_host("node", log.parent, log.parent), HandClock())

    assert not logs.collect().idle

    logs.close()
