"""For any sequence of events: the accounts of each GPU add up to what the GPU has used."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.model.identity import Workload, WorkloadKind
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.usage import Account, Method, SharedAccount, UsageKey, UsageTotals
from exporter.reducer import reduce
from exporter.store import tables
from exporter.usage import accounting
from exporter.usage.accounting import post_energy, post_memory, post_time
from tests.builders import AT, GPU, OTHER_GPU, node
from tests.state.strategies import DAEMONS, gaps, observations, readings
from tests.usage.balance import assert_balanced, assert_only_grown

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
steps = st.sampled_from(
    (
        windows,
        windows,
        st.builds(Energy, gpus, st.integers(-5, 10_000_000), st.booleans()),
        st.builds(Memory, gpus, st.dictionaries(accounts, st.integers(-5, 2**80), max_size=3)),
        st.sampled_from((Saved(), Killed())),
        readings,
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
        self.copy.executescript(tables.SCHEMA)

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
                assert tables.save(self.copy, tables.usage_rows(self.saved, before.usage_totals), ()) == []
                self.copy.execute("DELETE FROM usage_totals WHERE json IS NULL")
                self.saved, self.saved_posted = before.usage_totals, Counter(self.posted)
            case Killed():
                stored = tables.load(self.copy, self.at, 1, 1)
                assert stored.unreadable == 0
                self.node = stored.restore(node(*DAEMONS))
                self.saved, self.posted = stored.usage_totals, Counter(self.saved_posted)
            case _:
                self.node, _ = reduce(before, replace(step, at=self.at))
                self.posted += Counter(dict(_energy(before, self.node)))
        if not isinstance(step, Killed):
            assert_only_grown(before.usage_totals, self.node.usage_totals)

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


@given(st.lists(st.tuples(times, steps), min_size=5, max_size=40))
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
        owner = Workload(kind=WorkloadKind.SLURM_JOB, name=str(number))
        totals = post_time(totals, GPU, 1001, {(owner, Method.FLIGHT): 0.5}, at=AT + 60 * number)
    assert_balanced(totals)
    assert len(totals.last_used_at) == 50
    assert totals.gpus[GPU].total.sm_us == 2000 * 1001
