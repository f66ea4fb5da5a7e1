"""Tests of SessionLock: one exporter at a time sends commands to a daemon."""

import os
import threading
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors.control_client import LOCKS, SessionLock

PIPE = (42, 4711)


def lock(directory: Path, deadline: float = 30.0) -> SessionLock:
    return SessionLock(directory, SystemClock(), deadline=deadline)


def test_has_one_holder_at_a_time(tmp_path: Path) -> None:
    inside: list[int] = []
    most = 0

    def hold() -> None:
        nonlocal most
        for _ in range(20):
            with lock(tmp_path).held(PIPE) as problem:
                assert problem is None
                inside.append(1)
                most = max(most, len(inside))
                inside.pop()

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == 1


def test_gives_up_after_the_deadline(tmp_path: Path) -> None:
    with lock(tmp_path).held(PIPE), lock(tmp_path, deadline=0.05).held(PIPE) as problem:
        assert problem is not None
        assert problem.endswith("another exporter holds it")
    with lock(tmp_path, deadline=0.05).held(PIPE) as problem:
        assert problem is None


def test_locks_of_two_daemons_are_independent(tmp_path: Path) -> None:
    with lock(tmp_path).held(PIPE), lock(tmp_path, deadline=0.0).held((42, 4712)) as problem:
        assert problem is None


def test_other_users_cannot_open_the_lock_file(tmp_path: Path) -> None:
    with lock(tmp_path).held(PIPE):
        (file,) = tmp_path.iterdir()

    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/etc/passwd", path)])
def test_tolerates_any_file_in_place_of_the_lock_file(tmp_path: Path, make: object) -> None:
    assert callable(make)
    with lock(tmp_path).held(PIPE):
        (file,) = tmp_path.iterdir()
    file.unlink()
    make(file)

    with lock(tmp_path, deadline=0.0).held(PIPE):
        pass


def test_holds_no_lock_without_runtime_directory_or_daemon(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))

    with lock(tmp_path / "nowhere").held(PIPE) as problem:
        assert problem is None
    with lock(tmp_path).held(None) as problem:
        assert problem is None

    assert len(os.listdir("/proc/self/fd")) == before


def test_limits_the_number_of_lock_files(tmp_path: Path) -> None:
    for inode in range(10 * LOCKS):
        with lock(tmp_path).held((42, inode)):
            pass

    assert len(list(tmp_path.iterdir())) == LOCKS
