"""Nobody is watched on a kernel on which those who are watched would die of it."""

import platform
from pathlib import Path

import pytest

from exporter.collectors.proc import Proc
from exporter.libcuda_probes.collector import LibcudaCollector
from exporter.libcuda_probes.libraries import Libraries
from exporter.libcuda_probes.loader import BpfError, Kernel
from exporter.libcuda_probes.probes import LibcudaProbes
from exporter.libcuda_probes.seccomp_check import check_seccomp
from exporter.model.problem import Problem, ProblemCode
from tests.clocks import HandClock

from .process_work import SMS, boot_ns
from .standin import Program, StandInCuda, Work, code_at
from .test_collector import MACHINES

DIES = bytes.fromhex("b84f0100000f05c3")
"""Calls uretprobe itself, and is killed: as a client is whose filter refuses it that call."""

FAILS = bytes.fromhex("bf05000000b83c0000000f05")
"""Exits with 5, before it could be told."""

x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="NOT RUN: only x86-64 has that call")


def test_a_client_whose_calls_are_filtered_lives_on_here(kernel: Kernel) -> None:
    watcher = LibcudaProbes(kernel, boot_ns, SMS)
    try:
        check_seccomp(watcher, platform.machine())
        assert not list(watcher.read())
    finally:
        watcher.close()


@x86_64
@pytest.mark.parametrize(
    ("function", "words"), [(DIES, "which kills clients in containers"), (FAILS, "exit code 5")], ids=["dies", "fails"]
)
def test_a_trial_that_ends_badly_is_told(kernel: Kernel, function: bytes, words: str) -> None:
    watcher = LibcudaProbes(kernel, boot_ns, SMS)
    try:
        with pytest.raises(BpfError, match=words):
            check_seccomp(watcher, "x86_64", function)
    finally:
        watcher.close()


@pytest.mark.usefixtures("kernel")
def test_nobody_is_watched_then_and_it_is_tried_once(cuda: StandInCuda) -> None:
    tried: list[str] = []

    def harmful(_: LibcudaProbes, machine: str) -> None:
        tried.append(machine)
        raise BpfError("this kernel kills clients")

    clock = HandClock()
    proc = Proc(Path("/proc"), clock)
    libraries = Libraries(proc, clock, MACHINES[platform.machine()], (cuda.library,))
    doors = LibcudaCollector(
        uses=lambda: (),
        sms=lambda: SMS,
        libraries=libraries,
        proc=proc,
        clock=clock,
        boot_ns=boot_ns,
        check_seccomp=harmful,
    )
    refused = Problem(code=ProblemCode.PROBES_REFUSED, detail="this kernel kills clients")
    with cuda.started(Work()) as target:
        for _ in range(3):
            reading = doors.collect()
            assert (reading.observations, reading.problem) == ((), refused)
        assert unprobed(target, cuda)
    doors.close()
    assert tried == [platform.machine()]


def unprobed(target: Program, cuda: StandInCuda) -> bool:
    """Whether all doors of a program are as they are in the file."""
    code = cuda.library.read_bytes()
    return all(code_at(target.pid, cuda.library, at) == code[at : at + 1] for at in cuda.offsets().values())
