"""Properties of attribution: for any readings, the parts add up to the total, and the estimates stay valid."""

import itertools
import math
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from exporter.model.launches import GpuUse, ProcessWork, WorkReading
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.usage import MAX_DELTA, KernelTimeEstimates, WorkDelta, work_delta
from exporter.reducer import reduce
from tests.builders import AT, GPU, OTHER_GPU, at_work, gpu_reading, node
from tests.state.invariants import assert_only_grown, counters
from tests.state.strategies import ALL_PIDS, CLIENTS, DAEMONS, gaps, observations, ticks
from tests.usage.balance import assert_balanced
from tests.works import boot_ns

NUMBERS = ("kernels", "widths", "area", "open_area", "sure_area", "sure_widths", "sure_gaps", "sure_heights")

amounts = st.sampled_from((0, 1, 100, 10**5, 10**9, 10**12, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)) | st.integers(
    0, 1 << 64
)
works = st.builds(
    lambda pid, ticks, counts: ProcessWork(
        pid=pid, first_ns=ticks * 10_000_000, **dict(zip(NUMBERS, counts, strict=True))
    ),
    st.sampled_from(ALL_PIDS),
    ticks,
    st.tuples(*[amounts] * len(NUMBERS)),
)
readings = st.builds(
    lambda works, watched, seconds, sms: WorkReading(
        at=AT, boot_ns=0, seconds=seconds, sms=sms, processes=tuple(works), watched=tuple(watched)
    ),
    st.lists(works, unique_by=lambda work: work.pid, max_size=5),
    st.lists(st.sampled_from(ALL_PIDS), unique=True),
    st.sampled_from((0.0, 0.3, 1.0, 1.0, 1.0)),
    st.sampled_from((0, 132, 132, 132)),
)
numbers = st.sampled_from((0.0, 0.01, 0.3, 0.9, 1.0, 1.0, 7.0, -1.0, float("nan"), float("inf")))
uses = st.builds(
    lambda gpu, sm, seconds: GpuUse(at=AT, gpu=gpu, seconds=seconds, sm_utilization=sm, dram_bandwidth=0.1),
    st.sampled_from((GPU, GPU, OTHER_GPU)),
    numbers,
    st.sampled_from((1.0, 1.0, 1.0, 0.1, 60.0)) | numbers,
)
seconds = st.tuples(st.sampled_from((1.0, 1.0, 0.5, 3.0, -0.5, -3600.0, 3600.0)), readings, uses)
steps = st.lists(seconds | st.tuples(gaps, observations), max_size=40)

STARTED = (*at_work(*CLIENTS), gpu_reading(CLIENTS), gpu_reading(CLIENTS[:1], gpu=OTHER_GPU, index=1))


def timed(steps: list[tuple[float | Observation, ...]]) -> list[Observation]:
    """Return the observations with times. The wall clock may go back; the boot clock never does."""
    at, booted, seen = AT, boot_ns(AT), []
    for gap, *observed in steps:
        at += gap
        booted += max(1, round(gap * 1e9))
        for each in observed:
            each = replace(each, at=at)
            seen.append(replace(each, boot_ns=booted) if isinstance(each, WorkReading) else each)
    return seen


def assert_split(present: Node) -> None:
    """No share is negative, and all shares together are not more than the measured use."""
    for known in present.attribution.values():
        for window in known.windows:
            shares = [share.sm for share in window.shares.values()]
            assert all(share >= 0 for share in shares)
            assert all(0 <= share.error < math.inf for share in window.shares.values())
            assert math.isclose(math.fsum((*shares, window.unattributed)), window.sm, rel_tol=1e-9, abs_tol=1e-9)
        assert_valid_estimates(known.estimates)
    for split in present.splits.values():
        shares = [share.sm for share in split.shares.values()]
        assert all(share >= 0 for share in shares)
        assert all(0 <= share.error < math.inf for share in split.shares.values())
        assert split.unattributed >= 0
        assert math.isclose(math.fsum((*shares, split.unattributed)), split.sm, rel_tol=1e-9, abs_tol=1e-9)


def assert_valid_estimates(estimates: KernelTimeEstimates) -> None:
    """Lengths are not negative. The covariance matrix is symmetric, and no variance is negative."""
    assert all(0 <= length < math.inf for length in estimates.means)
    for one, row in enumerate(estimates.covariances):
        assert 0 <= row[one] < math.inf
        for other, covariance in enumerate(row):
            assert covariance == estimates.covariances[other][one]
            together = math.sqrt(row[one] * estimates.covariances[other][other])
            assert abs(covariance) <= together * (1 + 1e-6) + 1e-300


@given(steps)
@settings(max_examples=80)
def test_parts_add_up_for_any_sequence_of_observations(steps: list[tuple[float | Observation, ...]]) -> None:
    present = node(*DAEMONS)
    before = counters(present)
    for each in (*STARTED, *timed(steps)):
        present, _ = reduce(present, each)
        assert_balanced(present.usage_totals)
        assert_split(present)
        after = counters(present)
        assert_only_grown(before, after)
        before = after


lengths = st.sampled_from((0.0, 1e-3, 1.0, 1e4, 1e9, 1e15))
measurements = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from((1, 2, 3)), lengths, min_size=1), lengths, st.sampled_from((1.0, 1e4, 1e9))
    ),
    max_size=30,
)


@given(st.lists(st.tuples(lengths, lengths), min_size=3, max_size=3), measurements)
@example(
    first=[(0.0, 1.0), (0.0, 0.0), (1e15, 0.0)],
    measured=[({1: 0.0}, 0.0, 1.0), ({3: 1e-3}, 0.0, 1.0), ({3: 1e4, 1: 1e9}, 0.0, 1.0), ({3: 1e-3}, 0.0, 1.0)],
)
@settings(max_examples=100)
def test_estimates_stay_valid_for_any_measurements(
    first: list[tuple[float, float]], measured: list[tuple[dict[int, float], float, float]]
) -> None:
    estimates = KernelTimeEstimates()
    for pid, (length, deviation) in enumerate(first, start=1):
        estimates = estimates.with_client(pid, length, deviation)
    for weights, value, deviation in measured:
        estimates = estimates.predicted(1.0).inflated(weights, value, deviation).updated(weights, value, deviation)
        assert_valid_estimates(estimates)
    assert_valid_estimates(estimates.with_least_deviation(1, 1e9).without({2}))


@given(st.lists(works, min_size=2, max_size=6))
def test_a_work_delta_is_never_negative_and_is_bounded(seen: list[ProcessWork]) -> None:
    for before, now in itertools.pairwise(seen):
        done = work_delta(before, now, now.launched_ns)
        assert all(0 <= getattr(done, name) <= MAX_DELTA for name in WorkDelta.__slots__)
        assert work_delta(now, now, now.launched_ns) == WorkDelta()
