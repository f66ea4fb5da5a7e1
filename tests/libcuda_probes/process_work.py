"""The work that the probes counted for a process."""

import time

from exporter.libcuda_probes.probes import LibcudaProbes
from exporter.model.launches import ProcessWork

SMS = 132
"""The number of SMs of an H200."""


def boot_ns() -> int:
    """Return CLOCK_BOOTTIME, which the BPF programs read."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def work_of(probes: LibcudaProbes, pid: int) -> ProcessWork:
    found = [work for work in probes.read() if work.pid == pid]
    assert len(found) <= 1
    return found[0] if found else ProcessWork(pid=pid, first_ns=0)
