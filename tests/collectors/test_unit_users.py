"""Whose processes a unit has, as clients' readings show it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.collectors.proc import Proc
from exporter.collectors.processes import Processes
from exporter.collectors.workload_processes import SEARCH_SECONDS, WorkloadProcesses
from exporter.model.identity import WorkloadKind
from exporter.model.observation import ProcessReading
from exporter.state.processes import workload_of
from tests.clocks import HandClock

ROOT, ALICE, BOB = 0, 1001, 1002
UNIT = "/system.slice/sitejobs.service"


class Machine:
    """A /proc of processes in units, and a collector that watches some of them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.clock = root, HandClock()
        self.proc = Proc(root, self.clock)
        self.searches = 0
        self.unused: set[int] = set()
        self.uids: dict[int, int] = {}
        self.collector = Processes(proc=root, clock=self.clock, wait=0.0, max_pidfds=0)
        self.add(1, "/init.scope", ROOT)
        monkeypatch.setattr(Proc, "is_unused", lambda _, pid: pid in self.unused or not (root / str(pid)).exists())
        monkeypatch.setattr(Proc, "facts", self.facts)
        search = WorkloadProcesses._search
        monkeypatch.setattr(WorkloadProcesses, "_search", lambda workloads: self.counted(lambda: search(workloads)))

    def counted(self, search: Callable[[], None]) -> None:
        self.searches += 1
        search()

    def facts(self, pid: int) -> ProcessReading | None:
        if not (self.root / str(pid)).exists():
            return None
        cgroup, uid = (self.root / str(pid) / "cgroup").read_text(), self.uids[pid]
        return ProcessReading(
            at=self.clock.now(), pid=pid, start_ticks=pid * 100, started=self.clock.now() - 60, uid=uid, cgroup=cgroup
        )

    def add(self, pid: int, cgroup: str, uid: int) -> None:
        (self.root / str(pid)).mkdir(exist_ok=True)
        zeros = " ".join("0" * 17)
        (self.root / str(pid) / "stat").write_text(f"{pid} (x) S 1 {zeros} {pid * 100} 0 0")
        (self.root / str(pid) / "cgroup").write_text(cgroup if "\n" in cgroup else f"0::{cgroup}\n")
        (self.root / str(pid) / "status").write_text(f"Name:\tx\nUid:\t{uid}\t0\t0\t0\n")
        self.uids[pid] = uid

    def end(self, pid: int) -> None:
        for file in (self.root / str(pid)).iterdir():
            file.unlink()
        (self.root / str(pid)).rmdir()

    def watch(self, *pids: int) -> None:
        self.collector.watch(frozenset(pids))

    def collect(self, later: float = 0.0) -> dict[int, tuple[int, ...] | None]:
        self.clock.time += later
        found = self.collector.collect().observations
        self.readings = [each for each in found if isinstance(each, ProcessReading)]
        return {each.pid: each.unit_users for each in self.readings}

    def kind(self) -> WorkloadKind:
        workload = workload_of(self.readings[-1])
        assert workload is not None
        return workload.kind


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(tmp_path, monkeypatch)
    yield made
    made.collector.close()


def test_a_unit_of_one_user_is_a_workload(machine: Machine) -> None:
    machine.add(10, UNIT, ALICE)
    machine.add(11, f"{UNIT}/below", ALICE)
    machine.add(12, "/system.slice/other.service", BOB)
    machine.watch(10)
    assert machine.collect() == {10: (ALICE,)}
    assert machine.kind() is WorkloadKind.UNIT


@pytest.mark.parametrize("other", [ROOT, BOB])
@pytest.mark.parametrize("place", [UNIT, f"{UNIT}/a", f"{UNIT}/a/b/c"])
@pytest.mark.parametrize("hierarchy", ["0::{}\n", "4:memory:/\n1:name=systemd:{}\n0::/\n", "1:name=systemd:{}\n"])
def test_a_unit_with_a_process_of_another_user_is_none(
    machine: Machine, other: int, place: str, hierarchy: str
) -> None:
    machine.add(10, hierarchy.format(f"{UNIT}/x"), ALICE)
    machine.add(11, hierarchy.format(place), other)
    machine.watch(10)
    assert machine.collect() == {10: tuple(sorted((ALICE, other)))}
    assert machine.kind() is WorkloadKind.USER


def test_a_container_without_a_view_of_the_host_sees_the_same(machine: Machine) -> None:
    """Its cgroup namespace shows a path that leads out of it."""
    machine.add(10, f"/../..{UNIT}", ALICE)
    machine.add(11, f"/../..{UNIT}", ROOT)
    machine.watch(10)
    assert machine.collect() == {10: (ROOT, ALICE)}


def test_a_unit_that_becomes_shared_is_noticed_and_stays_so(machine: Machine) -> None:
    machine.add(10, UNIT, ALICE)
    machine.watch(10)
    machine.collect()
    machine.add(11, UNIT, BOB)
    assert machine.collect(1) == {}
    assert machine.collect(SEARCH_SECONDS) == {10: (ALICE, BOB)}
    assert machine.kind() is WorkloadKind.USER
    machine.end(11)
    assert machine.collect(SEARCH_SECONDS + 1) == {}
    machine.end(1)
    assert machine.collect(SEARCH_SECONDS + 1) == {}


Damage = Callable[[Machine], object]


@pytest.mark.parametrize(
    "damage",
    [
        lambda machine: machine.end(1),
        lambda machine: (machine.root / "11" / "status").unlink(),
        lambda machine: (machine.root / "11" / "cgroup").unlink(),
        lambda machine: machine.add(1, UNIT, ROOT),
        lambda machine: machine.add(11, f"{UNIT}/docker/{'a' * 64}", ALICE),
        lambda machine: machine.add(11, UNIT, 65534),
    ],
    ids=["hidden", "unreadable user", "unreadable unit", "outer processes", "unknown names below", "foreign users"],
)
def test_what_could_not_be_read_is_unknown(
    machine: Machine, damage: Damage, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.add(10, UNIT, ALICE)
    machine.add(11, UNIT, ALICE)
    machine.watch(10)
    damage(machine)
    monkeypatch.setattr(Proc, "is_unused", lambda *_: False)
    known = "unknown names below" in request.node.name
    assert machine.collect() == {10: (ALICE,) if known else None}
    assert machine.kind() is WorkloadKind.UNIT


def test_a_failed_search_makes_a_known_unit_unknown(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.add(10, UNIT, ALICE)
    machine.watch(10)
    machine.collect()
    monkeypatch.setattr(Proc, "is_unused", lambda *_: False)
    machine.end(1)
    assert machine.collect(SEARCH_SECONDS) == {10: None}


def test_searches_once_for_all_clients_of_all_units(machine: Machine) -> None:
    pids = range(100, 484)
    for pid in pids:
        machine.add(pid, f"/system.slice/u{pid % 7}.service", ALICE)
    machine.watch(*pids)
    assert set(machine.collect().values()) == {(ALICE,)}
    for _ in range(5):
        machine.collect(1)
    assert machine.searches == 1
    machine.collect(SEARCH_SECONDS)
    assert machine.searches == 2


def test_a_process_that_ends_during_the_search_has_no_user(machine: Machine) -> None:
    machine.add(10, UNIT, ALICE)
    machine.add(11, UNIT, BOB)
    (machine.root / "11" / "status").unlink()
    (machine.root / "11" / "stat").unlink()
    machine.watch(10)
    machine.unused = {11}
    assert machine.collect() == {10: (ALICE,)}


def test_a_unit_that_is_not_found_is_searched_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes were moved after they were read."""
    pids = range(100, 110)
    for pid in pids:
        machine.add(pid, "/system.slice/moved.service", ALICE)
    machine.watch(*pids)
    facts = {pid: machine.facts(pid) for pid in pids}
    for pid in pids:
        machine.add(pid, "/system.slice/pbs_jobs.service", ALICE)
    monkeypatch.setattr(Proc, "facts", lambda _, pid: facts[pid])
    assert set(machine.collect().values()) == {None}
    assert machine.searches == 1


def test_a_unit_of_one_user_after_the_other_is_shared(machine: Machine) -> None:
    machine.add(10, UNIT, ALICE)
    machine.watch(10)
    assert machine.collect() == {10: (ALICE,)}
    machine.end(10)
    machine.add(11, UNIT, BOB)
    machine.watch(11)
    assert machine.collect(SEARCH_SECONDS) == {11: (ALICE, BOB)}
    assert machine.kind() is WorkloadKind.USER


def test_a_client_in_a_new_unit_has_its_users_at_once(machine: Machine) -> None:
    machine.add(10, UNIT, ALICE)
    machine.watch(10)
    machine.collect()
    machine.add(11, "/system.slice/new.service", BOB)
    machine.add(12, "/system.slice/new.service", ROOT)
    machine.watch(10, 11)
    assert machine.collect() == {11: (ROOT, BOB)}


@pytest.mark.parametrize(
    "cgroup",
    ["/system.slice/pbs_jobs.service", f"/system.slice/docker-{'a' * 64}.scope", "/user.slice/user-1.slice/x", "/"],
)
def test_nothing_is_searched_for_a_process_that_no_unit_of_its_own_has(machine: Machine, cgroup: str) -> None:
    machine.add(10, cgroup, ALICE)
    machine.watch(10)
    assert machine.collect() == {10: None}
    assert machine.searches == 0
