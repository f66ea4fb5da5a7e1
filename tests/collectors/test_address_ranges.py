"""When the address ranges of clients are read, and that only they are."""

import subprocess
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors.proc import Proc
from exporter.collectors.processes import CHANGED_SECONDS, FAULT_SECONDS, READ_SECONDS, AddressRangesCollector
from exporter.model.observation import AddressRanges, AddressWant
from tests.clocks import HandClock
from tests.conftest import Starter

PID = 600
RESERVED = f"{1 << 44:x}-{(1 << 44) + (1 << 30):x} ---p 00000000 00:00 0 \n"


class Machine:
    """One process in a /proc, and what is wanted of it."""

    def __init__(self, directory: Path) -> None:
        self.clock = HandClock()
        self.directory = directory / str(PID)
        self.directory.mkdir()
        self.set_start(7)
        self.set_maps(RESERVED)
        self.wanted = {PID: AddressWant(start_ticks=7)}
        self._collector = AddressRangesCollector(Proc(directory, self.clock), self.clock, lambda: self.wanted)

    def set_start(self, ticks: int) -> None:
        fields = ["S", *["0"] * 15, "1", "0", "0", str(ticks), *["0"] * 30]
        fields[17] = "1"
        (self.directory / "stat").write_text(f"{PID} (python) {' '.join(fields)}\n")

    def set_maps(self, text: str) -> None:
        (self.directory / "maps").write_text(text)

    def read_after(self, seconds: float) -> tuple[object, ...]:
        self.clock.time += seconds
        reading = self._collector.collect()
        assert reading.problem is None
        return reading.observations


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_reads_a_new_client_at_once_and_then_every_minute(machine: Machine) -> None:
    (read,) = machine.read_after(0)
    assert read == AddressRanges(
        at=machine.clock.now(), pid=PID, start_ticks=7, gpu=((1 << 44, (1 << 44) + (1 << 30)),), host=()
    )
    assert machine.read_after(READ_SECONDS - 1) == ()
    assert len(machine.read_after(1)) == 1


def test_reads_after_a_fault_at_once_and_after_a_change_of_memory_not_too_often(machine: Machine) -> None:
    machine.read_after(0)
    machine.wanted = {PID: AddressWant(start_ticks=7, memory=(5,))}
    assert machine.read_after(CHANGED_SECONDS - 1) == ()
    assert len(machine.read_after(1)) == 1
    machine.wanted = {PID: AddressWant(start_ticks=7, memory=(5,), fault_at=3.0)}
    assert len(machine.read_after(0)) == 1
    assert machine.read_after(0) == ()
    machine.wanted = {PID: AddressWant(start_ticks=7, memory=(5,), fault_at=3.5)}
    assert machine.read_after(FAULT_SECONDS / 2) == ()
    assert len(machine.read_after(FAULT_SECONDS / 2)) == 1
    # The fault is forgotten.
    machine.wanted = {PID: AddressWant(start_ticks=7, memory=(5,))}
    assert machine.read_after(1) == ()


def test_another_process_with_the_pid_and_one_that_has_ended_have_no_ranges(machine: Machine) -> None:
    machine.set_start(8)
    assert machine.read_after(0) == ()
    machine.set_start(7)
    machine.set_maps("")
    assert machine.read_after(READ_SECONDS) == ()
    machine.set_maps(RESERVED)
    machine.wanted = {PID: AddressWant(start_ticks=9)}
    machine.set_start(9)
    assert len(machine.read_after(0)) == 1


def test_a_file_that_is_too_long_is_not_read_to_its_end(machine: Machine) -> None:
    machine.set_maps(RESERVED + "7f0000000000-7f0000001000 r--p 00000000 08:01 5 /lib/x.so\n" * 20_000)
    (read,) = machine.read_after(0)
    assert isinstance(read, AddressRanges)
    assert not read.complete


def test_reads_the_range_that_a_real_process_reserves(start: Starter) -> None:
    script = (
        "import mmap, sys; m = mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | 0x20, prot=0);"
        " print('ready', flush=True); sys.stdin.read()"
    )
    process = start(["python3", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
    proc = Proc(Path("/proc"), SystemClock())
    ticks = proc.start_ticks(process.pid)
    assert ticks is not None
    ranges = proc.address_ranges(process.pid, ticks)
    assert ranges is not None
    assert any(end - start_ >= 1 << 30 for start_, end in ranges.gpu)
    assert proc.address_ranges(process.pid, ticks + 1) is None
