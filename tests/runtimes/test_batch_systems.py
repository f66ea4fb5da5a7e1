"""Processes of jobs of real batch systems have the right user, job and slot, and no user can have those of another."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.runtimes.batch import ALICE, BOB, IN_PERSONAL, GridEngine, HTCondor, Tree
from tests.runtimes.programs import Place
from tests.tools import not_here

pytestmark = [pytest.mark.systems, pytest.mark.timeout(480)]

NO_JOB = [None, None, None]


@pytest.fixture
def place() -> Iterator[Place]:
    """Namespaces of a node with its own name and network."""
    if os.geteuid() != 0:
        not_here("only root can start batch systems")
    with tempfile.TemporaryDirectory(prefix="rt") as directory, Place(Path(directory), "--uts", "--net") as place:
        Path(directory).chmod(0o755)
        yield place


def assert_jobs(tree: Tree, user: int, name: str, job: Sequence[str | None]) -> None:
    """Wait until each process of a job has this user, and this manager, job and slot. Without a job, the user pays."""
    pids = tree.processes(name)
    workload = ["user", str(user)] if job[1] is None else ["job", job[1]]
    expected = {pid: {"uid": user, "workload": workload, "job": job} for pid in pids}

    def assert_read() -> None:
        assert tree.readings(*pids) == expected

    eventually(assert_read, every=1.0)


def test_jobs_of_htcondor(place: Place) -> None:
    """A user's own HTCondor has the same slots, and numbers its jobs in the arguments of its starters."""
    tree = Tree(place, "trixie", "condor", "iproute2")
    condor = HTCondor(tree, place)
    first, other = condor.submit(ALICE, "10", 2), condor.submit(BOB, "20")
    condor.start_personal(BOB)
    condor.submit(BOB, "30", variables=IN_PERSONAL)
    for name in ("100", "101", "200", "300"):
        tree.processes(name)
    slots = condor.slots()
    assert sorted(slots) == [f"{first}.0", f"{first}.1", f"{other}.0"]
    (same,) = condor.slots(IN_PERSONAL).values()
    assert same in slots.values()
    for user, name, job in ((ALICE, "100", f"{first}.0"), (ALICE, "101", f"{first}.1"), (BOB, "200", f"{other}.0")):
        assert_jobs(tree, user, name, ["htcondor", None, slots[job]])
    assert_jobs(tree, BOB, "300", NO_JOB)

    condor.name_jobs()
    named = condor.submit(ALICE, "40", 2)
    for name in ("400", "401"):
        tree.processes(name)
    slots = condor.slots()
    for index in range(2):
        job = f"{named}.{index}"
        assert_jobs(tree, ALICE, f"40{index}", ["htcondor", job, slots[job]])
    assert_jobs(tree, BOB, "200", ["htcondor", None, slots[f"{other}.0"]])
    assert_jobs(tree, BOB, "300", NO_JOB)


FORGED = """
mkdir -p /tmp/active_jobs/1.2 /tmp/bin
cp /bin/dash /tmp/bin/sge_shepherd
cd /tmp/active_jobs/1.2
exec env JOB_ID=1 SGE_TASK_ID=2 /tmp/bin/sge_shepherd -c 'setsid sleep 600 1 9 & sleep 600 0 9 & sleep 600 2 9'
"""


def test_jobs_of_grid_engine(place: Place) -> None:
    """An array of one user, a job of another, and what that runs as if it were a shepherd."""
    tree = Tree(place, "bookworm", "gridengine-master", "gridengine-exec", "gridengine-client", "iproute2")
    engine = GridEngine(tree)
    array, single = engine.submit(ALICE, "-t", "1-2"), engine.submit(BOB)
    tree.start("sh", "-ec", FORGED, user=BOB)
    for task in (1, 2):
        assert_jobs(tree, ALICE, f"{ALICE}{task}", ["grid_engine", f"{array}.{task}", None])
    assert_jobs(tree, BOB, str(BOB), ["grid_engine", f"{single}.1", None])
    assert_jobs(tree, BOB, "9", NO_JOB)
