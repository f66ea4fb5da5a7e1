"""The probes count copies and memsets: how many, and the bytes that they move."""

import pytest

from exporter.libcuda_probes.collector import probe_hits
from exporter.libcuda_probes.probes import PROBE_POINTS, LibcudaProbes
from exporter.model.launches import ProcessWork

from .process_work import work_of
from .standin import StandInCuda, Truth, Work

COPYING = [point for point in PROBE_POINTS if point.kind.startswith(("copy", "fill"))]
BOXES = [point.name for point in COPYING if point.kind.startswith(("copy_2d", "copy_3d"))]
COPY, NUMBER, COPIES = "cuMemcpyDtoDAsync_v2", 5, 12
LONG_BYTES = 3 << 20
HOST = "1"  # CU_MEMORYTYPE_HOST
MOVED = {"copy": 2, "copy_peer": 2, "copy_2d": 4, "copy_3d": 4, "fill_8": 1, "fill_16": 2, "fill_32": 4, "fill_2d": 2}
"""The bytes that a copy of one byte, value or column moves. A copy reads and writes, and boxes have two rows."""


def counted(probes: LibcudaProbes, cuda: StandInCuda, work: Work, **environment: str) -> tuple[ProcessWork, Truth]:
    status, (truth,) = cuda.run(work, **environment)
    assert status == 0
    return work_of(probes, truth.pid), truth


@pytest.mark.parametrize(("name", "kind"), [(point.name, point.kind) for point in COPYING])
def test_counts_the_bytes_that_each_function_moves(
    name: str, kind: str, probes: LibcudaProbes, cuda: StandInCuda
) -> None:
    work, truth = counted(probes, cuda, Work(launch=name, blocks=NUMBER, launches=COPIES, each=3))

    assert work.copies == COPIES
    assert work.copied == COPIES * NUMBER * MOVED[kind.removesuffix("_default")]
    assert (work.kernels, work.widths, work.area, work.transferred) == (0, 0, 0, 0)
    assert work.spans == truth.spans > 0


@pytest.mark.parametrize("end", ["TARGET_SOURCE", "TARGET_DESTINATION"])
@pytest.mark.parametrize("name", BOXES)
def test_a_box_from_or_to_the_host_is_a_transfer(name: str, end: str, probes: LibcudaProbes, cuda: StandInCuda) -> None:
    work, _ = counted(probes, cuda, Work(launch=name, blocks=NUMBER, launches=COPIES), **{end: HOST})

    assert (work.copies, work.copied) == (0, 0)
    assert (work.transfers, work.transferred) == (COPIES, COPIES * NUMBER * 2)


@pytest.mark.parametrize(
    "name", ["cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync_v2_ptsz", "cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2_ptds"]
)
def test_a_copy_to_the_host_is_a_transfer(name: str, probes: LibcudaProbes, cuda: StandInCuda) -> None:
    """The program copies 8 bytes instead of waiting."""
    work, _ = counted(probes, cuda, Work(synchronise=name, launches=12, each=3))

    assert (work.transfers, work.transferred, work.copies) == (4, 32, 0)


@pytest.mark.parametrize("name", ["cuMemcpyHtoDAsync_v2", "cuMemcpyHtoD_v2"])
def test_a_copy_from_the_host_is_a_transfer(name: str, probes: LibcudaProbes, cuda: StandInCuda) -> None:
    work, _ = counted(probes, cuda, Work(launch=name, blocks=NUMBER, launches=COPIES))

    assert (work.transfers, work.transferred, work.copies) == (COPIES, COPIES * NUMBER, 0)


def test_a_copy_is_in_flight_until_a_wait_for_it_returns(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    work, truth = counted(probes, cuda, Work(launch=COPY, blocks=1_000_000))

    assert truth.busy_ns <= truth.flight_ns <= work.flight_ns <= truth.outer_ns
    assert work.busy_ns == work.flight_ns


def test_counts_the_copies_of_a_captured_graph_when_it_is_launched(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    work, truth = counted(probes, cuda, Work(launch="cuGraphLaunch"), TARGET_COPIES="1000")

    assert (work.copies, work.copied) == (truth.graphs, 2000 * truth.graphs)
    assert work.graph_kernels == truth.graphs * truth.captured > 0


@pytest.mark.parametrize(("size", "shows"), [(1000, True), (LONG_BYTES, False)], ids=["short", "long"])
def test_bursts_with_a_long_copy_show_no_kernel_time(
    size: int, shows: bool, probes: LibcudaProbes, cuda: StandInCuda
) -> None:
    work, truth = counted(probes, cuda, Work(blocks=7, nanoseconds=1_000_000), TARGET_COPIES=str(size))

    assert work.kernels == work.copies == truth.kernels
    assert work.area == 7 * work.flight_ns
    assert (work.sure_widths > 0) is shows


def test_copies_of_a_graph_hit_no_probe(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    """Only its launch does. So a graph of many copies ends no measurement."""
    work, truth = counted(probes, cuda, Work(launch="cuGraphLaunch"), TARGET_COPIES="1000")
    same, _ = counted(probes, cuda, Work(launch="cuGraphLaunch"))

    assert work.graph_copies == work.copies == truth.graphs > 0
    assert probe_hits(work) == probe_hits(same)


def test_a_graph_of_which_only_some_captures_copy_has_a_copy(probes: LibcudaProbes, cuda: StandInCuda) -> None:
    """Else its bytes would be those of no copy, which is of any size."""
    work, truth = counted(probes, cuda, Work(launch="cuGraphLaunch"), TARGET_COPIES="1000", TARGET_CAPTURES="3")

    assert (work.copies, work.copied) == (truth.graphs, 500 * truth.graphs)
