"""Containers as a runtime makes them, with their own namespaces, and their ID in the name of their cgroup."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tests.eventually import eventually
from tests.systemd.machine import CELL

from .child import Child
from .clients import Client, Clients
from .mps import ControlDaemon

NAMESPACES = ("--pid", "--mount", "--uts", "--cgroup")
# The pipe directory has another path inside. Its users have names that only the container knows.
_INIT = """
mount --bind "$1" "$2" && mount --bind "$3" /etc/passwd || exit
test -z "$4" || mount -t tmpfs tmpfs /dev/shm || exit
echo started
exec sleep 600
"""


class ContainedClient(Client):
    """A load program in a container, where it has another PID."""

    @property
    def pid(self) -> int:
        """The PID on the host, also after its end."""
        if not self._pid:
            (process,) = psutil.Process(self.child.pid).children() or (None,)
            assert process is not None
            self._pid = process.pid
        return self._pid

    _pid = 0

    def ready(self) -> None:
        """Wait until it has its context and its memory."""
        super().ready()
        assert eventually(lambda: self.pid)

    def leave(self) -> None:
        """Let it exit normally."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        self.child.wait()


class Container(Clients):
    """A container that has the pipe directory of the host's daemon.

    `cgroup` is its path below the root of the unified hierarchy. With `own_memory`, it has its own
    /dev/shm and System V IPC.
    """

    _kind = ContainedClient

    def __init__(
        self, daemon: ControlDaemon, directory: Path, cgroup: str, load_program: Path, *, own_memory: bool = False
    ) -> None:
        inside, passwd = directory / "nvidia-mps", directory / "passwd"
        super().__init__(load_program, daemon, directory)
        directory.chmod(0o755)
        inside.mkdir()
        passwd.write_text("root:x:0:0::/:/bin/sh\n" + "".join(f"trainer{n}:x:{n}:{n}::/:/bin/sh\n" for n in USERS))
        self._cgroup = unified_hierarchy() / cgroup
        self._cgroup.mkdir(parents=True)
        self._environment = {**daemon.environment, "CUDA_MPS_PIPE_DIRECTORY": str(inside)}
        self._namespaces = (*NAMESPACES, *(("--ipc",) if own_memory else ()))
        unshare = ("unshare", "--fork", "--kill-child", "--mount-proc", *self._namespaces)
        arguments = (daemon.pipe_directory, inside, passwd, "own" if own_memory else "")
        self._unshare = self._enclosed(
            *unshare, "sh", "-c", _INIT, "sh", *map(str, arguments), output=directory / "init.log"
        )
        eventually(self._assert_started, within=10)
        (init,) = psutil.Process(self._unshare.pid).children()
        self._init = init.pid

    def _child(self, words: Sequence[str], output: Path, environment: Mapping[str, str], uid: int | None) -> Child:
        enter = ("nsenter", f"--target={self._init}", *self._namespaces, "--")
        user = ("setpriv", f"--reuid={uid or 0}", f"--regid={uid or 0}", "--clear-groups", "--")
        return self._enclosed(*enter, *user, *words, output=output, **environment)

    def kill(self) -> None:
        """End its first process, and so all of them, as the runtime does after the time for SIGTERM."""
        with suppress(ProcessLookupError):
            os.kill(self._init, signal.SIGKILL)
        self._unshare.wait()

    def end(self) -> None:
        """End it, and remove its cgroup and those above that are empty."""
        self.kill()
        for client in self._started:
            client.child.end()
        eventually(self._remove_cgroup, within=10)

    def evidence(self) -> str:
        """Return what its processes wrote, for the report of a failed test."""
        return "\n".join([self._unshare.evidence(), *(client.child.evidence() for client in self._started)])

    def _enclosed(self, *words: str, output: Path, **environment: str) -> Child:
        cell = ("sh", str(CELL), str(self._cgroup), "--")
        return Child([*cell, *words], output=output, environment={**self._environment, **environment})

    def _assert_started(self) -> None:
        if self._unshare.exit_code is not None:
            raise RuntimeError(self._unshare.evidence())
        assert "started" in self._unshare.text()

    def _remove_cgroup(self) -> None:
        root = unified_hierarchy()
        try:
            self._cgroup.rmdir()
        except FileNotFoundError:
            pass
        except OSError as problem:
            raise AssertionError(self._cgroup) from problem
        for above in self._cgroup.relative_to(root).parents:
            with suppress(OSError):
                (root / above).rmdir()


USERS = (20001, 20002)
STRANGER = 20009


def unified_hierarchy() -> Path:
    """Return where cgroup v2 is mounted: here the only hierarchy, or one beside those of v1."""
    for place in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")):
        if (place / "cgroup.procs").exists():
            return place
    raise RuntimeError("cgroup v2 is not mounted")


def take_pid(target: int, pid: int) -> bool:
    """Start a process of another user with this PID in the namespace of `target`. Return whether that worked."""
    script = f"""
        echo $(($1 - 1)) >/proc/sys/kernel/ns_last_pid || exit
        setpriv --reuid={STRANGER} --clear-groups sleep 60 &
        test $! = "$1"
    """
    words = ("nsenter", f"--target={target}", "--pid", "--mount", "--", "sh", "-c", script, "sh", str(pid))
    done = subprocess.run(words, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return done.returncode == 0
