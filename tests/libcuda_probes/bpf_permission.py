"""Check whether the kernel permits BPF and uprobes, with separate system calls. If not, the tests are skipped.

Any other error of the loader fails a test.
"""

import ctypes
import errno
import os
import platform
import struct
from pathlib import Path

BPF = {"x86_64": 321, "aarch64": 280}
_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_FORBIDDEN = (errno.EPERM, errno.EACCES, errno.ENOSYS)
_PROBES = Path("/sys/bus/event_source/devices/uprobe/type")
_MAP_CREATE, _ARRAY = 0, 2
_EVENT_BYTES, _SOFTWARE, _DUMMY = 112, 1, 9


def refusal() -> str | None:
    """Return why the kernel does not permit them; None if it does."""
    machine = platform.machine()
    if machine not in BPF:
        return f"the system call numbers are not known ({machine})"
    if not _PROBES.exists():
        return f"there is no {_PROBES}"
    array = struct.pack("<IIII", _ARRAY, 4, 8, 1).ljust(72, b"\0")
    event = struct.pack("<IIQ", _SOFTWARE, _EVENT_BYTES, _DUMMY).ljust(_EVENT_BYTES, b"\0")
    return _refused("bpf", BPF[machine], _MAP_CREATE, array, len(array)) or _refused(
        "perf_event_open", _PERF_EVENT_OPEN[machine], event, -1, 0, -1, 0
    )


def _refused(name: str, number: int, *arguments: int | bytes) -> str | None:
    answer = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments)
    if answer >= 0:
        os.close(answer)
        return None
    problem = ctypes.get_errno()
    if problem in _FORBIDDEN:
        return f"{name}: {os.strerror(problem)}"
    raise OSError(problem, f"{name}: {os.strerror(problem)}")
