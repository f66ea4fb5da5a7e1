"""Runs a program to its end, and hears a little of what it says.

A program that starts a daemon may leave it its stdout and stderr, so that no pipe from it ever ends: what it says goes
into a file in memory that cannot grow.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exporter.actions.patience import Patience
from exporter.parse.printable import printable
from exporter.sources.user import OURSELVES, User

MOST_BYTES = 1 << 14

_KILL_SECONDS = 1.0
_UMASK = 0o022
"""A daemon's sockets and logs are for its clients: ours may be stricter than that."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended: with this exit code, None where it was not waited for any longer, and what it said."""

    exit_code: int | None
    said: str

    @property
    def last_line(self) -> str | None:
        """The last line of its output; None if it has no output."""
        lines = [line for line in self.said.splitlines() if line.strip()]
        return printable(lines[-1].strip()) if lines else None


def run(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    seconds: float,
    patience: Patience,
    user: User = OURSELVES,
    grace: float = 0.0,
) -> Ended:
    """Run it, for so long at most, then end it with all of its session that is left; `grace` is as in `until_end`.

    Raises OSError where it cannot be started, ValueError where an argument cannot be one.
    """
    output = _bounded_file()
    try:
        child = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            cwd="/",
            umask=_UMASK,
            start_new_session=True,
            user=user.uid,
            group=user.gid,
            extra_groups=user.groups,
        )
        in_time = patience.until_end_of(child.pid, seconds, grace=grace)
        if not in_time:
            _end(child, patience)
        exit_code = child.poll()
        return Ended(exit_code if in_time else None, _said(output))
    finally:
        os.close(output)


def _bounded_file() -> int:
    descriptor = os.memfd_create("said", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, MOST_BYTES)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return descriptor


def _end(child: "subprocess.Popen[bytes]", patience: Patience) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    patience.until_end_of(child.pid, _KILL_SECONDS, grace=_KILL_SECONDS)


def _said(output: int) -> str:
    return os.pread(output, MOST_BYTES, 0).rstrip(b"\0").decode(errors="replace")
