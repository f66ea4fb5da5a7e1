"""A child process that talks on and on, heard without ever waiting for it."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

MOST_BYTES_A_LOOK = 1 << 18
LONGEST_LINE = 1 << 16
LONGEST_COMPLAINT = 1 << 10


class Child:
    """One child, from its start to its end."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it. Raises OSError where it cannot be started, ValueError where an argument cannot be one."""
        self._child = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
        self._torn = b""
        self._skipping = False
        self._complaint = b""

    @property
    def ended(self) -> int | None:
        """Its exit code, once it has ended. What `lines` tells after that is all there was."""
        return self._child.poll()

    @property
    def complaint(self) -> str:
        """The last line that it wrote to stderr by the last call of `lines`; empty where there is none."""
        return (self._complaint.decode(errors="replace").strip().splitlines() or [""])[-1]

    def lines(self) -> tuple[list[bytes], int]:
        """The whole lines that it has written by now, and how many more were too long to be kept.

        At most so much as `MOST_BYTES_A_LOOK`: the rest waits in the pipe, and the child with it.
        """
        self._complaint = (self._complaint + _heard(self._child.stderr))[-LONGEST_COMPLAINT:]
        *whole, self._torn = (self._torn + _heard(self._child.stdout)).split(b"\n")
        if whole and self._skipping:
            self._skipping = False
            del whole[0]
        kept = [line for line in whole if len(line) <= LONGEST_LINE]
        too_long = len(whole) - len(kept)
        if len(self._torn) > LONGEST_LINE:
            too_long += not self._skipping
            self._torn, self._skipping = b"", True
        return kept, too_long

    def close(self) -> None:
        """End it, with all that it started, unless it has ended; then let go of it."""
        if self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
        with self._child:
            pass


def _heard(stream: IO[bytes] | None) -> bytes:
    """What is in a pipe by now."""
    if stream is None:
        raise ValueError("a child without pipes cannot be heard")
    os.set_blocking(stream.fileno(), False)
    heard = bytearray()
    with contextlib.suppress(BlockingIOError):
        while len(heard) < MOST_BYTES_A_LOOK:
            said = os.read(stream.fileno(), 1 << 16)
            if not said:
                break
            heard += said
    return bytes(heard)
