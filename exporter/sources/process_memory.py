"""The memory of another process, by process_vm_readv(2): it takes CAP_SYS_PTRACE alone, and attaches to nobody.

Files of /proc that only their owner may open, as /proc/PID/environ, take CAP_DAC_READ_SEARCH besides: the right to read
every file of the node (tried, Linux 6.18).
"""

import ctypes
import os


class _Span(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))


def read_memory(pid: int, start: int, size: int) -> bytes:
    """What lies at an address of a process, as far as it is mapped. Raises OSError: it has gone, or may not be read."""
    read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    read.restype = ctypes.c_ssize_t
    buffer = ctypes.create_string_buffer(size)
    here, there = _Span(ctypes.addressof(buffer), size), _Span(start, size)
    one, flags = ctypes.c_ulong(1), ctypes.c_ulong(0)
    count: int = read(pid, ctypes.byref(here), one, ctypes.byref(there), one, flags)
    if count < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return buffer.raw[:count]
