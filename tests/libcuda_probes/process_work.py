"""What a watcher has seen of a process."""

import time

from exporter.libcuda_probes.probes import LibcudaProbes
from exporter.model.launches import ProcessWork

SMS = 132
"""Those of an H200."""


def boot_ns() -> int:
    """The clock of the kernel's programs."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def seen(watcher: LibcudaProbes, pid: int) -> ProcessWork:
    """A process' work; nothing where it was not seen at all."""
    found = [work for work in watcher.read() if work.pid == pid]
    assert len(found) <= 1
    return found[0] if found else ProcessWork(pid=pid, first_ns=0)
