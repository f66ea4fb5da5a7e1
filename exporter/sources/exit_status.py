"""How a process ended that is nobody's child here: its wait status, as from waitpid(2).

Until its parent has reaped it, /proc/PID/stat has it, for those who may trace the process (proc(5)); from then on its
pidfd has it, for everybody (PIDFD_GET_INFO, Linux 6.15). Measured on Linux 6.18: neither has it at the other's time.
"""

import fcntl
import struct

from exporter.sources.proc import Proc

_INFO = struct.Struct("=QQ11Ii")
"""The first version of struct pidfd_info (include/uapi/linux/pidfd.h): what is told, and last of all `exit_code`."""

_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
"""PIDFD_GET_INFO: _IOWR(0xFF, 11, struct pidfd_info)."""

_EXIT = 1 << 3
"""PIDFD_INFO_EXIT."""


def wait_status(proc: Proc, pid: int, start_ticks: int, pidfd: int | None) -> int | None:
    """How this process ended, None where that cannot be seen; it may be reaped at any moment."""
    told = _by_pidfd(pidfd)
    if told is None:
        told = proc.wait_status(pid, start_ticks)
    return _by_pidfd(pidfd) if told is None else told


def _by_pidfd(pidfd: int | None) -> int | None:
    if pidfd is None:
        return None
    info = bytearray(_INFO.pack(_EXIT, *(0,) * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:
        return None
    mask, *_, exit_code = _INFO.unpack(info)
    return int(exit_code) if mask & _EXIT else None
