"""A real journald in its own mount namespace, and processes with their stdout in its journal."""

import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

from tests.eventually import PATIENCE_SECONDS, eventually, until
from tests.tools import needed, not_here

JOURNALD = "/lib/systemd/systemd-journald"
BURST = 50

_NAMESPACE = f"""
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/journald.conf.d /run/log
cd /run/systemd/journald.conf.d
printf '%s\\n' '[Journal]' Storage=volatile ReadKMsg=no Audit= RateLimitIntervalSec=1s RateLimitBurst={BURST} >draft
mv draft test.conf
exec sleep 600
"""


class Writer:
    """A process of the unit. It writes its input to its stdout."""

    def __init__(self, program: Path, stdout: socket.socket) -> None:
        self._child = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=stdout)

    def write(self, *lines: str | bytes) -> None:
        """Write lines."""
        assert self._child.stdin is not None
        encoded = [line.encode() if isinstance(line, str) else line for line in lines]
        self._child.stdin.write(b"".join(line + b"\n" for line in encoded))
        self._child.stdin.flush()

    def close(self) -> None:
        """End."""
        with self._child:
            self._child.kill()


class Journald:
    """A journald for one test; `journalctl` is the command that reads it."""

    def __init__(self, directory: Path) -> None:
        self.journalctl = directory / "journalctl"
        self.unit = "nvidia-mps.service"
        self._directory = directory
        self._children = contextlib.ExitStack()

    def open(self) -> None:
        """Make the namespace, start journald in it, and find the unit that it records for child processes."""
        needed("journalctl")
        if not Path(JOURNALD).exists():
            not_here("systemd-journald is not installed")
        holder = self._start([needed("unshare"), "--mount", "--propagation=private", "sh", "-c", _NAMESPACE])
        self._enter = [needed("nsenter"), f"--mount=/proc/{holder.pid}/ns/mnt"]
        self._run = Path(f"/proc/{holder.pid}/root/run/systemd")

        def made() -> None:
            if holder.poll() is not None:
                not_here("no mount namespace can be made")
            assert (self._run / "journald.conf.d" / "test.conf").exists()

        eventually(made)
        self.journalctl.write_text(f'#!/bin/sh\nexec {" ".join(self._enter)} journalctl "$@"\n')
        self.journalctl.chmod(0o755)
        self.start()
        self.unit = eventually(self._unit_of_hello)

    def start(self) -> None:
        """Start journald."""
        (self._run / "journal" / "stdout").unlink(missing_ok=True)
        self._journald = self._start([*self._enter, JOURNALD])

        until(lambda: (self._run / "journal" / "stdout").is_socket())

    def kill(self) -> None:
        """End journald like a crash."""
        self._journald.kill()
        self._journald.wait()

    def rotate(self) -> None:
        """Let journald start a new file."""
        subprocess.run([self.journalctl, "--rotate"], check=True, timeout=PATIENCE_SECONDS)

    def writer(self, program: str = "nvidia-cuda-mps-control") -> Writer:
        """Start a process of the unit with this program name."""
        path = self._directory / program
        if not path.exists():
            shutil.copy(needed("cat"), path)
        with socket.socket(socket.AF_UNIX) as stdout:
            stdout.connect(str(self._run / "journal" / "stdout"))
            stdout.sendall(b"mps\n")

            # Until journald has accepted and set SO_PASSCRED, lines may come without their sender, and so without unit.
            until(lambda: int.from_bytes(fcntl.ioctl(stdout, termios.TIOCOUTQ, bytes(4)), sys.byteorder) == 0)
            stdout.sendall(f"{self.unit}\n6\n0\n0\n0\n0\n".encode())
            writer = Writer(path, stdout)
        self._children.callback(writer.close)
        return writer

    def close(self) -> None:
        """End all started processes."""
        self._children.close()

    def _start(self, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        # Without the variables of this process, because journald uses RUNTIME_DIRECTORY.
        child = subprocess.Popen(command, env={"PATH": os.environ["PATH"]})
        self._children.callback(child.wait)
        self._children.callback(child.kill)
        return child

    def _unit_of_hello(self) -> str:
        """Return the unit that journald records. Under systemd, it takes the unit from the cgroup."""
        self.writer().write("hello")
        shown = subprocess.run(
            [self.journalctl, "--system", "--output=json"], capture_output=True, check=True, timeout=PATIENCE_SECONDS
        ).stdout.splitlines()
        units = [each.get("_SYSTEMD_UNIT") for each in map(json.loads, shown) if each.get("MESSAGE") == "hello"]
        names = [unit for unit in units if isinstance(unit, str)]
        assert names, units
        return names[-1]
