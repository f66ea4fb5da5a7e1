"""What the loader asks of the kernel, and what it says where the kernel will not."""

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.libcuda_probes.bpf_object import MapDefinition
from exporter.libcuda_probes.loader import BpfError, Kernel
from exporter.libcuda_probes.probes import LibcudaProbes

from .process_work import SMS, boot_ns, seen
from .standin import LAUNCH, SYNCHRONISE, StandInCuda, Work, code_at

FLAGS_AT, INHERIT = 40, 1 << 1
"""Where struct perf_event_attr has its bits, and which of them kills targets (linux/perf_event.h)."""

LINK_CREATE = 28

HASH = 1
"""BPF_MAP_TYPE_HASH."""


class Overheard:
    """The C library, of which the system calls are written down; of bpf(2) one command may be unknown to the kernel."""

    def __init__(self, kernel: Kernel, *, without: int | None = None) -> None:
        self.events: list[bytes] = []
        self._real = kernel._libc
        self._bpf, self._perf = kernel._bpf_number, kernel._perf_number
        self._without = without

    def syscall(self, number: ctypes.c_long, first: object, *rest: object) -> int:
        """Passed on, unless the kernel does not know it."""
        if number.value == self._bpf and first == self._without:
            ctypes.set_errno(errno.EINVAL)
            return -1
        if number.value == self._perf:
            self.events.append(bytes(first._obj))  # type: ignore[attr-defined]
        return int(self._real.syscall(number, first, *rest))


class Refusing:
    """One that gives every call the same errno."""

    def __init__(self, problem: int) -> None:
        self._problem = problem

    def syscall(self, *_: object) -> int:
        """Refused."""
        ctypes.set_errno(self._problem)
        return -1


@pytest.fixture
def old(kernel: Kernel) -> tuple[Kernel, Overheard]:
    """A kernel before 6.6, which knows no links of many probes; and what it is asked."""
    found = Kernel()
    found._libc = overheard = Overheard(found, without=LINK_CREATE)  # type: ignore[assignment]
    return found, overheard


@pytest.fixture
def few(cuda: StandInCuda) -> dict[str, int]:
    """Two doors: an event each takes its time to go."""
    return {name: cuda.offsets()[name] for name in (LAUNCH, SYNCHRONISE)}


@pytest.fixture
def by_events(old: tuple[Kernel, Overheard], cuda: StandInCuda, few: dict[str, int]) -> Iterator[LibcudaProbes]:
    """A watcher on such a kernel."""
    watcher = LibcudaProbes(old[0], boot_ns, SMS)
    watcher.attach(str(cuda.library), few)
    watcher.begin()
    yield watcher
    watcher.close()


def test_an_older_kernel_counts_as_well(by_events: LibcudaProbes, cuda: StandInCuda) -> None:
    """Threads that begin while they are watched live: that is what `inherit` would end."""
    _, (truth,) = cuda.run(Work())
    status, (threads,) = cuda.run(Work(mode="late-threads", count=8))

    work = seen(by_events, truth.pid)
    assert (work.kernels, work.spans) == (truth.kernels, truth.spans)
    assert truth.flight_ns <= work.flight_ns <= truth.outer_ns
    assert status == 0
    assert seen(by_events, threads.pid).kernels == threads.kernels


@pytest.mark.usefixtures("by_events")
def test_no_event_is_ever_inherited(old: tuple[Kernel, Overheard]) -> None:
    """Its target's next pthread_create would fail, and few programs live on then."""
    events = old[1].events

    assert len(events) == 3
    assert not any(struct.unpack_from("<Q", event, FLAGS_AT)[0] & INHERIT for event in events)


def test_an_older_kernel_that_refuses_one_door_has_none(
    old: tuple[Kernel, Overheard], cuda: StandInCuda, few: dict[str, int]
) -> None:
    watcher = LibcudaProbes(old[0], boot_ns, SMS)
    try:
        with cuda.started(Work()) as target:
            with pytest.raises(BpfError, match=f"probe {cuda.library} at 0x10000000000: "):
                watcher.attach(str(cuda.library), few | {"cuMemcpy": 1 << 40})
            left = code_at(target.pid, cuda.library, few[LAUNCH])
    finally:
        watcher.close()

    assert left == cuda.library.read_bytes()[few[LAUNCH] : few[LAUNCH] + 1]


@pytest.mark.usefixtures("kernel")
def test_no_descriptor_outlives_what_was_opened(cuda: StandInCuda, few: dict[str, int]) -> None:
    before = os.listdir("/proc/self/fd")

    watcher = LibcudaProbes(Kernel(), boot_ns, SMS)
    watcher.attach(str(cuda.library), few)
    watcher.close()
    watcher.close()

    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (errno.EPERM, "Operation not permitted; this needs CAP_BPF and CAP_PERFMON"),
        (errno.ENOSYS, "Function not implemented; this kernel was built without it"),
        (errno.ENOMEM, "LimitMEMLOCK= may be too low"),
        (errno.ENOSPC, "No space left on device"),
    ],
)
def test_a_refusal_says_what_was_refused_and_what_it_takes(problem: int, words: str) -> None:
    kernel = Kernel("x86_64")
    kernel._libc = Refusing(problem)  # type: ignore[assignment]

    with pytest.raises(BpfError, match=rf"cannot create the BPF map \w+: .*{words}"):
        LibcudaProbes(kernel, boot_ns, SMS)


def test_a_machine_that_nobody_knows_is_told() -> None:
    with pytest.raises(BpfError, match="riscv64 is not supported"):
        Kernel("riscv64")


def test_a_kernel_without_probes_is_told(
    old: tuple[Kernel, Overheard], cuda: StandInCuda, few: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exporter.libcuda_probes.loader._PROBE_TYPE", Path("/nonexistent"))
    watcher = LibcudaProbes(old[0], boot_ns, SMS)
    try:
        with pytest.raises(BpfError, match="this kernel has no uprobes"):
            watcher.attach(str(cuda.library), few)
    finally:
        watcher.close()


def test_a_program_that_the_kernel_does_not_take_is_told_with_its_reason(kernel: Kernel) -> None:
    reads_r5, leaves = bytes.fromhex("bf50000000000000"), bytes.fromhex("9500000000000000")

    with pytest.raises(BpfError, match=r"cannot load the BPF program bad: .*R5 !read_ok"):
        kernel.load_program("bad", reads_r5 + leaves, b"GPL")


@pytest.mark.parametrize("entries", [0, 1, 255, 256, 257, 2000])
def test_a_map_is_read_whole(entries: int, kernel: Kernel) -> None:
    numbers = kernel.create_map("numbers", MapDefinition(HASH, 8, 8, 2000))
    try:
        for number in range(entries):
            numbers.put(struct.pack("<Q", number), struct.pack("<Q", number * 3))

        read = {struct.unpack("<Q", key)[0]: struct.unpack("<Q", value)[0] for key, value in numbers.items()}
        assert read == {number: number * 3 for number in range(entries)}
    finally:
        os.close(numbers.descriptor)


def test_a_map_forgets(kernel: Kernel) -> None:
    key = struct.pack("<Q", 7)
    numbers = kernel.create_map("numbers", MapDefinition(HASH, 8, 8, 4))
    try:
        numbers.put(key, key)
        assert numbers.get(key) == key
        numbers.delete(key)
        numbers.delete(key)
        assert numbers.get(key) is None
    finally:
        os.close(numbers.descriptor)
