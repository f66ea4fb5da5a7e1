"""Hostile arguments of libcuda calls break nothing, change no counts of others, and use bounded memory."""

from collections.abc import Iterator

import pytest

from exporter.libcuda_probes.loader import Kernel
from exporter.libcuda_probes.probes import LibcudaProbes

from .conftest import ReusableProbes
from .process_work import SMS, boot_ns, work_of
from .standin import LAUNCH, SYNCHRONISE, StandInCuda, Work

ROOM = 4


@pytest.fixture(scope="module")
def small_map(kernel: Kernel) -> Iterator[ReusableProbes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("exporter.libcuda_probes.probes.MAX_PROCESSES", ROOM)
        probes = ReusableProbes(kernel, boot_ns, SMS)
    yield probes
    probes.unload()


@pytest.fixture
def small(small_map: ReusableProbes, cuda: StandInCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[LibcudaProbes]:
    monkeypatch.setattr("exporter.libcuda_probes.probes.MAX_PROCESSES", ROOM)
    offsets = {name: at for name, at in cuda.offsets().items() if name in (LAUNCH, SYNCHRONISE)}
    small_map.attach(str(cuda.library), offsets)
    small_map.begin()
    yield small_map
    small_map.close()


def test_unreadable_configuration_is_a_launch_of_unknown_width(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    status, (truth,) = cuda.run(Work(mode="bad-configurations"))

    work = work_of(probes, truth.pid)
    assert status == 0
    assert work.kernels >= truth.kernels == 1
    assert work.widths == 0


def test_a_copy_of_an_unreadable_or_absurd_size_breaks_nothing(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    status, (truth,) = cuda.run(Work(mode="bad-copies"))

    work = work_of(probes, truth.pid)
    assert status == 0
    assert (work.kernels, work.copies) == (0, 7)
    assert work.copied < 1 << 64


def test_any_grid_is_at_most_as_wide_as_the_gpu(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    status, (truth,) = cuda.run(Work(mode="absurd-grids"))

    work = work_of(probes, truth.pid)
    assert status == 0
    assert (work.kernels, work.spans) == (truth.kernels, truth.spans) == (7, 7)
    assert work.widths <= SMS * work.kernels
    assert work.area <= SMS * work.flight_ns


def test_counts_thousands_of_streams_without_excess_time(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    status, (truth,) = cuda.run(Work(mode="streams", count=5000, launches=2))

    work = work_of(probes, truth.pid)
    assert status == 0
    assert work.kernels == truth.kernels == 10_000
    assert 0 < work.spans <= truth.spans
    assert work.flight_ns <= truth.outer_ns * work.spans
    assert work.open_ns == 0


def test_reports_lost_launches_when_the_map_is_full(small: LibcudaProbes, cuda: StandInCuda) -> None:
    lost = small.lost
    status, truths = cuda.run(Work(mode="children", count=9))

    stored = {work.pid: work.kernels for work in small.read()}
    assert status == 0
    assert len(stored) == ROOM
    assert set(stored.items()) <= {(truth.pid, truth.kernels) for truth in truths}
    assert small.lost - lost + sum(stored.values()) == sum(truth.kernels for truth in truths)


def test_forget_frees_map_entries(small: LibcudaProbes, cuda: StandInCuda) -> None:
    cuda.run(Work(mode="children", count=9))
    small.forget([work.pid for work in small.read()])
    assert not list(small.read())
    lost = small.lost

    _, (truth,) = cuda.run(Work())

    assert work_of(small, truth.pid).kernels == truth.kernels
    assert small.lost == lost


def test_sm_limits_of_ended_processes_free_their_entries(small: LibcudaProbes) -> None:
    for pid in range(1, 5 * ROOM):
        small.limit_sms({pid: 5, pid + 1: 7})

    small.limit_sms(dict.fromkeys(range(1, 5 * ROOM), 5))
