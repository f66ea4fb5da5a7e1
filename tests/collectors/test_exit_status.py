"""Exit status of real processes, before and after their parent has reaped them."""

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

UNPRIVILEGED_UID = 65534
PROC = Proc(Path("/proc"), SystemClock())
ENDS = {"exit 0": 0, "exit 7": 7 << 8, "kill -9 $$": 9, "kill -SEGV $$": 11, "kill -TERM $$": 15}

every_exit_status = pytest.mark.parametrize(("end", "status"), ENDS.items())

EndProcess = Callable[[str], tuple["subprocess.Popen[bytes]", int, int]]


@pytest.fixture
def end_process(start: Starter) -> Iterator[EndProcess]:
    """Return a function that runs a command to its end and returns the zombie, its start time and its pidfd."""
    descriptors: list[int] = []

    def end(command: str) -> tuple["subprocess.Popen[bytes]", int, int]:
        process = start(["sh", "-c", f"read go; ulimit -c 0; {command}"], stdin=subprocess.PIPE)
        ticks = PROC.start_ticks(process.pid)
        assert ticks is not None
        descriptors.append(os.pidfd_open(process.pid))
        assert process.stdin is not None
        process.stdin.close()
        eventually(lambda: _assert_ended(process.pid))
        return process, ticks, descriptors[-1]

    yield end
    for descriptor in descriptors:
        os.close(descriptor)


def _assert_ended(pid: int) -> None:
    assert PROC.start_ticks(pid) is None


def _require_status_of_reaped_process(end_process: EndProcess) -> None:
    process, ticks, pidfd = end_process("exit 7")
    process.wait()
    if wait_status(PROC, process.pid, ticks, pidfd) is None:
        not_here("only Linux 6.15 and later report the exit status through a pidfd")


@contextmanager
def as_unprivileged_user() -> Iterator[None]:
    """Run as an unprivileged user, who may not trace the processes of others."""
    user = os.geteuid()
    if user != 0:
        not_here("only root can change its user")
    os.seteuid(UNPRIVILEGED_UID)
    try:
        yield
    finally:
        os.seteuid(user)


@every_exit_status
def test_reads_the_exit_status_of_a_zombie(end_process: EndProcess, end: str, status: int) -> None:
    process, ticks, pidfd = end_process(end)

    assert wait_status(PROC, process.pid, ticks, pidfd) == status
    assert wait_status(PROC, process.pid, ticks, None) == status


@every_exit_status
def test_reads_the_exit_status_of_a_reaped_process_through_its_pidfd(
    end_process: EndProcess, end: str, status: int
) -> None:
    _require_status_of_reaped_process(end_process)
    process, ticks, pidfd = end_process(end)
    process.wait()

    assert wait_status(PROC, process.pid, ticks, pidfd) == status
    assert wait_status(PROC, process.pid, ticks, None) is None


@every_exit_status
def test_reads_the_exit_status_without_ptrace_rights_only_after_the_reaping(
    end_process: EndProcess, end: str, status: int
) -> None:
    """Before, the kernel reports 0 even for a killed process, so that this value must not be used."""
    _require_status_of_reaped_process(end_process)
    process, ticks, pidfd = end_process(end)

    with as_unprivileged_user():
        assert wait_status(PROC, process.pid, ticks, pidfd) is None
    process.wait()
    with as_unprivileged_user():
        assert wait_status(PROC, process.pid, ticks, pidfd) == status


def test_asks_the_pidfd_again_if_the_process_is_reaped_in_between(end_process: EndProcess) -> None:
    _require_status_of_reaped_process(end_process)
    process, ticks, pidfd = end_process("exit 7")

    class ReapingProc(Proc):
        """A /proc from which the process disappears before it is read."""

        def wait_status(self, pid: int, start_ticks: int) -> int | None:
            process.wait()
            return super().wait_status(pid, start_ticks)

    assert wait_status(ReapingProc(Path("/proc"), SystemClock()), process.pid, ticks, pidfd) == 7 << 8


def test_a_running_process_has_no_exit_status(start: Starter) -> None:
    process = start()
    ticks = PROC.start_ticks(process.pid)
    assert ticks is not None
    pidfd = os.pidfd_open(process.pid)

    assert wait_status(PROC, process.pid, ticks, pidfd) is None
    os.close(pidfd)


def test_ignores_the_exit_status_of_another_process_with_the_same_pid(end_process: EndProcess) -> None:
    process, ticks, _ = end_process("exit 7")

    assert wait_status(PROC, process.pid, ticks + 1, None) is None


def test_reads_the_status_of_a_zombie_from_proc_on_an_older_kernel(
    end_process: EndProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> int:
        raise OSError(25, "Inappropriate ioctl for device")

    monkeypatch.setattr("exporter.collectors.processes.fcntl.ioctl", refuse)
    process, ticks, pidfd = end_process("exit 7")

    assert wait_status(PROC, process.pid, ticks, pidfd) == 7 << 8
    process.wait()
    assert wait_status(PROC, process.pid, ticks, pidfd) is None
