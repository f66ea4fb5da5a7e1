"""How real processes ended: by the kernel's word, before and after their parent has reaped them."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors.proc import Proc
from exporter.collectors.processes import wait_status
from tests.conftest import Starter
from tests.eventually import eventually
from tests.tools import not_here

NOBODY = 65534
PROC = Proc(Path("/proc"), SystemClock())
ENDS = {"exit 0": 0, "exit 7": 7 << 8, "kill -9 $$": 9, "kill -SEGV $$": 11, "kill -TERM $$": 15}

every_end = pytest.mark.parametrize(("end", "status"), ENDS.items())

Ended = Callable[[str], tuple["subprocess.Popen[bytes]", int, int]]


@pytest.fixture
def ended(start: Starter) -> Iterator[Ended]:
    """Lets a process end, and gives it unreaped, with its start time and pidfd."""
    held: list[int] = []

    def end(command: str) -> tuple["subprocess.Popen[bytes]", int, int]:
        process = start(["sh", "-c", f"read go; ulimit -c 0; {command}"], stdin=subprocess.PIPE)
        ticks = PROC.start_ticks(process.pid)
        assert ticks is not None
        held.append(os.pidfd_open(process.pid))
        assert process.stdin is not None
        process.stdin.close()
        eventually(lambda: _assert_gone(process.pid))
        return process, ticks, held[-1]

    yield end
    for descriptor in held:
        os.close(descriptor)


def _assert_gone(pid: int) -> None:
    assert PROC.start_ticks(pid) is None


def _kernel_tells_of_the_reaped(ended: Ended) -> None:
    process, ticks, pidfd = ended("exit 7")
    process.wait()
    if wait_status(PROC, process.pid, ticks, pidfd) is None:
        not_here("a pidfd tells how its process ended from Linux 6.15 on")


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without any right over others' processes."""
    user = os.geteuid()
    if user != 0:
        not_here("only root may be somebody else")
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


@every_end
def test_of_one_that_its_parent_has_not_reaped(ended: Ended, end: str, status: int) -> None:
    process, ticks, pidfd = ended(end)

    assert wait_status(PROC, process.pid, ticks, pidfd) == status
    assert wait_status(PROC, process.pid, ticks, None) == status


@every_end
def test_of_one_that_its_parent_has_reaped(ended: Ended, end: str, status: int) -> None:
    _kernel_tells_of_the_reaped(ended)
    process, ticks, pidfd = ended(end)
    process.wait()

    assert wait_status(PROC, process.pid, ticks, pidfd) == status
    assert wait_status(PROC, process.pid, ticks, None) is None


@every_end
def test_whoever_may_not_trace_it_is_told_nothing_before_and_all_after(ended: Ended, end: str, status: int) -> None:
    """The kernel says 0 before, also of one that was killed: that is not taken for an answer."""
    _kernel_tells_of_the_reaped(ended)
    process, ticks, pidfd = ended(end)

    with as_nobody():
        assert wait_status(PROC, process.pid, ticks, pidfd) is None
    process.wait()
    with as_nobody():
        assert wait_status(PROC, process.pid, ticks, pidfd) == status


def test_one_that_is_reaped_in_between_is_asked_for_again(ended: Ended) -> None:
    _kernel_tells_of_the_reaped(ended)
    process, ticks, pidfd = ended("exit 7")

    class Late(Proc):
        """Reads of a process when it is no more."""

        def wait_status(self, pid: int, start_ticks: int) -> int | None:
            process.wait()
            return super().wait_status(pid, start_ticks)

    assert wait_status(Late(Path("/proc"), SystemClock()), process.pid, ticks, pidfd) == 7 << 8


def test_one_that_lives_has_not_ended(start: Starter) -> None:
    process = start()
    ticks = PROC.start_ticks(process.pid)
    assert ticks is not None
    pidfd = os.pidfd_open(process.pid)

    assert wait_status(PROC, process.pid, ticks, pidfd) is None
    os.close(pidfd)


def test_the_end_of_another_with_its_pid_is_not_its_own(ended: Ended) -> None:
    process, ticks, _ = ended("exit 7")

    assert wait_status(PROC, process.pid, ticks + 1, None) is None


def test_where_the_kernel_is_older_the_remains_tell(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> int:
        raise OSError(25, "Inappropriate ioctl for device")

    monkeypatch.setattr("exporter.collectors.processes.fcntl.ioctl", refuse)
    process, ticks, pidfd = ended("exit 7")

    assert wait_status(PROC, process.pid, ticks, pidfd) == 7 << 8
    process.wait()
    assert wait_status(PROC, process.pid, ticks, pidfd) is None
