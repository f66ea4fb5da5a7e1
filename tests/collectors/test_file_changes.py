"""Notifications about changed files, and files that cannot be watched."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors.file_changes import FileChanges
from exporter.collectors.logs import DaemonLogs, LogFollower
from exporter.collectors.pipe_dir import on_host
from exporter.collectors.thread import CollectorThread, Inbox, close
from exporter.model.observation import LogLine
from tests.clocks import HandClock
from tests.eventually import PATIENCE_SECONDS, eventually


@pytest.fixture
def changed() -> threading.Event:
    return threading.Event()


@pytest.fixture
def changes() -> Iterator[FileChanges]:
    changes = FileChanges()
    yield changes
    changes.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "control.log"
    file.write_text("old\n")
    return file


def append(file: Path, text: str) -> None:
    with file.open("a") as stream:
        stream.write(text)


def test_notifies_of_a_write_to_an_open_file(changes: FileChanges, changed: threading.Event, log: Path) -> None:
    with log.open() as stream:
        watch = changes.watch(stream.fileno(), changed.set)
    assert watch is not None

    append(log, "new\n")

    assert changed.wait(PATIENCE_SECONDS)
    assert changes.was_notified(watch, changed.set)
    assert not changes.was_notified(watch, changed.set)


def test_watches_a_renamed_file(changes: FileChanges, changed: threading.Event, log: Path) -> None:
    with log.open() as stream:
        changes.watch(stream.fileno(), changed.set)
    renamed = log.rename(log.with_suffix(".1"))

    append(renamed, "new\n")

    assert changed.wait(PATIENCE_SECONDS)


def test_returns_no_watch_for_an_invalid_descriptor(changes: FileChanges) -> None:
    assert changes.watch(1 << 20, lambda: None) is None


def test_notifies_both_watchers_of_a_file_until_one_stops(changes: FileChanges, log: Path) -> None:
    """Two daemons may share a log directory. In inotify, a file has one watch for the whole process."""
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


def test_a_constantly_written_file_does_not_delay_the_notification_of_another(
    changes: FileChanges, tmp_path: Path
) -> None:
    """After a call for one file, the thread must not pause before it reads the changes of others."""
    called: list[str] = []
    flooded, other = tmp_path / "flooded", tmp_path / "other"
    done = threading.Event()

    def on_other() -> None:
        called.append("other")
        done.set()

    def on_flooded() -> None:
        called.append("flooded")
        append(flooded, "again\n")
        if len(called) == 5:
            append(other, "once\n")

    for file, changed in ((flooded, on_flooded), (other, on_other)):
        file.touch()
        with file.open() as stream:
            assert changes.watch(stream.fileno(), changed) is not None
    append(flooded, "first\n")

    assert done.wait(PATIENCE_SECONDS)
    assert called.index("other") <= 6


def test_closes_all_descriptors_and_adds_no_watch_after_close(log: Path) -> None:
    before = os.listdir("/proc/self/fd")
    changes = FileChanges()
    with log.open() as stream:
        changes.watch(stream.fileno(), lambda: None)

    changes.close()

    assert os.listdir("/proc/self/fd") == before
    assert changes.watch(0, lambda: None) is None


class SilentFileChanges(FileChanges):
    """A file system that reports no changes."""

    def was_notified(self, _watch: int, _changed: object) -> bool:
        return False


def test_polls_a_file_again_if_changes_are_not_notified(log: Path) -> None:
    changes = SilentFileChanges()
    follower = LogFollower(on_host("node", log.parent, log.parent), log.name, HandClock(), changes)
    follower.collect()
    assert follower.watched

    for number in range(3):
        append(log, f"{number}\n")
        assert len(follower.collect().observations) == 1

    assert not follower.watched
    follower.close()
    changes.close()


def test_reads_watched_logs_when_they_change(log: Path, changes: FileChanges) -> None:
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
    eventually(lambda: assert_idle(thread))

    append(log, "new\n")

    observations = inbox.get(timeout=PATIENCE_SECONDS)
    assert [each.line for each in observations if isinstance(each, LogLine)] == ["new"]
    close([thread], PATIENCE_SECONDS)


def assert_idle(thread: CollectorThread) -> None:
    assert not thread.busy


def test_logs_that_cannot_be_watched_are_never_idle(log: Path) -> None:
    (log.parent / "server.log").touch()
    logs = DaemonLogs(on_host("node", log.parent, log.parent), HandClock())

    assert not logs.collect().idle

    logs.close()
