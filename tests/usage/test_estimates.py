"""Estimates of kernel times."""

from exporter.model.usage import GpuBusy, KernelTimeEstimates, WorkDelta
from exporter.model.values import replace
from exporter.usage import kernel_times

SECOND_NS = 1_000_000_000
SMS = 132
CAPACITY = float(SMS * SECOND_NS)


def kernels_in_flight(count: int, nanoseconds: int) -> WorkDelta:
    """Return kernels on all SMs, each followed by a synchronisation. Work is always in flight."""
    area, widths = SMS * SECOND_NS, SMS * count
    sure = count * SMS * (nanoseconds + kernel_times.SYNC_NS)
    return WorkDelta(
        kernels=count, spans=count, widths=widths, area=area, sure_area=sure, sure_widths=widths, sure_heights=widths
    )


def test_a_length_that_changes_slowly_for_an_hour_is_followed() -> None:
    estimates, length = KernelTimeEstimates().with_client(1, 100.0, 50.0), 100.0
    for _ in range(3600):
        length *= 1.0002
        measured = {1: 1.0}, length, 2.0
        estimates = estimates.predicted(1.0).inflated(*measured).updated(*measured)
    assert abs((estimates.mean(1) or 0.0) - length) < 2 * estimates.standard_deviation(1) < 0.02 * length


def test_an_estimate_that_is_raised_to_0_lowers_the_others() -> None:
    """Together they used 100. The difference, which is less certain, would make the first -20."""
    estimates = KernelTimeEstimates().with_client(1, 50.0, 50.0).with_client(2, 50.0, 50.0)
    estimates = estimates.updated({1: 1.0, 2: 1.0}, 100.0, 0.1).updated({1: -1.0, 2: 1.0}, 140.0, 1.0)
    assert estimates.mean(1) == 0
    assert abs((estimates.mean(2) or 0.0) - 100) < 1


def test_a_known_kernel_time_stays_known_when_other_clients_fill_the_gpu() -> None:
    """Its kernels took 600 us alone. Now they wait, and take 700 us."""
    deltas = {1: kernels_in_flight(1200, 700_000), 2: kernels_in_flight(1200, 700_000)}
    full = GpuBusy(seconds=1.0, capacity=CAPACITY, busy=CAPACITY, measured=True)
    alone = KernelTimeEstimates().with_client(1, 600_000.0, 10_000.0)
    estimates = kernel_times.updated(alone.with_client(2, 230_000.0, 100_000.0), deltas, full, complete=True)
    assert abs((estimates.mean(1) or 0.0) - 600_000) < 20_000
    assert estimates.standard_deviation(1) < 20_000


def test_longer_kernels_on_a_full_gpu_do_not_make_the_estimate_of_another_client_too_sure() -> None:
    """The first client's kernels take 4 % longer beside the other one, which nothing else shows."""
    deltas = {1: kernels_in_flight(1400, 700_000), 2: replace(kernels_in_flight(100, 9_000_000), sure_widths=0)}
    full = GpuBusy(seconds=1.0, capacity=CAPACITY, busy=CAPACITY, measured=True)
    estimates = KernelTimeEstimates().with_client(1, 600_000.0, 6_000.0).with_client(2, 4_000_000.0, 2_000_000.0)
    for _ in range(30):
        estimates = kernel_times.updated(estimates.predicted(1.0), deltas, full, complete=True)
    true = (1 - 1400 * 624_000 / SECOND_NS) / 100 * SECOND_NS
    assert abs((estimates.mean(2) or 0.0) - true) < 2 * estimates.standard_deviation(2)


def test_a_kernel_time_that_exceeds_the_time_in_flight_is_given_up() -> None:
    """The client changed: its kernels took 600 us before, and take at most 200 us now."""
    deltas = {1: kernels_in_flight(1200, 200_000), 2: kernels_in_flight(1200, 200_000)}
    full = GpuBusy(seconds=1.0, capacity=CAPACITY, busy=CAPACITY, measured=True)
    before = KernelTimeEstimates().with_client(1, 600_000.0, 10_000.0)
    estimates = kernel_times.updated(before.with_client(2, 230_000.0, 100_000.0), deltas, full, complete=False)
    assert (estimates.mean(1) or 0.0) < 250_000


def test_clients_that_begin_within_a_window_contend_in_the_rest_of_it() -> None:
    """They fill the GPU in its second half. On average over the window, there seem to be enough SMs for both."""
    half = replace(kernels_in_flight(600, 700_000), area=SMS * SECOND_NS // 2, flight_ns=SECOND_NS // 2)
    use = GpuBusy(seconds=1.0, capacity=CAPACITY, busy=CAPACITY / 2, measured=True)
    estimates = kernel_times.updated(KernelTimeEstimates(), {1: half, 2: half}, use, complete=True)
    mean = estimates.mean(1) or 0.0
    assert mean < 600_000
    assert estimates.standard_deviation(1) > 0.2 * mean


def test_the_example_of_the_documentation() -> None:
    """In docs/accounting.md: one client waits after each kernel, the other one never does, and GPM measures 16 %."""
    area = 66 * 1000 * 214_000
    waiting = WorkDelta(
        kernels=1000,
        spans=1000,
        flight_ns=1000 * 214_000,
        widths=66_000,
        area=area,
        bound=area,
        sure_area=area,
        sure_widths=66_000,
        sure_heights=66_000,
    )
    full = SMS * SECOND_NS // 4
    ahead = WorkDelta(kernels=2000, spans=1, flight_ns=SECOND_NS, widths=66_000, area=full, bound=full)
    deltas, use = {1: waiting, 2: ahead}, GpuBusy(seconds=1.0, capacity=CAPACITY, busy=0.16 * CAPACITY)
    for complete, expected in ((False, [(200, 12, 10.0), (190, 230, 9.5)]), (True, [(200, 12, 10.0), (120, 14, 6.0)])):
        estimates = kernel_times.updated(KernelTimeEstimates(), deltas, use, complete=complete)
        used = kernel_times.used_sm_time(estimates, deltas, use)
        assert [
            (
                round((estimates.mean(pid) or 0.0) / 1000),
                round(estimates.standard_deviation(pid) / 1000),
                round(100 * used[pid] / CAPACITY, 1),
            )
            for pid in deltas
        ] == expected
