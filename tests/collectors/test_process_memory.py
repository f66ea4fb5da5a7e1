"""With CAP_SYS_PTRACE alone, as by the unit, a process's environment is read from its memory."""

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

NOBODY = 65534
PROC = Path("/proc")


def _has_arguments(pid: int) -> None:
    assert (PROC / str(pid) / "cmdline").read_bytes()


@pytest.fixture
def process() -> Iterator[int]:
    """A process of root's, with a secret."""
    with subprocess.Popen(["/bin/sleep", "100"], env={"CUDA_VISIBLE_DEVICES": "1", "SECRET": "x"}) as started:
        # execve(2) lets the parent continue before the child has its arguments and environment (Linux 6.18).
        eventually(lambda: _has_arguments(started.pid))
        yield started.pid
        started.kill()


@pytest.fixture
def looks_only() -> Iterator[None]:
    """The thread opens files as nobody, without root's rights to files (setfsuid(2)); CAP_SYS_PTRACE it keeps."""
    libc = ctypes.CDLL(None)
    if os.geteuid() != 0:
        not_here("only root can look at root's processes as somebody else")
    libc.setfsuid(NOBODY)
    yield
    libc.setfsuid(0)


@pytest.mark.usefixtures("looks_only")
def test_what_only_its_owner_may_open_is_read_from_memory(process: int) -> None:
    with pytest.raises(PermissionError):
        (PROC / str(process) / "environ").read_bytes()

    assert Proc(PROC, SystemClock()).variables(process, ("CUDA_VISIBLE_DEVICES", "HOME")) == {
        "CUDA_VISIBLE_DEVICES": "1"
    }


def test_not_where_a_pid_is_another_namespaces(process: int, tmp_path: Path) -> None:
    """That PID may be anybody's here."""
    other = tmp_path / str(process)
    other.mkdir()
    (other / "stat").symlink_to(PROC / str(process) / "stat")
    (tmp_path / "self").symlink_to("1")

    assert Proc(tmp_path, SystemClock()).variables(process, ("CUDA_VISIBLE_DEVICES",)) is None


def test_not_of_a_process_that_has_gone(process: int) -> None:
    os.kill(process, 9)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)

    assert Proc(PROC, SystemClock()).variables(process, ("CUDA_VISIBLE_DEVICES",)) in (None, {})
    with pytest.raises(OSError, match="No such process"):
        read_memory(process, 1, 1)
