"""SessionLock lets one at a time ask a daemon, and keeps nobody for long."""

import os
import threading
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors.control import LOCKS, SessionLock

PIPE = (42, 4711)


def lock(directory: Path, deadline: float = 30.0) -> SessionLock:
    return SessionLock(directory, SystemClock(), deadline=deadline)


def test_two_never_have_it_at_once(tmp_path: Path) -> None:
    inside: list[int] = []
    most = 0

    def ask() -> None:
        nonlocal most
        for _ in range(20):
            with lock(tmp_path).held(PIPE) as alone:
                assert alone
                inside.append(1)
                most = max(most, len(inside))
                inside.pop()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == 1


def test_who_waited_too_long_goes_without(tmp_path: Path) -> None:
    with lock(tmp_path).held(PIPE), lock(tmp_path, deadline=0.05).held(PIPE) as alone:
        assert not alone
    with lock(tmp_path, deadline=0.05).held(PIPE) as alone:
        assert alone


def test_two_daemons_keep_nobody_from_each_other(tmp_path: Path) -> None:
    with lock(tmp_path).held(PIPE), lock(tmp_path, deadline=0.0).held((42, 4712)) as alone:
        assert alone


def test_it_is_nobody_elses_to_hold(tmp_path: Path) -> None:
    with lock(tmp_path).held(PIPE):
        (file,) = tmp_path.iterdir()

    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/etc/passwd", path)])
def test_whatever_is_in_its_place_one_goes_without_or_on(tmp_path: Path, make: object) -> None:
    assert callable(make)
    with lock(tmp_path).held(PIPE):
        (file,) = tmp_path.iterdir()
    file.unlink()
    make(file)

    with lock(tmp_path, deadline=0.0).held(PIPE):
        pass


def test_without_a_runtime_directory_or_a_daemon_there_is_no_lock(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))

    with lock(tmp_path / "nowhere").held(PIPE) as alone:
        assert not alone
    with lock(tmp_path).held(None) as alone:
        assert not alone

    assert len(os.listdir("/proc/self/fd")) == before


def test_however_many_daemons_come_and_go_few_files_are_left(tmp_path: Path) -> None:
    for inode in range(10 * LOCKS):
        with lock(tmp_path).held((42, inode)):
            pass

    assert len(list(tmp_path.iterdir())) == LOCKS
