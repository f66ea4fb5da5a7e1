"""A check, before any probe is attached to libcuda, that probes do not kill clients with a seccomp filter.

From Linux 6.11 on, a probed function on x86-64 returns by a system call. Until that call was exempted (6.14, and
updates of 6.12 and 6.13 in February 2025), the kernel applied the client's seccomp filter to it. The filters of Docker
and systemd allow only what they know, and so the client died. A version number does not show what a distribution has
backported. So the check attaches a probe to a process of its own (seccomp_probe.py) and waits for its end.
"""

import mmap
import os
import subprocess
import sys
from pathlib import Path

from exporter.libcuda_probes import seccomp_probe
from exporter.libcuda_probes.loader import BpfError
from exporter.libcuda_probes.probes import LibcudaProbes

TIMEOUT_SECONDS = 20.0

_FUNCTION = bytes.fromhex("0f1f440000c3")
"""A no-op of the five bytes that Linux replaces by a call (6.18), and a return."""


def check_seccomp(probes: LibcudaProbes, machine: str, function: bytes = _FUNCTION) -> None:
    """Probe a process with a filter. Raise BpfError if that kills the process, or if the check is not possible."""
    if machine != "x86_64":
        return
    file = os.memfd_create("seccomp-check")
    try:
        os.write(file, function.ljust(mmap.PAGESIZE, b"\xcc"))
        path = f"/proc/self/fd/{file}"
        probes.attach(path, {"cuCtxSynchronize": 0})
        try:
            status = _status(file)
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


def _status(file: int) -> int:
    command = (sys.executable, "-I", "-S", str(Path(seccomp_probe.__file__)), str(file))
    try:
        done = subprocess.run(  # noqa: S603 (fixed words)
            command,
            pass_fds=(file,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BpfError(f"cannot check whether probes harm clients: {error}") from error
    return done.returncode
