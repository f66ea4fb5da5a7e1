"""The kernel log (/dev/kmsg)."""

import errno
import os
import select
import stat
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors.thread import Reading
from exporter.model.observation import KernelRecord
from exporter.model.reason import Reason, ReasonCode, of_error
from exporter.parse.kernel_log import parse_kernel_record, parse_oom_kill

MAX_RECORDS = 1000  # limit of one collection

MAX_STORED_RECORDS = 100_000
"""The kernel's buffer has some MiB, and a record has at least some dozen bytes, so it cannot store more."""
MAX_RECORD_BYTES = 16384  # The kernel's own records have up to 8192 bytes. A longer record is lost.
_KMSG = os.makedev(1, 11)  # the device of the kernel log (Linux, Documentation/admin-guide/devices.txt)
_GPU_PREFIXES = ("NVRM: Xid (", "NVRM: GPU at ")
_LOST_GPU = "fallen off the bus"


def open_kernel_log(path: Path, whence: int = os.SEEK_END) -> int:
    """Open the kernel log without blocking reads, at its end or at its beginning. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISCHR(found.st_mode) or found.st_rdev != _KMSG:
            raise OSError(errno.EMEDIUMTYPE, "not the kernel log")
        os.lseek(descriptor, 0, whence)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def last_records(path: Path, limit: int, *, opener: Callable[[Path, int], int] = open_kernel_log) -> list[str]:
    """Return the last `limit` records about GPUs and OOM kills that the kernel still stores. Raises OSError."""
    descriptor = opener(path, os.SEEK_SET)
    try:
        wanted = (_wanted(raw or b"") for raw in _read(descriptor, MAX_STORED_RECORDS))
        return list(deque(filter(None, wanted), maxlen=limit))
    finally:
        os.close(descriptor)


@dataclass(eq=False)
class KernelLog:
    """New records of the kernel log. A collection waits `wait` seconds at most; `opener` may raise OSError.

    `apart` is whether its PIDs are of another PID namespace than ours.
    """

    path: Path
    clock: Clock
    _: KW_ONLY
    wait: float = 1.0
    opener: Callable[[Path], int] = open_kernel_log
    apart: bool = False
    _descriptor: int | None = field(default=None, init=False)

    def open(self) -> Reason | None:
        """Open the log unless it is open. Return the problem if that fails."""
        if self._descriptor is None:
            try:
                self._descriptor = self.opener(self.path)
            except OSError as error:
                return of_error(self.path, error)
        return None

    def collect(self) -> Reading:
        """Return the new records. Wait up to `wait` seconds for them, also if the log cannot be opened."""
        problem = self.open()
        poll = select.poll()
        if self._descriptor is not None:
            poll.register(self._descriptor, select.POLLIN)
        poll.poll(self.wait * 1000)
        if self._descriptor is None:
            return Reading(problem=problem)
        records: list[KernelRecord] = []
        try:
            for raw in _read(self._descriptor, MAX_RECORDS):
                if raw is None:
                    problem = Reason(ReasonCode.RECORDS_LOST, subject=str(self.path))
                elif not raw:
                    self.close()
                    problem = Reason(ReasonCode.NOT_READABLE, subject=str(self.path))
                elif (text := _wanted(raw)) is not None:
                    records.append(KernelRecord(at=self.clock.now(), record=text, apart=self.apart))
        except OSError as error:
            self.close()
            problem = of_error(self.path, error)
        return Reading(tuple(records), problem)

    def close(self) -> None:
        """Close the log."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _read(descriptor: int, most: int) -> Iterator[bytes | None]:
    """Yield the stored records, None for those that the kernel has overwritten, b"" at an end. Raises OSError."""
    for _ in range(most):
        try:
            raw = os.read(descriptor, MAX_RECORD_BYTES)
        except BlockingIOError:
            return
        except BrokenPipeError:
            yield None
            continue
        yield raw
        if not raw:
            return


def _wanted(raw: bytes) -> str | None:
    """Return the text of a record about a GPU or an OOM kill; None for others."""
    text = raw.decode(errors="replace").rstrip("\n")
    # Few records have a word of a wanted one, and to parse a record takes longer.
    message = parse_kernel_record(text) if "NVRM" in text or "Killed" in text else None
    if message is None:
        return None
    about_gpu = message.startswith(_GPU_PREFIXES) or (message.startswith("NVRM: ") and _LOST_GPU in message)
    return text if about_gpu or parse_oom_kill(message) is not None else None
