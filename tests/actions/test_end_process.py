"""end_process kills the process that is meant, and no other, whatever became of its PID."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.actions import steps
from exporter.actions.steps import Cancellation, end_process
from exporter.collectors.pipe_dir import Directory
from exporter.collectors.proc import Proc
from exporter.model.action import EndProcess, Role
from exporter.model.identity import ProcessIdentity
from exporter.model.reason import Reason, ReasonCode
from tests.actions.action_setup import PROC, REAL, identity
from tests.conftest import Starter
from tests.eventually import until
from tests.standin.mps import is_alive, is_stopped
from tests.tools import not_here

CONTROL, SERVER = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"
OTHER_USER = 65534
SETRESUID = {"x86_64": 117, "aarch64": 147}
"""The system call's number."""
PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
PF_EXITING = 4


NOWHERE = Directory(Path("/nonexistent"))


def end(step: EndProcess, pipe: Directory = NOWHERE) -> str | None:
    return end_process(step, pipe=pipe, proc=PROC, cancellation=Cancellation(REAL))


def named(start: Starter, name: str, code: str = "input()", **variables: str) -> "subprocess.Popen[bytes]":
    script = f"open('/proc/self/comm', 'w').write({name!r}); print(flush=True); {code}"
    process = start(
        [name, "-c", script],
        executable=sys.executable,
        env={**os.environ, "PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}", **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    return process


def test_returns_after_the_process_has_ended(start: Starter) -> None:
    process = start()

    assert end(EndProcess(identity=identity(process.pid), role=Role.CLIENT)) is None
    assert process.poll() == -signal.SIGKILL


def test_ends_a_stopped_process(start: Starter) -> None:
    process = start()
    process.send_signal(signal.SIGSTOP)
    until(lambda: is_stopped(process.pid))

    assert end(EndProcess(identity=identity(process.pid), role=Role.CLIENT)) is None
    assert not is_alive(process.pid)


def test_ends_a_traced_process(start: Starter) -> None:
    process = start()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.ptrace(PTRACE_SEIZE, process.pid, None, None) == 0
    assert libc.ptrace(PTRACE_INTERRUPT, process.pid, None, None) == 0

    assert end(EndProcess(identity=identity(process.pid), role=Role.CLIENT)) is None
    assert process.wait() == -signal.SIGKILL


def test_leaves_another_process_with_the_same_pid_alone(start: Starter) -> None:
    process = start()
    meant = identity(process.pid)

    assert end(EndProcess(identity=replace(meant, start_ticks=meant.start_ticks - 1), role=Role.CLIENT)) is None
    assert process.poll() is None


def test_an_unreadable_process_is_a_problem_and_not_an_end(start: Starter, tmp_path: Path) -> None:
    process = start()
    step = EndProcess(identity=identity(process.pid), role=Role.CLIENT)

    problem = end_process(step, pipe=NOWHERE, proc=Proc(tmp_path, REAL), cancellation=Cancellation(REAL))

    assert problem is not None
    assert problem.code is ReasonCode.PROCESS_NOT_OPENED
    assert process.poll() is None


@pytest.mark.parametrize(("program", "role"), [(SERVER, Role.SERVER), (CONTROL, Role.DAEMON)])
def test_ends_a_process_that_runs_the_program_of_its_role(start: Starter, program: str, role: Role) -> None:
    process = named(start, program)

    assert end(EndProcess(identity=identity(process.pid), role=role)) is None
    assert process.poll() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("program", "role"),
    [
        ("sleep", Role.SERVER),
        ("sleep", Role.DAEMON),
        (SERVER, Role.DAEMON),
        (SERVER, Role.CLIENT),
        (CONTROL, Role.SERVER),
        (CONTROL, Role.CLIENT),
    ],
)
def test_leaves_a_program_of_another_role_alone(start: Starter, program: str, role: Role) -> None:
    process = named(start, program)

    assert end(EndProcess(identity=identity(process.pid), role=role)) is None
    assert process.poll() is None


@pytest.mark.parametrize(("program", "role"), [(SERVER, Role.SERVER), (CONTROL, Role.DAEMON)])
def test_leaves_a_process_of_another_pipe_directory_alone(
    start: Starter, tmp_path: Path, program: str, role: Role
) -> None:
    """Another directory by its inode: the same one by another path is no reason."""
    ours, others = tmp_path / "ours", tmp_path / "others"
    ours.mkdir()
    others.mkdir()
    (tmp_path / "link").symlink_to(ours)
    other = named(start, program, CUDA_MPS_PIPE_DIRECTORY=str(others))
    own = named(start, program, CUDA_MPS_PIPE_DIRECTORY=str(tmp_path / "link"))

    for process in (other, own):
        assert end(EndProcess(identity=identity(process.pid), role=role), Directory(ours)) is None

    assert (other.poll(), own.poll()) == (None, -signal.SIGKILL)


def test_a_client_cannot_exempt_itself_by_its_environment(start: Starter, tmp_path: Path) -> None:
    process = start(env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": "/tmp"})

    assert end(EndProcess(identity=identity(process.pid), role=Role.CLIENT), Directory(tmp_path)) is None
    assert process.poll() == -signal.SIGKILL


def test_an_exited_process_is_no_problem(start: Starter) -> None:
    process = start(["true"])
    gone = ProcessIdentity(pid=process.pid, start_ticks=1)
    process.wait()

    assert end(EndProcess(identity=gone, role=Role.CLIENT)) is None


def test_a_zombie_is_no_problem(start: Starter) -> None:
    process = start()
    meant = identity(process.pid)
    process.kill()
    until(lambda: not is_alive(process.pid))

    assert end(EndProcess(identity=meant, role=Role.CLIENT)) is None


class Tearing(Proc):
    """The first thread of each process has run its last code: the kernel ends its contexts, longer than a wait."""

    def text(self, pid: int, name: str, limit: int = 1 << 16) -> str | None:
        text = super().text(pid, name, limit)
        head, _, rest = (text or "").rpartition(")")
        fields = rest.split()
        if name not in ("stat", f"task/{pid}/stat") or not fields:
            return text
        fields[6] = str(int(fields[6]) | PF_EXITING)
        return f"{head}) {' '.join(fields)}"


STAYS = "import threading; threading.Thread(target=input).start()"
"""A second thread, as one that hangs in the driver."""


@pytest.mark.parametrize(
    ("contexts", "code", "waits"), [(False, "input()", False), (False, STAYS, True), (True, "input()", True)]
)
def test_waits_for_the_contexts_only_if_told(
    start: Starter, monkeypatch: pytest.MonkeyPatch, contexts: bool, code: str, waits: bool
) -> None:
    process = named(start, SERVER, code)
    until(lambda: len(os.listdir(f"/proc/{process.pid}/task")) == (2 if code == STAYS else 1))
    meant = EndProcess(identity=identity(process.pid), role=Role.SERVER, contexts=contexts)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_: None)
    monkeypatch.setattr(steps, "_END_SECONDS", 0.3)

    proc = Tearing(Path("/proc"), REAL)
    problem = end_process(meant, pipe=NOWHERE, proc=proc, cancellation=Cancellation(REAL))

    assert problem == (Reason(ReasonCode.PROCESS_NOT_ENDED, pid=process.pid) if waits else None)


def test_reports_a_process_outside_the_pid_namespace() -> None:
    """Negative numbers stand for those of another namespace; to the kernel they are whole groups."""
    problem = end(EndProcess(identity=ProcessIdentity(pid=-os.getpid(), start_ticks=1), role=Role.SERVER))

    assert problem == Reason(ReasonCode.PROCESS_NOT_IN_NAMESPACE, pid=-os.getpid())


def test_reports_a_missing_permission(start: Starter) -> None:
    process = start()
    meant = identity(process.pid)

    reported = _as_nobody(lambda: end(EndProcess(identity=meant, role=Role.CLIENT)))

    assert reported == Reason(ReasonCode.PROCESS_NOT_KILLABLE, pid=process.pid)
    assert process.poll() is None


def _as_nobody(ask: Callable[[], Reason | None]) -> Reason | None:
    """Only a thread becomes nobody: the kernel keeps a UID for each."""
    if os.geteuid() != 0:
        not_here("only root can become nobody")
    reported: list[Reason | None] = []

    def run() -> None:
        assert ctypes.CDLL(None).syscall(SETRESUID[os.uname().machine], OTHER_USER, OTHER_USER, OTHER_USER) == 0
        reported.append(ask())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return reported[0]
