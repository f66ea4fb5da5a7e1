"""A file that is written to is told of; what cannot be watched is said not to be."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.model.observation import LogLine
from exporter.sources.eye import Eye, Inbox
from exporter.sources.file_changes import FileChanges
from exporter.sources.log_follower import LogFollower
from exporter.sources.logs import DaemonLogs
from exporter.sources.place import on_host
from tests.clocks import HandClock
from tests.eventually import PATIENCE_SECONDS, eventually


@pytest.fixture
def changed() -> threading.Event:
    """What is set when a change was told of."""
    return threading.Event()


@pytest.fixture
def changes(changed: threading.Event) -> Iterator[FileChanges]:
    """Changes, told."""
    changes = FileChanges(changed.set)
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
        watch = changes.watch(stream.fileno())
    assert watch is not None

    append(log, "new\n")

    assert changed.wait(PATIENCE_SECONDS)
    assert changes.was_told(watch)
    assert not changes.was_told(watch)


def test_a_renamed_file_is_still_watched(changes: FileChanges, changed: threading.Event, log: Path) -> None:
    with log.open() as stream:
        changes.watch(stream.fileno())
    renamed = log.rename(log.with_suffix(".1"))

    append(renamed, "new\n")

    assert changed.wait(PATIENCE_SECONDS)


def test_what_cannot_be_watched_is_not(changes: FileChanges) -> None:
    assert changes.watch(1 << 20) is None


def test_after_its_end_nothing_is_watched_and_no_descriptor_is_left(log: Path) -> None:
    before = os.listdir("/proc/self/fd")
    changes = FileChanges(lambda: None)
    with log.open() as stream:
        changes.watch(stream.fileno())

    changes.close()

    assert os.listdir("/proc/self/fd") == before
    assert changes.watch(0) is None


class Untold(FileChanges):
    """A file system of which no change is told."""

    def was_told(self, watch: int) -> bool:
        """Never."""
        return False


def test_a_file_of_which_no_change_is_told_is_looked_at_often_again(log: Path) -> None:
    changes = Untold(lambda: None)
    follower = LogFollower(on_host("node", log.parent, log.parent), log.name, HandClock(), changes)
    follower.look()
    assert follower.watched

    for number in range(3):
        append(log, f"{number}\n")
        assert len(follower.look().observations) == 1

    assert not follower.watched
    follower.close()
    changes.close()


def test_logs_that_are_watched_are_looked_at_when_they_change(log: Path) -> None:
    inbox: Inbox = Inbox()
    logs = DaemonLogs({"node": log.parent}, SystemClock(), changed=lambda: eye.nudge())
    (log.parent / "server.log").touch()
    eye = Eye(
        "log",
        logs.look,
        period=0.001,
        deadline=PATIENCE_SECONDS,
        inbox=inbox,
        clock=SystemClock(),
        told_every=3600.0,
    )
    eye.open()
    inbox.get(timeout=PATIENCE_SECONDS)
    eventually(lambda: idle(eye))

    append(log, "new\n")

    seen = inbox.get(timeout=PATIENCE_SECONDS)
    assert [each.line for each in seen if isinstance(each, LogLine)] == ["new"]
    eye.close(PATIENCE_SECONDS)
    logs.close()


def idle(eye: Eye) -> None:
    assert not eye.busy


def test_logs_that_cannot_be_watched_are_looked_at_many_times_a_second(log: Path) -> None:
    (log.parent / "server.log").touch()
    logs = DaemonLogs({"node": log.parent}, HandClock())

    assert not logs.look().idle

    logs.close()
