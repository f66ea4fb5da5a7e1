"""The loader's system calls, and its errors if the kernel refuses."""

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.libcuda_probes.loader import BpfError, Kernel, MapDefinition
from exporter.libcuda_probes.probes import LibcudaProbes

from .process_work import SMS, boot_ns, work_of
from .standin import LAUNCH, SYNCHRONISE, StandInCuda, Work, code_at

FLAGS_AT, INHERIT = 40, 1 << 1
"""Where struct perf_event_attr has its bits, and which of them kills targets (linux/perf_event.h)."""

LINK_CREATE = 28

HASH = 1
"""BPF_MAP_TYPE_HASH."""


class RecordingLibc:
    """Records system calls. One command of bpf(2) may be unsupported."""

    def __init__(self, kernel: Kernel, *, without: int | None = None) -> None:
        self.events: list[bytes] = []
        self._real = kernel._libc
        self._bpf, self._perf = kernel._bpf_number, kernel._perf_number
        self._without = without

    def syscall(self, number: ctypes.c_long, first: object, *rest: object) -> int:
        if number.value == self._bpf and first == self._without:
            ctypes.set_errno(errno.EINVAL)
            return -1
        if number.value == self._perf:
            self.events.append(bytes(first._obj))  # type: ignore[attr-defined]
        return int(self._real.syscall(number, first, *rest))


class FailingLibc:
    """Fails each system call with the same errno."""

    def __init__(self, problem: int) -> None:
        self._problem = problem

    def syscall(self, *_: object) -> int:
        ctypes.set_errno(self._problem)
        return -1


@pytest.fixture
def old(kernel: Kernel) -> tuple[Kernel, RecordingLibc]:
    """A kernel before 6.6, without links of many probes, and its recorded calls."""
    found = Kernel()
    found._libc = recording = RecordingLibc(found, without=LINK_CREATE)  # type: ignore[assignment]
    return found, recording


@pytest.fixture
def few(cuda: StandInCuda) -> dict[str, int]:
    """Two functions, because the kernel removes each perf event slowly."""
    return {name: cuda.offsets()[name] for name in (LAUNCH, SYNCHRONISE)}


@pytest.fixture
def by_events(old: tuple[Kernel, RecordingLibc], cuda: StandInCuda, few: dict[str, int]) -> Iterator[LibcudaProbes]:
    """Probes on such a kernel."""
    probes = LibcudaProbes(old[0], boot_ns, SMS)
    probes.attach(str(cuda.library), few)
    probes.begin()
    yield probes
    probes.close()


def test_counts_on_an_older_kernel(by_events: LibcudaProbes, cuda: StandInCuda) -> None:
    """Threads that start while probes are attached survive. The flag `inherit` would kill them."""
    _, (truth,) = cuda.run(Work())
    status, (threads,) = cuda.run(Work(mode="late-threads", count=8))

    work = work_of(by_events, truth.pid)
    assert (work.kernels, work.spans) == (truth.kernels, truth.spans)
    assert truth.flight_ns <= work.flight_ns <= truth.outer_ns
    assert status == 0
    assert work_of(by_events, threads.pid).kernels == threads.kernels


@pytest.mark.usefixtures("by_events")
def test_perf_events_are_not_inherited(old: tuple[Kernel, RecordingLibc]) -> None:
    """With an inherited event, the next pthread_create of the target would fail."""
    events = old[1].events

    assert len(events) == 5  # two functions, with what ends a repeated query at both, and the return of one
    assert not any(struct.unpack_from("<Q", event, FLAGS_AT)[0] & INHERIT for event in events)


def test_attaches_all_functions_or_none_on_an_older_kernel(
    old: tuple[Kernel, RecordingLibc], cuda: StandInCuda, few: dict[str, int]
) -> None:
    probes = LibcudaProbes(old[0], boot_ns, SMS)
    try:
        with cuda.started(Work()) as target:
            with pytest.raises(BpfError, match=f"probe {cuda.library} at 0x10000000000: "):
                probes.attach(str(cuda.library), few | {"cuMemcpy": 1 << 40})
            left = code_at(target.pid, cuda.library, few[LAUNCH])
    finally:
        probes.close()

    assert left == cuda.library.read_bytes()[few[LAUNCH] : few[LAUNCH] + 1]


@pytest.mark.usefixtures("kernel")
def test_close_closes_all_descriptors(cuda: StandInCuda, few: dict[str, int]) -> None:
    before = os.listdir("/proc/self/fd")

    probes = LibcudaProbes(Kernel(), boot_ns, SMS)
    probes.attach(str(cuda.library), few)
    probes.close()
    probes.close()

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
def test_refusal_names_the_call_and_the_remedy(problem: int, words: str) -> None:
    kernel = Kernel("x86_64")
    kernel._libc = FailingLibc(problem)  # type: ignore[assignment]

    with pytest.raises(BpfError, match=rf"cannot create the BPF map \w+: .*{words}"):
        LibcudaProbes(kernel, boot_ns, SMS)


def test_reports_an_unsupported_machine() -> None:
    with pytest.raises(BpfError, match="riscv64 is not supported"):
        Kernel("riscv64")


def test_reports_a_kernel_without_uprobes(
    old: tuple[Kernel, RecordingLibc], cuda: StandInCuda, few: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exporter.libcuda_probes.loader._PROBE_TYPE", Path("/nonexistent"))
    probes = LibcudaProbes(old[0], boot_ns, SMS)
    try:
        with pytest.raises(BpfError, match="this kernel has no uprobes"):
            probes.attach(str(cuda.library), few)
    finally:
        probes.close()


def test_reports_why_the_kernel_rejects_a_program(kernel: Kernel) -> None:
    reads_r5, leaves = bytes.fromhex("bf50000000000000"), bytes.fromhex("9500000000000000")

    with pytest.raises(BpfError, match=r"cannot load the BPF program bad: .*R5 !read_ok"):
        kernel.load_program("bad", reads_r5 + leaves, b"GPL")


@pytest.mark.parametrize("entries", [0, 1, 255, 256, 257, 2000])
def test_reads_all_entries_of_a_map(entries: int, kernel: Kernel) -> None:
    numbers = kernel.create_map("numbers", MapDefinition(HASH, 8, 8, 2000))
    try:
        for number in range(entries):
            numbers.put(struct.pack("<Q", number), struct.pack("<Q", number * 3))

        read = {struct.unpack("<Q", key)[0]: struct.unpack("<Q", value)[0] for key, value in numbers.items()}
        assert read == {number: number * 3 for number in range(entries)}
    finally:
        os.close(numbers.descriptor)


def test_deletes_map_entries(kernel: Kernel) -> None:
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
