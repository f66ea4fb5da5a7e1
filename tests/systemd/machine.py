"""A machine in namespaces of this one, with a real systemd. Everything else is temporary.

Its files are an overlay in memory (`init.sh`), its processes end with its PID 1, and its network is this machine's.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from tests.eventually import PATIENCE_SECONDS, eventually

ROOT = Path(__file__).parents[2]
INIT = Path(__file__).with_name("init.sh")
INSTALL = Path(__file__).with_name("install.sh")
CELL = Path(__file__).with_name("cell.sh")
NAMESPACES = ("--pid", "--mount", "--cgroup", "--uts", "--ipc")
CGROUPS = Path("/sys/fs/cgroup")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class Machine:
    """A booted systemd, with the exporter's program and the stand-in daemon, and without their units."""

    def __init__(self, directory: Path, bare: Path | None = None, install: Sequence[str | Path] | None = None) -> None:
        """`directory` is empty, and stays empty outside of the machine.

        With `bare`, the machine has only the files of this root directory, and its own network. `install` is a command
        that changes its files, instead of the one that installs the exporter's program and the stand-in daemon.

        Its cgroups are its own: systemd takes a process of another machine in one of them for an error (tried: 252).
        """
        self._directory = directory
        self._cells = tuple(
            own / f"machine-{os.getpid()}-{directory.parent.name}" for own in _own_cgroups() if os.access(own, os.W_OK)
        )
        for cell in self._cells:
            cell.mkdir(exist_ok=True)
        packages = [each for each in map(Path, sys.path) if _is_package_directory(each)]
        install = install or ("sh", INSTALL, sys.base_prefix, ROOT, *packages)
        unshare = ("unshare", "--fork", "--kill-child", *NAMESPACES, *(("--net",) if bare else ()))
        boot = ("sh", INIT, directory, *((bare, "true") if bare else ("/", *install)))
        command = ("setpriv", "--pdeathsig=KILL", "sh", CELL, *self._cells, "--", *unshare, *boot)
        with (directory.parent / "boot.log").open("wb") as log:
            self._unshare = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self._init = eventually(self._child_of_unshare)
        eventually(self._assert_booted)

    def run(self, *words: str, user: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Run a command in the machine, as root or as a user."""
        return subprocess.run(
            self._inside(words, user), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start a command in the machine."""
        return subprocess.Popen(self._inside(words, None))

    def _inside(self, words: Sequence[str], user: str | None) -> list[str]:
        as_user = () if user is None else ("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups")
        return ["nsenter", f"--target={self._init}", "--all", "env", "-i", f"PATH={PATH}", *as_user, *words]

    @property
    def root(self) -> Path:
        """Its root directory, seen from outside."""
        return Path(f"/proc/{self._init}/root")

    def do(self, *words: str) -> str:
        """Run a command that must succeed, and return its output."""
        done = self.run(*words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def write(self, path: str, text: str) -> None:
        """Write a file in the machine."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.do("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def signal(self, unit: str, name: str) -> None:
        """Send a signal to a unit's main process."""
        self.do("systemctl", "kill", f"--signal={name}", "--kill-who=main", unit)

    def close(self) -> None:
        """Kill the machine with all its processes."""
        os.kill(self._init, 9)
        self._unshare.wait()
        for cell in self._cells:
            eventually(lambda cell=cell: _remove(cell))

    def _child_of_unshare(self) -> int:
        assert self._unshare.poll() is None, "unshare could not"
        (child,) = psutil.Process(self._unshare.pid).children() or (None,)
        assert child is not None
        return int(child.pid)

    def _assert_booted(self) -> None:
        assert self._unshare.poll() is None, (self._directory.parent / "boot.log").read_text()
        assert self.run("systemctl", "is-system-running").stdout.strip() in ("running", "degraded")


def _is_package_directory(path: Path) -> bool:
    """Return whether a directory of sys.path has installed packages."""
    return path.is_dir() and path != ROOT and not path.is_relative_to(sys.base_prefix)


def _own_cgroups() -> Iterator[Path]:
    """Yield the cgroup of this process in each hierarchy. With version 2 there is only one."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        mounted = CGROUPS / (controllers.removeprefix("name=") or "unified")
        place = (mounted if mounted.is_dir() else CGROUPS) / path.lstrip("/")
        if place.is_dir():
            yield place


def _remove(cell: Path) -> None:
    """Remove a cgroup with all below it, once they have no process."""
    try:
        for below in sorted((path for path in cell.rglob("*") if path.is_dir()), reverse=True):
            below.rmdir()
        cell.rmdir()
    except OSError as error:
        raise AssertionError(cell) from error
