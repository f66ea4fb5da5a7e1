"""On a node with several GPUs, launches are counted for the device of the current context."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from exporter.libcuda_probes.loader import Kernel
from exporter.libcuda_probes.probes import LibcudaProbes
from exporter.model.launches import ProcessWork, sums

from .process_work import SMS, boot_ns
from .standin import Program, StandInCuda, Work

TWO = Work(mode="devices", launches=9, each=4, nanoseconds=0)


@pytest.fixture(scope="module")
def probes(kernel: Kernel, cuda: StandInCuda) -> Iterator[LibcudaProbes]:
    probes = LibcudaProbes(kernel, boot_ns, SMS, several_gpus=True)
    try:
        probes.attach(str(cuda.library), cuda.offsets())
        probes.begin()
        yield probes
    finally:
        probes.close()


def parts_of(probes: LibcudaProbes, program: Program) -> dict[int, ProcessWork]:
    return {work.device: work for work in probes.read() if work.pid == program.pid}


def test_counts_launches_for_the_device_of_the_current_context(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    """The first CUDA call precedes all contexts, so its device is unknown."""
    with cuda.started(TWO) as program:
        program.go("in flight")
        parts = parts_of(probes, program)
        assert {device: work.kernels for device, work in parts.items()} == {-1: 0, 0: 9, 1: 4}
        assert parts[-1].initialized_ns > 0
        program.end()
        after = parts_of(probes, program)
    assert {device: work.kernels for device, work in after.items()} == {-1: 0, 0: 9, 1: 5}


def test_counts_transfers_of_a_device_on_which_nothing_was_launched(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    with cuda.started(replace(TWO, launch="cuMemcpyHtoD_v2")) as program:
        program.end()
        parts = parts_of(probes, program)
    assert {device: (work.kernels, work.transfers) for device, work in parts.items()} == {
        -1: (0, 0),
        0: (0, 9),
        1: (0, 5),
    }


def test_a_wait_ends_work_on_another_device_than_the_current_one(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    with cuda.started(TWO) as program:
        program.go("in flight")
        parts = parts_of(probes, program)
        assert (parts[1].spans, parts[1].open_ns) == (1, 0)
        assert (parts[0].spans, parts[0].open_ns > 0) == (0, True)
        program.end()
        after = parts_of(probes, program)
    assert (after[0].spans, after[0].open_ns) == (1, 0)
    assert after[1].open_ns > 0


def test_the_sum_over_devices_has_all_work(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    with cuda.started(TWO) as program:
        program.end()
        parts = parts_of(probes, program)
        whole = sums(parts.values())[program.pid]
    assert (whole.device, whole.kernels, whole.spans) == (-1, 14, 2)
    assert whole.initialized_ns == parts[-1].initialized_ns
    assert whole.launched_ns == parts[1].launched_ns
    probes.forget([program.pid])
    assert parts_of(probes, program) == {}


def test_one_gpu_needs_no_probes_on_contexts(detached: LibcudaProbes, cuda: StandInCuda) -> None:
    """Programs may change the context very often."""
    detached.attach(str(cuda.library), cuda.offsets())
    detached.begin()
    with cuda.started(TWO) as program:
        program.end()
        (work,) = parts_of(detached, program).values()
    assert (work.device, work.kernels) == (-1, 14)
    assert work.context_calls == 1  # cuInit
