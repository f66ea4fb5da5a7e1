"""Mount and PID namespaces of a test's own, with the stand-in's daemon in them."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from exporter.clock import SystemClock
from exporter.collectors.proc import Proc
from tests.standin.mps import PATIENCE_SECONDS, MpsStandIn, is_alive, wait_until
from tests.tools import needed, not_here

PROC = Proc(Path("/proc"), SystemClock())


class Container:
    """Processes in namespaces of their own.

    Args:
        directory: where the daemon's directories are, by the same path inside and outside.
        own_files: whether what lies there is another file system inside.
        more: options of unshare(1) for more namespaces.
    """

    def __init__(
        self, directory: Path, *, own_files: bool = True, own_pids: bool = True, more: Sequence[str] = ()
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._inside = MpsStandIn(directory)
        self._kinds = ["--mount", *(["--pid"] if own_pids else []), *more]
        self._clients: list[subprocess.Popen[bytes]] = []
        self._init = self._started(own_files, own_pids)
        root = Path(f"/proc/{self.init}/root{directory}") if own_files else directory
        self.mps = MpsStandIn(root)
        """The stand-in, seen from outside. It uses the PIDs of the container."""

    def _started(self, own_files: bool, own_pids: bool) -> "subprocess.Popen[bytes]":
        unshare = [needed("unshare"), *self._kinds, *(["--fork", "--mount-proc"] if own_pids else []), "--kill-child"]
        mount = f"mount -t tmpfs none '{self.directory}' && " if own_files else ""
        if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
            not_here("namespaces may not be made")
        process = subprocess.Popen([*unshare, "sh", "-c", f"{mount}echo; exec sleep 600"], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        self.init = _only_child(process.pid) if own_pids else process.pid
        return process

    def enter(self) -> list[str]:
        """Return the words that run a command inside, when they stand before it."""
        return [needed("nsenter"), f"--target={self.init}", *self._kinds, "--"]

    def start(self) -> int:
        """Start a daemon, and say what PID it has outside."""
        environment = os.environ | self._inside.environment()
        for each in (self._inside.pipe_directory, self._inside.log_directory):
            self.run("mkdir", "-p", str(each))
        command = shutil.which("nvidia-cuda-mps-control", path=environment["PATH"]) or ""
        subprocess.run([*self.enter(), command, "-d"], env=environment, check=True, timeout=PATIENCE_SECONDS)
        return self.outside(self.mps.pid)

    def run(self, *command: str) -> None:
        """Run a command inside."""
        subprocess.run([*self.enter(), *command], check=True)

    def start_program(self, *command: str, environment: Mapping[str, str]) -> None:
        """Start a program inside, which ends with the container at the latest."""
        self._clients.append(subprocess.Popen([*self.enter(), *command], env=os.environ | environment))

    def client(self, program: str = "sleep") -> tuple[int, int]:
        """A process inside: its PID there, and here. `program` is a copy of `sleep`."""
        before = set(self._pids())
        self._clients.append(subprocess.Popen([*self.enter(), program, "600"]))
        name = Path(program).name
        wait_until(lambda: any(_name(pid) == name for pid in set(self._pids()) - before), "a process inside")
        (pid,) = [pid for pid in set(self._pids()) - before if _name(pid) == name]
        return pids(pid)[-1], pid

    def outside(self, inner: int) -> int:
        """The PID here of a process inside."""
        (found,) = [pid for pid in self._pids() if pids(pid)[-1] == inner]
        return found

    def all(self) -> list[list[int]]:
        """The numbers of each process inside, and in namespaces below."""
        every = [pids(int(name)) for name in os.listdir("/proc") if name.isdecimal()]
        depth, own = len(pids(self.init)), PROC.pid_namespace(self.init)
        return [each for each in every if len(each) >= depth and PROC.pid_namespace(each[0], len(each) - depth) == own]

    def _pids(self) -> Iterator[int]:
        kind = "pid" if "--pid" in self._kinds else "mnt"
        for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{pid}/ns/{kind}").st_ino == os.stat(f"/proc/{self.init}/ns/{kind}").st_ino:
                    yield pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        inside = list(self._pids())
        for pid in inside:
            with contextlib.suppress(OSError):
                os.kill(pid, 9)
        for process in (self._init, *self._clients):
            process.wait()
        wait_until(lambda: not any(is_alive(pid) for pid in inside), "the container's end")
        if self._init.stdout is not None:
            self._init.stdout.close()


def pids(pid: int) -> list[int]:
    """The numbers of a process, here and in each namespace down to its own."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return [int(number) for number in line.split()[1:]]
    return [0]


def _only_child(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
