"""Check what `--attribution=bpf` needs: load the programs, and attach one to a file that no process executes."""

import mmap
import os
from collections.abc import Iterable

from exporter.clock import Clock
from exporter.doctor.facts import DoorsFacts
from exporter.sources.libcuda_probes.libraries import Libraries, machine_named
from exporter.sources.libcuda_probes.loader import BpfError, Kernel
from exporter.sources.libcuda_probes.probe_points import PROBE_POINTS
from exporter.sources.libcuda_probes.probes import LibcudaProbes
from exporter.sources.libcuda_probes.seccomp_check import check_seccomp
from exporter.sources.proc import Proc


def read_doors(pids: Iterable[int], proc: Proc, clock: Clock) -> DoorsFacts:
    """Return the facts about the kernel and the libraries of these processes. Only root can test the kernel."""
    machine = machine_named(os.uname().machine)
    tried = os.geteuid() == 0 or machine is None
    refused = kernel_refusal() if tried else None
    if machine is None:
        return DoorsFacts(refused=refused)
    libraries = Libraries(proc, clock, machine)
    try:
        found = libraries.find(pids)
    finally:
        libraries.close()
    paths = tuple(each.path for each in found.libraries)
    return DoorsFacts(tried=tried, refused=refused, libraries=paths, problems=found.problems)


def kernel_refusal() -> str | None:
    """Return why the kernel refuses the programs; None if it accepts them."""
    file = os.memfd_create("probe-test")
    try:
        os.truncate(file, mmap.PAGESIZE)
        probes = LibcudaProbes(Kernel(), boot_ns=lambda: 0, sms=1)
        try:
            probes.attach(f"/proc/self/fd/{file}", {PROBE_POINTS[0].name: 0})
            check_seccomp(probes, os.uname().machine)
        finally:
            probes.close()
    except BpfError as error:
        return str(error)
    finally:
        os.close(file)
    return None
