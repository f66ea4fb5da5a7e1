"""A check, before any probe is attached to libcuda, that probes do not kill clients with a seccomp filter.

From Linux 6.11 on, a probed function on x86-64 returns by a system call. Until that call was exempted (6.14, and
updates of 6.12 and 6.13 in February 2025), the kernel applied the client's seccomp filter to it. The filters of Docker
and systemd allow only what they know, and so the client died. A version number does not show what a distribution has
backported. So the check attaches a probe to a process of its own and waits for its end.

This file is also the program of that process, which runs a probed function under a filter like that of a container. It
is started as a script in isolated mode, so it can import nothing of this package.
"""

import ctypes
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exporter.libcuda_probes.probes import LibcudaProbes

TIMEOUT_SECONDS = 20.0

_FUNCTION = bytes.fromhex("0f1f440000c3")
"""A no-op of the five bytes that Linux replaces by a call (6.18), and a return."""


def check_seccomp(probes: "LibcudaProbes", machine: str, function: bytes = _FUNCTION) -> None:
    """Probe a process with a filter. Raise BpfError if that kills the process, or if the check is not possible."""
    from exporter.libcuda_probes.loader import BpfError

    if machine != "x86_64":
        return
    file = os.memfd_create("seccomp-check")
    try:
        os.write(file, function.ljust(mmap.PAGESIZE, b"\xcc"))
        path = f"/proc/self/fd/{file}"
        probes.attach(path, {"cuCtxSynchronize": 0})
        command = (sys.executable, "-I", "-S", __file__, str(file))
        try:
            status = subprocess.run(  # noqa: S603 (fixed words)
                command,
                pass_fds=(file,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=TIMEOUT_SECONDS,
                check=False,
            ).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BpfError(f"cannot check whether probes harm clients: {error}") from error
        finally:
            probes.detach(path)
            probes.forget([work.pid for work in probes.read()])
    finally:
        os.close(file)
    if status < 0:
        raise BpfError(
            "this kernel applies seccomp filters to the return of probed functions, which kills clients in containers "
            f"(the test process ended by signal {-status}); upgrade to Linux 6.14, or to 6.12 or 6.13 with the updates "
            "of February 2025, or use one before 6.11"
        )
    if status > 0:
        raise BpfError(f"cannot check whether probes harm clients (exit code {status} of the test process)")


# -- The process of the check ------------------------------------------------------------------------------------------

CALLS = (335, 336)  # uretprobe and uprobe on x86-64
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
