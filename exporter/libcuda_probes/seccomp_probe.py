"""The process of the seccomp check: a program that runs a probed function under a filter like that of a container.

The function is in the file that it inherits. If the kernel applies the filter to the system calls of probes, this
program dies instead of a client. It is started as a script in isolated mode, and imports nothing of this package.
"""

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Callable

CALLS = (335, 336)
"""uretprobe and uprobe on x86-64."""

_TIMES = 3  # from the second hit on, the kernel may use another mechanism
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _NOT_PERMITTED = 0x7FFF0000, 0x00050001


def main(descriptor: int) -> None:
    """Call the function under the filter."""
    call = _function(descriptor)
    _apply_filter()
    for _ in range(_TIMES):
        call()


def _function(descriptor: int) -> Callable[[], int]:
    size = os.fstat(descriptor).st_size
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(
        None, ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, descriptor, ctypes.c_long(0)
    )
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)


def _apply_filter() -> None:
    """Fail `CALLS` with EPERM, as the filters of Docker and systemd do with calls that they do not know."""
    steps = [(_LOAD, 0, 0, 0)]
    for left, call in zip(reversed(range(len(CALLS))), CALLS, strict=True):
        steps.append((_IF_EQUAL, left + 1, 0, call))
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _NOT_PERMITTED)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if libc.prctl(_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    main(int(sys.argv[1]))
