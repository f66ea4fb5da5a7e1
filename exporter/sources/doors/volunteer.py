"""A program of its own, which stands in for a client in a container: it may not call what no profile there knows.

It runs a function that is probed, the file's that it was given. If the kernel has probes return by a system call of
their own, and asks the client's filter about it, this program dies of it, and no client has to.
"""

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Callable

CALLS = (335, 336)
"""uretprobe and uprobe, of x86-64."""

_TIMES = 3  # a probe that was met once may be met in another way the next time
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _NOT_PERMITTED = 0x7FFF0000, 0x00050001


def main(descriptor: int) -> None:
    """Run it, as often as it takes."""
    call = _function(descriptor)
    _forbid()
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


def _forbid() -> None:
    """As Docker's profile, and systemd's filters: whatever they do not know is not permitted."""
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
