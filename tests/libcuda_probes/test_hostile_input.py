"""What a workload passes to libcuda breaks nothing, forges nothing of others, and takes no more room than there is."""

from collections.abc import Iterator

import pytest

from exporter.libcuda_probes.loader import Kernel
from exporter.libcuda_probes.probes import LibcudaProbes

from .process_work import SMS, boot_ns, seen
from .standin import LAUNCH, SYNCHRONISE, StandInCuda, Work

ROOM = 4


@pytest.fixture
def small(kernel: Kernel, cuda: StandInCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[LibcudaProbes]:
    """One that has room for a few processes only."""
    monkeypatch.setattr("exporter.libcuda_probes.probes.MAX_PROCESSES", ROOM)
    watcher = LibcudaProbes(kernel, boot_ns, SMS)
    watcher.attach(
        str(cuda.library), {name: at for name, at in cuda.offsets().items() if name in (LAUNCH, SYNCHRONISE)}
    )
    watcher.begin()
    yield watcher
    watcher.close()


def test_a_configuration_that_cannot_be_read_is_a_launch_of_unknown_width(
    watcher: LibcudaProbes, cuda: StandInCuda
) -> None:
    status, (truth,) = cuda.run(Work(mode="bad-configurations"))

    work = seen(watcher, truth.pid)
    assert status == 0
    assert work.kernels >= truth.kernels == 1
    assert work.widths == 0


def test_grids_of_any_size_are_at_most_as_wide_as_the_gpu(watcher: LibcudaProbes, cuda: StandInCuda) -> None:
    status, (truth,) = cuda.run(Work(mode="absurd-grids"))

    work = seen(watcher, truth.pid)
    assert status == 0
    assert (work.kernels, work.spans) == (truth.kernels, truth.spans) == (7, 7)
    assert work.widths <= SMS * work.kernels
    assert work.area <= SMS * work.flight_ns


def test_thousands_of_streams_are_counted_and_their_time_is_never_too_long(
    watcher: LibcudaProbes, cuda: StandInCuda
) -> None:
    status, (truth,) = cuda.run(Work(mode="streams", count=5000, launches=2))

    work = seen(watcher, truth.pid)
    assert status == 0
    assert work.kernels == truth.kernels == 10_000
    assert 0 < work.spans <= truth.spans
    assert work.flight_ns <= truth.outer_ns * work.spans
    assert work.open_ns == 0


def test_launches_of_processes_for_which_there_is_no_room_are_told(small: LibcudaProbes, cuda: StandInCuda) -> None:
    status, truths = cuda.run(Work(mode="children", count=9))

    kept = {work.pid: work.kernels for work in small.read()}
    assert status == 0
    assert len(kept) == ROOM
    assert set(kept.items()) <= {(truth.pid, truth.kernels) for truth in truths}
    assert small.lost + sum(kept.values()) == sum(truth.kernels for truth in truths)


def test_who_is_forgotten_makes_room(small: LibcudaProbes, cuda: StandInCuda) -> None:
    cuda.run(Work(mode="children", count=9))
    small.forget([work.pid for work in small.read()])
    assert not list(small.read())
    lost = small.lost

    _, (truth,) = cuda.run(Work())

    assert seen(small, truth.pid).kernels == truth.kernels
    assert small.lost == lost


def test_narrow_processes_that_come_and_go_take_no_room(small: LibcudaProbes) -> None:
    for pid in range(1, 5 * ROOM):
        small.limit_sms({pid: 5, pid + 1: 7})

    small.limit_sms(dict.fromkeys(range(1, 5 * ROOM), 5))
