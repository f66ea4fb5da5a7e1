"""Properties of attribution: for any readings, the parts add up to the total, and the estimates stay valid."""

import itertools
import math
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, fields, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exporter.model.estimates import ClientEstimates
from exporter.model.identity import Workload, WorkloadKind
from exporter.model.launches import ProcessWork, WorkReading
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.sharing import GpuUse
from exporter.model.usage import (
    MAX_DELTA,
    Account,
    Method,
    SharedAccount,
    UsageKey,
    UsageTotals,
    WorkDelta,
    work_delta,
)
from exporter.reducer import reduce
from exporter.store import database
from exporter.usage import accounting
from exporter.usage.accounting import post_energy, post_memory, post_time
from tests.builders import AT, GPU, OTHER_GPU, at_work, gpu_reading, node
from tests.state.invariants import assert_only_grown, counters
from tests.state.strategies import ALL_PIDS, CLIENTS, DAEMONS, gaps, observations, ticks
from tests.state.strategies import readings as readings_conservation
from tests.usage.balance import assert_balanced
from tests.usage.balance import assert_only_grown as assert_only_grown_conservation
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


def assert_valid_estimates(estimates: ClientEstimates) -> None:
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
    estimates = ClientEstimates()
    for pid, (length, deviation) in enumerate(first, start=1):
        estimates = estimates.with_observed(pid, length, deviation)
    for weights, value, deviation in measured:
        estimates = estimates.measured(weights, value, deviation, 1.0).solved({1: 1e9})
        assert_valid_estimates(estimates)
    assert_valid_estimates(estimates.with_observed(1, 0.0, 1e9).without({2}).solved({}))


@given(st.lists(works, min_size=2, max_size=6))
def test_a_work_delta_is_never_negative_and_is_bounded(seen: list[ProcessWork]) -> None:
    for before, now in itertools.pairwise(seen):
        done = work_delta(before, now, now.launched_ns)
        assert all(0 <= getattr(done, each.name) <= MAX_DELTA for each in fields(WorkDelta))
        same = work_delta(now, now, now.launched_ns)
        assert same == WorkDelta(late=same.late)


# For any sequence of events: the accounts of each GPU add up to what the GPU has used.


FEW_ACCOUNTS = 3

gpus = st.sampled_from((GPU, OTHER_GPU))
workloads = st.builds(Workload, kind=st.sampled_from(WorkloadKind), name=st.sampled_from("abc"))
accounts: st.SearchStrategy[Account] = workloads | st.sampled_from(SharedAccount)
methods = st.none() | st.sampled_from(Method)
fractions = (
    st.floats(0.01, 0.5)
    | st.floats(0, 1)
    | st.sampled_from((float("nan"), float("inf"), float("-inf"), -0.5, 1e308, 1.0000001))
)
parts = st.dictionaries(st.tuples(accounts, methods), fractions, max_size=6)


@dataclass(frozen=True)
class Window:
    """SM time is attributed."""

    gpu: str
    busy_us: int
    parts: Mapping[UsageKey, float]


@dataclass(frozen=True)
class Energy:
    """Energy is posted."""

    gpu: str
    millijoules: int
    known: bool


@dataclass(frozen=True)
class Memory:
    """Memory is posted."""

    gpu: str
    held: Mapping[Account, int]


@dataclass(frozen=True)
class Saved:
    """The totals are stored."""


@dataclass(frozen=True)
class Killed:
    """The exporter ends, and another starts with the stored totals."""


Step = Window | Energy | Memory | Saved | Killed | Observation

windows = st.builds(Window, gpus, st.integers(-5, 10_000_000), parts)
steps_conservation = st.sampled_from(
    (
        windows,
        windows,
        st.builds(Energy, gpus, st.integers(-5, 10_000_000), st.booleans()),
        st.builds(Memory, gpus, st.dictionaries(accounts, st.integers(-5, 2**80), max_size=3)),
        st.sampled_from((Saved(), Killed())),
        readings_conservation,
        observations,
    )
).flatmap(lambda kind: kind)
"""Each kind has the same probability."""

times = gaps | st.sampled_from((-0.2, -30.0, -700.0, 3601.0, 90_000.0))


@dataclass
class Simulation:
    """A node, the amounts posted to it, and the stored copy of its totals."""

    node: Node = field(default_factory=lambda: node(*DAEMONS))
    at: float = AT
    copy: sqlite3.Connection = field(default_factory=lambda: sqlite3.connect(":memory:"))
    saved: UsageTotals = field(default_factory=UsageTotals)
    posted: Counter[tuple[str, str]] = field(default_factory=Counter)
    saved_posted: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.copy.executescript(database.SCHEMA)

    def apply(self, gap: float, step: Step) -> None:
        """Apply a step. No total decreases, except by a return to the stored copy."""
        self.at += gap
        before = self.node
        match step:
            case Window():
                self.posted[step.gpu, "sm"] += max(0, step.busy_us)
                self._post(post_time(before.usage_totals, step.gpu, step.busy_us, step.parts, at=self.at))
            case Energy():
                self.posted[step.gpu, "energy"] += max(0, step.millijoules)
                self._post(post_energy(before.usage_totals, step.gpu, step.millijoules, at=self.at, known=step.known))
            case Memory():
                self._post(post_memory(before.usage_totals, step.gpu, step.held, at=self.at))
            case Saved():
                assert database.save(self.copy, database.usage_rows(self.saved, before.usage_totals), ()) == []
                self.copy.execute("DELETE FROM usage_totals WHERE json IS NULL")
                self.saved, self.saved_posted = before.usage_totals, Counter(self.posted)
            case Killed():
                stored = database.load(self.copy, self.at, 1, 1)
                assert stored.unreadable == 0
                self.node = stored.restore(node(*DAEMONS))
                self.saved, self.posted = stored.usage_totals, Counter(self.saved_posted)
            case _:
                self.node, _ = reduce(before, replace(step, at=self.at))
                self.posted += Counter(dict(_energy(before, self.node)))
        if not isinstance(step, Killed):
            assert_only_grown_conservation(before.usage_totals, self.node.usage_totals)

    def assert_totals_are_complete(self) -> None:
        """The totals are what the GPUs have used, exactly."""
        assert_balanced(self.node.usage_totals)
        for gpu in (GPU, OTHER_GPU):
            usage = self.node.usage_totals.gpus.get(gpu)
            found = (0, 0) if usage is None else (usage.total.sm_us, usage.total.energy_mj)
            assert found == (self.posted[gpu, "sm"], self.posted[gpu, "energy"])

    def _post(self, totals: UsageTotals) -> None:
        self.node = replace(self.node, usage_totals=totals)


def _energy(before: Node, after: Node) -> Iterator[tuple[tuple[str, str], int]]:
    """Yield how much the energy counters of the GPUs have grown since their first reading."""
    for uuid, gpu in after.gpus.items():
        known = before.gpus.get(uuid)
        if gpu.energy is not None and known is not None and known.energy is not None:
            yield (uuid, "energy"), gpu.energy.total - known.energy.total


@pytest.fixture(autouse=True)
def few_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "MAX_ACCOUNTS", FEW_ACCOUNTS)


@given(st.lists(st.tuples(times, steps_conservation), min_size=5, max_size=40))
@settings(max_examples=150)
def test_accounts_add_up_for_any_sequence_of_events(steps: list[tuple[float, Step]]) -> None:
    simulation = Simulation(node(*DAEMONS))
    with closing(simulation.copy):
        for gap, step in steps:
            simulation.apply(gap, step)
            simulation.assert_totals_are_complete()


@given(st.integers(0, 10**9), parts)
def test_the_rounding_error_of_a_part_is_one_microsecond(busy_us: int, of: Mapping[UsageKey, float]) -> None:
    """As far as the parts are fractions at all; what is unattributed has the rest."""
    true = {key: part for key, part in of.items() if 0 <= part <= 1 and key != (SharedAccount.UNATTRIBUTED, None)}
    if sum(true.values()) > 1:
        return
    owned = {key: part for key, part in true.items() if not isinstance(key[0], Workload)}
    totals = post_time(UsageTotals(), GPU, busy_us, owned, at=AT)
    used = {} if not totals.gpus else totals.gpus[GPU].by_account
    for key, part in owned.items():
        posted = used[key].sm_us if key in used else 0
        assert abs(posted - part * busy_us) <= 1.01


def test_accounts_of_thousands_of_workloads_are_bounded_and_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "MAX_ACCOUNTS", 50)
    totals = UsageTotals()
    for number in range(2000):
        owner = Workload(kind=WorkloadKind.JOB, name=str(number))
        totals = post_time(totals, GPU, 1001, {(owner, Method.FLIGHT): 0.5}, at=AT + 60 * number)
    assert_balanced(totals)
    assert len(totals.last_used_at) == 50
    assert totals.gpus[GPU].total.sm_us == 2000 * 1001
