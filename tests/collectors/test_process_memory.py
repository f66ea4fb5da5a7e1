"""Environment of a process, read from its memory with CAP_SYS_PTRACE only, as the systemd unit grants it."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors.proc import Proc, read_memory
from tests.eventually import eventually
from tests.tools import not_here

UNPRIVILEGED_UID = 65534
PROC = Path("/proc")


def _has_arguments(pid: int) -> None:
    assert (PROC / str(pid) / "cmdline").read_bytes()


@pytest.fixture
def process() -> Iterator[int]:
    with subprocess.Popen(["/bin/sleep", "100"], env={"CUDA_VISIBLE_DEVICES": "1", "SECRET": "x"}) as started:
        # execve(2) lets the parent continue before the child has its arguments and environment (Linux 6.18).
        eventually(lambda: _has_arguments(started.pid))
        yield started.pid
        started.kill()


@pytest.fixture
def ptrace_only() -> Iterator[None]:
    """Open files without the rights of root (setfsuid(2)). The thread retains CAP_SYS_PTRACE."""
    libc = ctypes.CDLL(None)
    if os.geteuid() != 0:
        not_here("only root can change the user for files")
    libc.setfsuid(UNPRIVILEGED_UID)
    yield
    libc.setfsuid(0)


@pytest.mark.usefixtures("ptrace_only")
def test_reads_an_environment_that_only_the_owner_may_open_from_memory(process: int) -> None:
    with pytest.raises(PermissionError):
        (PROC / str(process) / "environ").read_bytes()

    assert Proc(PROC, SystemClock()).variables(process, ("CUDA_VISIBLE_DEVICES", "HOME")) == {
        "CUDA_VISIBLE_DEVICES": "1"
    }


def test_reads_no_memory_if_the_pid_is_of_another_namespace(process: int, tmp_path: Path) -> None:
    """Here, another process may have that PID."""
    other = tmp_path / str(process)
    other.mkdir()
    (other / "stat").symlink_to(PROC / str(process) / "stat")
    (tmp_path / "self").symlink_to("1")

    assert Proc(tmp_path, SystemClock()).variables(process, ("CUDA_VISIBLE_DEVICES",)) is None


def test_reads_no_memory_of_an_ended_process(process: int) -> None:
    os.kill(process, 9)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)

    assert Proc(PROC, SystemClock()).variables(process, ("CUDA_VISIBLE_DEVICES",)) in (None, {})
    with pytest.raises(OSError, match="No such process"):
        read_memory(process, 1, 1)
