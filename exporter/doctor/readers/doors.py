"""Tries what `--attribution=bpf` needs: loads the programs, attaches one to a file that nobody runs, and lets go."""

import mmap
import os
from collections.abc import Iterable

from exporter.clock import Clock
from exporter.doctor.facts import DoorsFacts
from exporter.sources.doors.doors import DOORS
from exporter.sources.doors.libraries import Libraries
from exporter.sources.doors.library import machine_called
from exporter.sources.doors.loader import BpfError, Kernel
from exporter.sources.doors.trial import try_out
from exporter.sources.doors.watcher import Watcher
from exporter.sources.proc import Proc


def read_doors(pids: Iterable[int], proc: Proc, clock: Clock) -> DoorsFacts:
    """What kernel and libraries are like, for these processes; nobody but root can try the kernel."""
    machine = machine_called(os.uname().machine)
    tried = os.geteuid() == 0 or machine is None
    refused = kernel_refusal() if tried else None
    if machine is None:
        return DoorsFacts(refused=refused)
    libraries = Libraries(proc, clock, machine)
    try:
        found = libraries.look(pids)
    finally:
        libraries.close()
    paths = tuple(each.path for each in found.libraries)
    return DoorsFacts(tried=tried, refused=refused, libraries=paths, problems=found.problems)


def kernel_refusal() -> str | None:
    """Why the kernel does not take the programs."""
    file = os.memfd_create("nobody-runs-this")
    try:
        os.truncate(file, mmap.PAGESIZE)
        watcher = Watcher(Kernel(), boot_ns=lambda: 0, sms=1)
        try:
            watcher.attach(f"/proc/self/fd/{file}", {DOORS[0].name: 0})
            try_out(watcher, os.uname().machine)
        finally:
            watcher.close()
    except BpfError as error:
        return str(error)
    finally:
        os.close(file)
    return None
