"""The kernel log (/dev/kmsg)."""

import errno
import os
import select
import stat
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors.thread import Reading
from exporter.model.observation import KernelRecord
from exporter.model.problem import Problem, ProblemCode, of_error
from exporter.parse.kernel_log import parse_kernel_record, parse_oom_kill

MOST_RECORDS_A_LOOK = 1000
MOST_RECORDS_HELD = 100_000
"""Its memory has room for no more: some MiB at most, of records of some dozen bytes at least."""
LONGEST_RECORD = 16384
"""Bytes; the kernel's own records have up to 8192, and one that does not fit is lost."""

_KMSG = os.makedev(1, 11)
"""The device that is the kernel's log (Linux, Documentation/admin-guide/devices.txt)."""

_OF_GPUS = ("NVRM: Xid (", "NVRM: GPU at ")
_LOST_GPU = "fallen off the bus"


def open_at_end(path: Path) -> int:
    """Open the kernel's log so that it tells only what is new, and never waits. Raises OSError."""
    return _opened(path, os.SEEK_END)


def open_at_beginning(path: Path) -> int:
    """Open the kernel's log so that it tells all that it still has, and never waits. Raises OSError."""
    return _opened(path, os.SEEK_SET)


def last_records(path: Path, most: int, *, opener: Callable[[Path], int] = open_at_beginning) -> list[str]:
    """What the kernel's log still has of what is wanted of it, the last `most` records. Raises OSError."""
    descriptor = opener(path)
    try:
        return list(deque(filter(_wanted, _held(descriptor)), most))
    finally:
        os.close(descriptor)


def _held(descriptor: int) -> Iterator[str]:
    """The records that may be wanted, of all that are there now."""
    for _ in range(MOST_RECORDS_HELD):
        try:
            raw = os.read(descriptor, LONGEST_RECORD)
        except BlockingIOError:
            return
        except BrokenPipeError:
            continue
        if not raw:
            return
        if b"NVRM" in raw or b"Killed" in raw:
            yield raw.decode(errors="replace").rstrip("\n")


def _opened(path: Path, whence: int) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISCHR(found.st_mode) or found.st_rdev != _KMSG:
            raise OSError(errno.EMEDIUMTYPE, "it is not the kernel's log")
        os.lseek(descriptor, 0, whence)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class KernelLog:
    """The kernel's log from now on; nothing that was in it before."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        wait: float = 0.5,
        opener: Callable[[Path], int] = open_at_end,
    ) -> None:
        """`wait` bounds one look, in seconds; `opener` gives a descriptor, or raises OSError."""
        self._path = path
        self._clock = clock
        self._wait = wait
        self._opener = opener
        self._descriptor: int | None = None

    def open(self) -> Problem | None:
        """Begin to follow the log; return the problem if that fails."""
        if self._descriptor is None:
            try:
                self._descriptor = self._opener(self._path)
            except OSError as error:
                return of_error(self._path, error)
        return None

    def collect(self) -> Reading:
        """What they have said since the last look. Waits up to `wait` seconds for it, also where it cannot be."""
        problem = self.open()
        poll = select.poll()
        if self._descriptor is not None:
            poll.register(self._descriptor, select.POLLIN)
        poll.poll(self._wait * 1000)
        return Reading(problem=problem) if self._descriptor is None else self._new(self._descriptor)

    def close(self) -> None:
        """Let go of the log."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _new(self, descriptor: int) -> Reading:
        seen: list[KernelRecord] = []
        problem: Problem | None = None
        for _ in range(MOST_RECORDS_A_LOOK):
            try:
                raw = os.read(descriptor, LONGEST_RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:
                problem = Problem(code=ProblemCode.RECORDS_LOST, subject=str(self._path))
                continue
            except OSError as error:
                self.close()
                problem = of_error(self._path, error)
                break
            if not raw:
                self.close()
                problem = Problem(code=ProblemCode.NOT_READABLE, subject=str(self._path))
                break
            text = raw.decode(errors="replace").rstrip("\n")
            if _wanted(text):
                seen.append(KernelRecord(at=self._clock.now(), record=text))
        return Reading(tuple(seen), problem)


def _wanted(text: str) -> bool:
    read = parse_kernel_record(text)
    if read is None or not read.by_kernel:
        return False
    return _of_gpus(read.message) or parse_oom_kill(read.message) is not None


def _of_gpus(message: str) -> bool:
    return message.startswith(_OF_GPUS) or (message.startswith("NVRM: ") and _LOST_GPU in message)
