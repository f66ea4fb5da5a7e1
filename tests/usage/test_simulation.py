"""Errors of the shares in simulations, in percentage points of all SMs."""

import gzip
import json
import random
from collections.abc import Callable
from math import inf
from pathlib import Path

import pytest

from exporter.model.observation import Observation
from exporter.model.sharing import GpuUse
from exporter.model.usage import Method
from exporter.recording import Header, RecordedDaemon, write_header, write_observation
from lab.attribution.mix_truth import GPM_LAG_SECONDS
from lab.attribution.score import scored
from lab.attribution.score_tables import report
from lab.attribution.verdict import Score, errors, within
from tests.builders import AT, DAEMON, GPU, SERVER, clients, gpu_reading, servers
from tests.usage.simulation import MS, US, SimulatedNode, Worker, errors_of, largest_error
from tests.works import boot_ns, reading, work

ONE, OTHER, THIRD = 600, 601, 602
STARTED = 20

MakeNode = Callable[[], SimulatedNode]


def long_and_short(**known: object) -> tuple[Worker, ...]:
    """Return clients whose work in flight is not proportional to their SM time."""
    return (
        Worker(pid=ONE, length=100 * US, width=32),
        Worker(pid=OTHER, length=5 * US, width=66, batch=4, pause=30 * US),
    )


UNCROWDED: dict[str, MakeNode] = {
    "two that synchronise": lambda: SimulatedNode(long_and_short()),
    "one waits by events": lambda: SimulatedNode(
        (Worker(pid=ONE, length=100 * US, width=32, event=True), Worker(pid=OTHER, length=20 * US, width=66))
    ),
    "one never synchronises": lambda: SimulatedNode(
        (Worker(pid=ONE, length=100 * US, width=32, never=True, pause=50 * US), long_and_short()[1])
    ),
    "the GPU is never behind with one": lambda: SimulatedNode(
        (Worker(pid=ONE, length=100 * US, width=32, behind=False, pause=50 * US), long_and_short()[1])
    ),
    "twelve": lambda: SimulatedNode(
        tuple(Worker(pid=ONE + n, length=(5 + 7 * n) * US, width=8 + n, pause=100 * US) for n in range(12))
    ),
    "noisy GPM": lambda: SimulatedNode(long_and_short(), noise=0.03),
    "late GPM": lambda: SimulatedNode(long_and_short(), lag_seconds=0.1),
    "probes attached every other second": lambda: SimulatedNode(long_and_short(), rests=tuple(range(3, 200, 2))),
}


def test_shares_are_accurate_on_a_gpu_that_is_not_full(subtests: pytest.Subtests) -> None:
    """Within 1.5 points. A third of that is the first second, which is unknown."""
    for make in UNCROWDED.values():
        with subtests.test(make=make):
            node = make()
            split = node.live(60)
            assert {share.method for share in split.shares.values()} == {Method.FLIGHT}
            assert largest_error(split, node.truths()) <= 1.5


def test_the_stated_error_covers_the_real_one(subtests: pytest.Subtests) -> None:
    """Within three standard errors and a tenth of a point for the noise of GPM."""
    for make in UNCROWDED.values():
        with subtests.test(make=make):
            node = make()
            node.live(STARTED)
            node.reset_truth()
            split = node.live(60)
            wrong = errors_of(split, node.truths())
            assert wrong.keys() == split.shares.keys()
            assert {pid: by for pid, by in wrong.items() if abs(by) > 300 * split.shares[pid].error + 0.1} == {}


def test_work_in_flight_alone_would_be_inaccurate() -> None:
    """So the tests above can fail."""
    node = SimulatedNode(long_and_short())
    split = node.live(60)
    in_flight = {worker.pid: worker.counts["area"] for worker in node.workers}
    parts = {pid: split.sm * area / sum(in_flight.values()) for pid, area in in_flight.items()}
    assert max(abs(100 * (parts[pid] - truth)) for pid, truth in node.truths().items()) > 3


class TestCrowded:
    """On a full GPU, kernels take longer than alone."""

    @pytest.fixture
    def node(self) -> SimulatedNode:
        """Return a GPU that two clients fill, with a third that uses little."""
        wide = (Worker(pid=pid, length=length, width=132) for pid, length in ((ONE, 100 * US), (OTHER, 200 * US)))
        return SimulatedNode((*wide, Worker(pid=THIRD, length=20 * US, width=66, pause=300 * US)))

    def test_shares_are_within_the_use_of_the_gpu(self, node: SimulatedNode) -> None:
        """Their sum is not more, and none is negative."""
        split = node.live(60)
        assert all(share.sm >= 0 for share in split.shares.values())
        assert sum(share.sm for share in split.shares.values()) + split.unattributed == pytest.approx(split.sm)

    def test_uncertain_time_is_unattributed(self, node: SimulatedNode) -> None:
        """The small client has a small share, and the shares of the others are correct."""
        node.live(STARTED)
        node.reset_truth()
        split = node.live(60)
        wrong, truths = errors_of(split, node.truths()), node.truths()
        assert abs(wrong[THIRD]) <= 6
        assert all(split.shares[pid].sm <= truths[pid] + 0.05 for pid in (ONE, OTHER))


class TestChange:
    """Clients that change."""

    def test_a_client_that_starts_and_exits_has_its_share(self) -> None:
        """Its time is not attributed to others."""
        staying, coming = long_and_short()
        coming.on = (20.0, 40.0)
        node = SimulatedNode((staying, coming))
        assert largest_error(node.live(60), node.truths()) <= 1

    def test_kernels_of_several_seconds_are_attributed(self) -> None:
        node = SimulatedNode((Worker(pid=ONE, length=3000 * MS, width=64, never=True), long_and_short()[1]))
        assert largest_error(node.live(60), node.truths()) <= 9
        node.reset_truth()
        assert largest_error(node.live(60), node.truths()) <= 9

    @pytest.mark.parametrize("behind", [True, False], ids=["which is seen", "which is not seen"])
    def test_kernels_that_become_three_times_as_long_are_detected(self, behind: bool) -> None:
        """Within a few seconds, by their own times or by GPM."""
        changing = Worker(pid=ONE, length=50 * US, width=32, behind=behind, slower_from=30.0)
        node = SimulatedNode((changing, Worker(pid=OTHER, length=20 * US, width=66, batch=4, pause=200 * US)))
        node.live(40)
        node.reset_truth()
        assert largest_error(node.live(60), node.truths()) <= 1.5

    def test_a_short_first_window_does_not_bound_the_kernel_time(self) -> None:
        """A microsecond of work in flight does not show the length of a kernel."""
        node = SimulatedNode(
            (Worker(pid=ONE, length=100 * US, width=32, on=(0.95, 99.0), pause=50 * US), long_and_short()[1])
        )
        node.workers[0].counts = {"widths": 3200, "area": 320.0, "kernels": 100}
        node.live(STARTED)
        node.reset_truth()
        assert largest_error(node.live(60), node.truths()) <= 1

    def test_a_stopped_client_with_work_in_flight_uses_nothing(self) -> None:
        """Its work appears to be in flight until it synchronizes."""
        node = SimulatedNode(
            (Worker(pid=ONE, length=100 * US, width=66, never=True, on=(0.0, 20.0)), long_and_short()[1])
        )
        node.live(20)
        stopped = node.workers[0]
        for _ in range(STARTED):
            stopped.counts["area"] += 66e9
            node.live(1)
        node.reset_truth()
        for _ in range(60):
            stopped.counts["area"] += 66e9
            split = node.live(1)
        assert largest_error(split, node.truths()) <= 1


class TestUnseen:
    """Clients without probes."""

    def test_the_rest_is_unattributed_if_a_client_has_no_probes(self) -> None:
        """The probed client has its estimate, not scaled to the total."""
        node = SimulatedNode(long_and_short(), unwatched=frozenset({OTHER}))
        split = node.live(60)
        assert OTHER not in split.shares
        assert split.unattributed > 0.9 * node.truths()[OTHER]

    def test_a_single_client_needs_no_probes(self) -> None:
        """Everything is measured, except for its first second."""
        node = SimulatedNode(long_and_short()[:1], unwatched=frozenset({ONE}))
        split = node.live(60)
        assert split.shares[ONE].method is Method.MEASURED
        assert largest_error(split, node.truths()) <= 0.6
        assert node.node.splits[GPU] == split


def any_world(seed: int) -> SimulatedNode:
    """Return a node of clients of which some have shorter or longer kernels after half a minute."""
    chance = random.Random(seed)
    workers = (
        Worker(
            pid=ONE + number,
            length=int(10 ** chance.uniform(3.7, 6.3)),
            width=chance.choice((16, 32, 66, 132)),
            batch=chance.choice((1, 4, 16)),
            pause=int(10 ** chance.uniform(3, 6)),
            never=chance.random() < 0.15,
            behind=chance.random() < 0.7,
            on=(chance.choice((0, 4 * number)), inf),
            slower_from=chance.choice((inf, 30.0)),
            slower_by=chance.choice((0.4, 1.5, 3.0)),
        )
        for number in range(chance.randint(2, 5))
    )
    return SimulatedNode(tuple(workers), seed=seed)


def test_two_standard_errors_cover_clients_that_change() -> None:
    """Also on full GPUs, where a client's longer kernels change what all clients use."""
    covered = []
    for seed in range(40):
        node = any_world(seed)
        node.live(45)
        node.reset_truth()
        split = node.live(61)
        for pid, error in errors_of(split, node.truths()).items():
            covered.append(abs(error) <= 200 * split.shares[pid].error + 0.1)
    assert len(covered) > 100
    assert sum(covered) >= 0.9 * len(covered)


# The scoring program, on an invented mix with a known result.


SMS = 132
SECONDS = 64
HEAVY, LIGHT = 600, 601
# Of all SMs, and how long a kernel is that has half of them.
USED = {HEAVY: 0.3, LIGHT: 0.1}
KERNEL_NS = 1_000_000
WIDTH = SMS // 2


def seen() -> list[Observation]:
    """Return the observations of two steady clients and an exact GPU."""
    observations: list[Observation] = [servers(SERVER), clients(*USED), gpu_reading()]
    for second in range(SECONDS + 1):
        at = AT + second
        works = []
        for pid, used in USED.items():
            kernels = round(second * used * SMS * 1e9 / (KERNEL_NS * WIDTH))
            area = kernels * KERNEL_NS * WIDTH
            works.append(
                work(
                    pid,
                    kernels=kernels,
                    syncs=kernels,
                    spans=kernels,
                    flight_ns=kernels * KERNEL_NS,
                    area=area,
                    widths=kernels * WIDTH,
                    sure_area=area,
                    sure_widths=kernels * WIDTH,
                )
            )
        observations.append(reading(at, *works, sms=SMS))
        observations.append(GpuUse(at=at + GPM_LAG_SECONDS, gpu=GPU, seconds=1.0, sm_utilization=sum(USED.values())))
    return observations


def write(directory: Path, truth: dict[int, float]) -> Path:
    """Write the files of a run in which clients report this use."""
    with gzip.open(directory / "recording.jsonl.gz", "wt") as file:
        daemon = RecordedDaemon(pipe_directory=DAEMON, log_directory=f"{DAEMON}/log", name=DAEMON)
        write_header(file, Header(daemons=(daemon,)))
        for each in seen():
            write_observation(file, each)
    clients_truth = [
        {
            "pid": pid,
            "name": str(pid),
            "count_keys": ["boot_ns", "occupied_ns"],
            "counts": [[boot_ns(AT + second), second * used * SMS * 1e9] for second in range(SECONDS + 1)],
        }
        for pid, used in truth.items()
    ]
    moments = {"all_in": boot_ns(AT + 1.5), "measured": boot_ns(AT + SECONDS)}
    offset = boot_ns(AT) - round(AT * 1e9)
    with gzip.open(directory / "truth.json.gz", "wt") as file:
        json.dump({"mix": "even", "boot_minus_epoch_ns": offset, "moments": moments, "clients": clients_truth}, file)
    with gzip.open(directory / "rows.jsonl.gz", "wt") as file:
        for second in range(SECONDS):
            rows = [{"pid": HEAVY, "at_us": 0, "sm": 40, "memory": 0}]
            file.write(json.dumps({"at": AT + second + 0.5, "rows": rows}) + "\n")
    return directory


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Score:
    return scored(write(tmp_path_factory.mktemp("even"), USED))


def test_scores_a_minute_and_each_ten_seconds_of_it(judged: Score) -> None:
    assert [round(stretch.seconds) for stretch in judged.short] == [10] * 6
    assert [round(stretch.seconds) for stretch in judged.long] == [60]


def test_correct_shares_have_no_error(judged: Score) -> None:
    (minute,) = judged.long
    assert minute.coverage == pytest.approx(1, abs=0.01)
    assert minute.sm == pytest.approx(0.4)
    assert [verdict.true for verdict in minute.verdicts] == pytest.approx([0.75, 0.25])
    assert max(errors(judged.long)) < 0.5
    assert within(judged.short, 1) == 1


def test_other_methods_are_scored_by_the_same_truth(judged: Score) -> None:
    assert errors(judged.long, "equal") == pytest.approx([25, 25])
    assert errors(judged.long, "nvitop") == pytest.approx([25, 25])


def test_wrong_shares_have_their_error(tmp_path: Path) -> None:
    score = scored(write(tmp_path, {HEAVY: 0.1, LIGHT: 0.1}))
    assert errors(score.long) == pytest.approx([25, 25], abs=0.5)
    assert within(score.short, 2) == 0


def test_the_tables_have_each_mix_and_a_summary(judged: Score) -> None:
    text = report([judged], clients=True)
    assert "| even | 2 | 40.0 % |" in text
    assert "| 1 of 1 |" in text
    assert "| even | 600 | 75.0 % |" in text
