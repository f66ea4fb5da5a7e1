"""Tries, before anybody is watched, whether a client would live on that may not make any system call it likes.

From Linux 6.11 on, a probed function of x86-64 returns by a system call. Until that was exempted (6.14, and updates of
6.12 and 6.13 in February 2025), a client's seccomp filter was asked about it too. Docker's and systemd's permit what
they know and nothing else, and then the client died. Versions do not tell what a distribution has mended: a trial does.
"""

import mmap
import os
import subprocess
import sys
from pathlib import Path

from exporter.sources.doors import volunteer
from exporter.sources.doors.loader import BpfError
from exporter.sources.doors.watcher import Watcher

PATIENCE_SECONDS = 20.0

_FUNCTION = bytes.fromhex("0f1f440000c3")
"""Nothing, in the five bytes that Linux replaces by a call (6.18), and a return."""


def try_out(watcher: Watcher, machine: str, function: bytes = _FUNCTION) -> None:
    """Watch a program that is there for nothing else. BpfError where it dies of that, or that cannot be tried."""
    if machine != "x86_64":
        return
    file = os.memfd_create("volunteer")
    try:
        os.write(file, function.ljust(mmap.PAGESIZE, b"\xcc"))
        path = f"/proc/self/fd/{file}"
        watcher.attach(path, {"cuCtxSynchronize": 0})
        try:
            status = _status(file)
        finally:
            watcher.detach(path)
            watcher.forget([work.pid for work in watcher.read()])
    finally:
        os.close(file)
    if status < 0:
        raise BpfError(
            "this kernel asks seccomp filters about the returns of functions that are probed, and that kills clients "
            f"in containers (a trial ended by signal {-status}); it takes Linux 6.14, or 6.12 and 6.13 with the "
            "updates of February 2025, or one before 6.11"
        )
    if status > 0:
        raise BpfError(f"cannot try whether clients bear to be probed (the trial's exit code is {status})")


def _status(file: int) -> int:
    command = (sys.executable, "-I", "-S", str(Path(volunteer.__file__)), str(file))
    try:
        done = subprocess.run(  # noqa: S603 (our own words)
            command,
            pass_fds=(file,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BpfError(f"cannot try whether clients bear to be probed: {error}") from error
    return done.returncode
