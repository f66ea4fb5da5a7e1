"""The example of docs/accounting.md over two seconds: kernel times, and the share of the first second afterwards."""

from pathlib import Path

import pytest

from exporter.model.estimates import ClientEstimates
from exporter.model.usage import GpuBusy, Method, Share, Split, WorkDelta
from exporter.usage.kernel_times import updated, used_sm_time
from exporter.usage.last_minute import combined

PAGE = (Path(__file__).parents[2] / "docs" / "accounting.md").read_text()
SMS, SECOND_NS = 132, 1_000_000_000
CAPACITY = float(SMS * SECOND_NS)
AREA = 66 * 1000 * 214_000
A, B = 1, 2

WAITING = WorkDelta(
    kernels=1000,
    spans=1000,
    flight_ns=1000 * 214_000,
    widths=66_000,
    area=AREA,
    bound=AREA,
    sure_area=AREA,
    sure_widths=66_000,
    sure_heights=66_000,
)


def ahead(launches: int) -> WorkDelta:
    """Return the work of a client that never waits, on a quarter of the SMs."""
    area = SMS * SECOND_NS // 4
    return WorkDelta(kernels=launches, spans=1, flight_ns=SECOND_NS, widths=33 * launches, area=area, bound=area)


def row(title: str) -> list[str]:
    """Return the cells of the two clients in the table of the example."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {title} |")]
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


def kernel_times(estimates: ClientEstimates) -> list[str]:
    return [
        f"{(estimates.mean(pid) or 0) / 1000:.0f} ± {estimates.standard_deviation(pid) / 1000:.0f} µs" for pid in (A, B)
    ]


def window(at: float, busy: float, deltas: dict[int, WorkDelta], title: str) -> Split:
    """Return a second with the shares that the page states."""
    shares = {
        pid: Share(method=Method.FLIGHT, sm=float(share) / 100, error=float(error) / 100)
        for pid, cell in zip(deltas, row(title), strict=True)
        for share, _, error, _ in [cell.split()]
    }
    assert sum(share.sm for share in shares.values()) == pytest.approx(busy)
    widths = {pid: delta.widths / CAPACITY for pid, delta in deltas.items()}
    return Split(at=at, seconds=1.0, sm=busy, shares=shares, widths=widths)


def test_the_example_has_the_numbers_of_the_page() -> None:
    first, second = {A: WAITING, B: ahead(2000)}, {A: WAITING, B: ahead(1000)}
    measured = {busy: GpuBusy(seconds=1.0, capacity=CAPACITY, busy=busy * CAPACITY) for busy in (0.16, 0.13)}
    estimates = updated(ClientEstimates(), first, measured[0.16], complete=True)
    assert kernel_times(estimates) == row("2. kernel time after the first second")
    estimates = updated(estimates, second, measured[0.13], complete=True)
    assert kernel_times(estimates) == row("2. kernel time after the next second")
    window(2.0, 0.13, second, "3. share of the next second")
    then = window(1.0, 0.16, first, "3. share of the first second")
    again = combined((then,), estimates=estimates).shares
    found = [f"{100 * again[pid].sm:.1f} ± {100 * again[pid].error:.1f} %" for pid in (A, B)]
    assert found == row("4. share of the first second, reviewed")


def test_the_second_client_used_the_rest_of_the_first_second_if_there_are_no_others() -> None:
    deltas, use = {A: WAITING, B: ahead(2000)}, GpuBusy(seconds=1.0, capacity=CAPACITY, busy=0.16 * CAPACITY)
    for complete, expected in ((False, [(200, 12, 10.0), (190, 230, 9.5)]), (True, [(200, 12, 10.0), (122, 37, 6.1)])):
        estimates = updated(ClientEstimates(), deltas, use, complete=complete)
        used = used_sm_time(estimates, deltas, use, complete=complete)
        assert [
            (
                round((estimates.mean(pid) or 0.0) / 1000),
                round(estimates.standard_deviation(pid) / 1000),
                round(100 * used[pid].mean / CAPACITY, 1),
            )
            for pid in deltas
        ] == expected
