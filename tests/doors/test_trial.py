"""Nobody is watched on a kernel on which those who are watched would die of it."""

import platform
from pathlib import Path

import pytest

from exporter.sources.doors.libraries import Libraries
from exporter.sources.doors.loader import BpfError, Kernel
from exporter.sources.doors.source import Doors
from exporter.sources.doors.trial import try_out
from exporter.sources.doors.watcher import Watcher
from exporter.sources.proc import Proc
from tests.clocks import HandClock

from .standin import Program, StandInCuda, Work, code_at
from .test_eye import MACHINES
from .watching import SMS, boot_ns

DIES = bytes.fromhex("b84f0100000f05c3")
"""Calls uretprobe itself, and is killed: as a client is whose filter refuses it that call."""

FAILS = bytes.fromhex("bf05000000b83c0000000f05")
"""Exits with 5, before it could be told."""

x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="NOT RUN: only x86-64 has that call")


def test_a_client_whose_calls_are_filtered_lives_on_here(kernel: Kernel) -> None:
    watcher = Watcher(kernel, boot_ns, SMS)
    try:
        try_out(watcher, platform.machine())
        assert not list(watcher.read())
    finally:
        watcher.close()


@x86_64
@pytest.mark.parametrize(
    ("function", "words"), [(DIES, "kills clients in containers"), (FAILS, "exit code is 5")], ids=["dies", "fails"]
)
def test_a_trial_that_ends_badly_is_told(kernel: Kernel, function: bytes, words: str) -> None:
    watcher = Watcher(kernel, boot_ns, SMS)
    try:
        with pytest.raises(BpfError, match=words):
            try_out(watcher, "x86_64", function)
    finally:
        watcher.close()


@pytest.mark.usefixtures("kernel")
def test_nobody_is_watched_then_and_it_is_tried_once(cuda: StandInCuda) -> None:
    tried: list[str] = []

    def harmful(_: Watcher, machine: str) -> None:
        tried.append(machine)
        raise BpfError("this kernel kills clients")

    clock = HandClock()
    proc = Proc(Path("/proc"), clock)
    libraries = Libraries(proc, clock, MACHINES[platform.machine()], (cuda.library,))
    doors = Doors(
        uses=lambda: (), sms=lambda: SMS, libraries=libraries, proc=proc, clock=clock, boot_ns=boot_ns, try_out=harmful
    )
    with cuda.started(Work()) as target:
        for _ in range(3):
            reading = doors.look()
            assert (reading.observations, reading.problem) == ((), "this kernel kills clients")
        assert unprobed(target, cuda)
    doors.close()
    assert tried == [platform.machine()]


def unprobed(target: Program, cuda: StandInCuda) -> bool:
    """Whether all doors of a program are as they are in the file."""
    code = cuda.library.read_bytes()
    return all(code_at(target.pid, cuda.library, at) == code[at : at + 1] for at in cuda.offsets().values())
