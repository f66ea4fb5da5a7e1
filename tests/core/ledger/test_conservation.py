"""Whatever happens, in whatever order: for every GPU the parts are the whole, and that is what the GPU has done."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.core.fold import fold
from exporter.core.ledger import pages
from exporter.core.ledger.posting import post_energy, post_memory, post_time
from exporter.model.ledger import Entry, Ledger, Payer, Purse
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.split import Method
from exporter.model.workload import Workload, WorkloadKind
from exporter.store import ledger as table
from exporter.store.archive import Remembered
from tests.builders import AT, GPU, OTHER_GPU, node
from tests.core.ledger.balance import assert_balanced, assert_only_grown
from tests.core.strategies import DAEMONS, gaps, observations, readings

FEW_PAGES = 3

gpus = st.sampled_from((GPU, OTHER_GPU))
owners = st.builds(Workload, kind=st.sampled_from(WorkloadKind), name=st.sampled_from("abc"))
payers: st.SearchStrategy[Payer] = owners | st.sampled_from(Purse)
methods = st.none() | st.sampled_from(Method)
fractions = (
    st.floats(0.01, 0.5)
    | st.floats(0, 1)
    | st.sampled_from((float("nan"), float("inf"), float("-inf"), -0.5, 1e308, 1.0000001))
)
parts = st.dictionaries(st.tuples(payers, methods), fractions, max_size=6)


@dataclass(frozen=True)
class Window:
    """SM time is split."""

    gpu: str
    busy_us: int
    parts: Mapping[Entry, float]


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
    held: Mapping[Payer, int]


@dataclass(frozen=True)
class Saved:
    """The books are written."""


@dataclass(frozen=True)
class Killed:
    """The exporter ends, and another begins with the copy that was written last."""


Step = Window | Energy | Memory | Saved | Killed | Observation

windows = st.builds(Window, gpus, st.integers(-5, 10_000_000), parts)
steps = st.sampled_from(
    (
        windows,
        windows,
        st.builds(Energy, gpus, st.integers(-5, 10_000_000), st.booleans()),
        st.builds(Memory, gpus, st.dictionaries(payers, st.integers(-5, 2**80), max_size=3)),
        st.sampled_from((Saved(), Killed())),
        readings,
        observations,
    )
).flatmap(lambda kind: kind)
"""Each kind as often as any other, however many sorts it has."""

times = gaps | st.sampled_from((-0.2, -30.0, -700.0, 3601.0, 90_000.0))


@dataclass
class Life:
    """A node, what it was told to have used, and the copy of its books."""

    node: Node = field(default_factory=lambda: node(*DAEMONS))
    at: float = AT
    copy: sqlite3.Connection = field(default_factory=lambda: sqlite3.connect(":memory:"))
    saved: Ledger = field(default_factory=Ledger)
    told: Counter[tuple[str, str]] = field(default_factory=Counter)
    told_then: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.copy.executescript(table.TABLE)

    def goes_on(self, gap: float, step: Step) -> None:
        """What happens next: no sum falls by it, but by going back to the copy."""
        self.at += gap
        before = self.node
        match step:
            case Window():
                self.told[step.gpu, "sm"] += max(0, step.busy_us)
                self._post(post_time(before.ledger, step.gpu, step.busy_us, step.parts, at=self.at))
            case Energy():
                self.told[step.gpu, "energy"] += max(0, step.millijoules)
                self._post(post_energy(before.ledger, step.gpu, step.millijoules, at=self.at, known=step.known))
            case Memory():
                self._post(post_memory(before.ledger, step.gpu, step.held, at=self.at))
            case Saved():
                table.save(self.copy, self.saved, before.ledger)
                self.saved, self.told_then = before.ledger, Counter(self.told)
            case Killed():
                found, unreadable = table.load(self.copy)
                assert unreadable == 0
                self.node = Remembered(ledger=found).into(node(*DAEMONS))
                self.saved, self.told = found, Counter(self.told_then)
            case _:
                self.node, _ = fold(before, replace(step, at=self.at))
                self.told += Counter(dict(_energy(before, self.node)))
        if not isinstance(step, Killed):
            assert_only_grown(before.ledger, self.node.ledger)

    def assert_all_is_there(self) -> None:
        """The books have what the GPUs have used, to the last microsecond and millijoule."""
        assert_balanced(self.node.ledger)
        for gpu in (GPU, OTHER_GPU):
            book = self.node.ledger.books.get(gpu)
            posted = (0, 0) if book is None else (book.whole.sm_us, book.whole.energy_mj)
            assert posted == (self.told[gpu, "sm"], self.told[gpu, "energy"])

    def _post(self, ledger: Ledger) -> None:
        self.node = replace(self.node, ledger=ledger)


def _energy(before: Node, after: Node) -> Iterator[tuple[tuple[str, str], int]]:
    """By how much the GPUs' own counters have grown; what they had when they were first read is from before."""
    for uuid, gpu in after.gpus.items():
        known = before.gpus.get(uuid)
        meters = {} if known is None else known.meters
        for name in gpu.meters.keys() & meters.keys() & {"energy_millijoules"}:
            yield (uuid, "energy"), gpu.meters[name].total - meters[name].total


@pytest.fixture(autouse=True)
def few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_PAGES", FEW_PAGES)


@given(st.lists(st.tuples(times, steps), min_size=5, max_size=40))
@settings(max_examples=150)
def test_whatever_happens_the_parts_are_the_whole(happens: list[tuple[float, Step]]) -> None:
    life = Life(node(*DAEMONS))
    for gap, step in happens:
        life.goes_on(gap, step)
        life.assert_all_is_there()


@given(st.integers(0, 10**9), parts)
def test_a_part_is_within_a_microsecond_and_a_bit_of_what_it_should_be(busy_us: int, of: Mapping[Entry, float]) -> None:
    """As far as the parts are fractions at all; what is posted to nobody has the rest."""
    true = {key: part for key, part in of.items() if 0 <= part <= 1 and key != (Purse.UNATTRIBUTED, None)}
    if sum(true.values()) > 1:
        return
    owned = {key: part for key, part in true.items() if not isinstance(key[0], Workload)}
    ledger = post_time(Ledger(), GPU, busy_us, owned, at=AT)
    used = {} if not ledger.books else ledger.books[GPU].used
    for key, part in owned.items():
        posted = used[key].sm_us if key in used else 0
        assert abs(posted - part * busy_us) <= 1.01


def test_thousands_of_owners_are_bounded_and_none_of_what_they_used_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_PAGES", 50)
    ledger = Ledger()
    for number in range(2000):
        owner = Workload(kind=WorkloadKind.SLURM_JOB, name=str(number))
        ledger = post_time(ledger, GPU, 1001, {(owner, Method.FLIGHT): 0.5}, at=AT + 60 * number)
    assert_balanced(ledger)
    assert len(ledger.paid_at) == 50
    assert ledger.books[GPU].whole.sm_us == 2000 * 1001
