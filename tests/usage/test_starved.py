"""Time that clients lose to their neighbours: who lost and caused it, who is starved, and what is remembered."""

from collections.abc import Mapping

import pytest

from exporter.model.contention import Bandwidth, Pace, Resource
from exporter.model.identity import Workload, WorkloadKind
from exporter.model.launches import WorkReading
from exporter.model.usage import GpuAttribution, LaunchRate, Method, SharedAccount, Split, UsageTotals, WorkDelta
from exporter.model.values import replace
from exporter.reducer import reduce
from exporter.report.slowdowns import starved_clients
from exporter.usage import contention
from exporter.usage.accounting import MAX_COMMAND_LENGTH, MAX_COMMANDS, close_idle_accounts, post_time, remember_pace
from exporter.usage.contention import EXAMINED_SECONDS, STARVED_SECONDS, contended, slowdowns, starved
from exporter.usage.last_minute import combined, with_reading, with_window
from exporter.view import View
from tests.builders import AT, GPU, at_work, flight, gpu_reading, looks, process, reduced
from tests.usage.test_contention import ALONE, SLOWED, STREAMING, work

SMALL, HEAVY = 600, 601
OWNERS = {SMALL: "alice", HEAVY: "bob"}
NONE = frozenset[int]()
STARVED = work(10, 970, gap_ms=20)
"""A span takes 97 ms instead of 3 ms."""
BEGINNING = work(20, 100, each=1, width=132)
"""A process that begins: its kernels move nearly nothing."""


class Gpu:
    """A GPU with a small client of alice and a heavy one of bob, second after second."""

    def __init__(self, totals: UsageTotals | None = None) -> None:
        seen = (*at_work(*OWNERS), *(process(pid, user=user, command=user) for pid, user in OWNERS.items()))
        self.node = reduced(*seen, gpu_reading((SMALL, HEAVY)), *looks()).node
        totals = totals or post_time(
            UsageTotals(), GPU, 2, {(owner(user), None): 0.5 for user in OWNERS.values()}, at=AT
        )
        self.node, self.at, self.present = replace(self.node, usage_totals=totals), AT, frozenset(OWNERS)

    def second(
        self, clients: Mapping[int, WorkDelta], *, count: int = 1, sm: float = 0.95, dram: float | None = 0.8
    ) -> "Gpu":
        self.present |= clients.keys()
        for _ in range(count):
            self.at += 1
            others = len(clients.keys() - {SMALL})
            shares = {pid: flight(0.02 if pid == SMALL else (sm - 0.02) / others) for pid in clients}
            split = Split(
                at=self.at, seconds=1.0, sm=sum(each.sm for each in shares.values()), shares=shares, dram=dram
            )
            windows = with_window(self.node.attribution.get(GPU, GpuAttribution()).windows, split)
            attribution, splits = {GPU: GpuAttribution(windows=windows)}, {GPU: combined(windows)}
            node = replace(self.node, at=self.at, attribution=attribution, splits=splits)
            self.node = contended(node, GPU, LaunchRate(seconds=1.0, deltas=clients), self.present, NONE)
        return self

    def beside(self, *heavy: int, count: int = 60, small: int = SMALL) -> "Gpu":
        """Let the small client be starved by these, which share the GPU. All other processes have ended."""
        clients = {small: STARVED} | dict.fromkeys(heavy, work(1000 // len(heavy), 990, each=1, width=132))
        gone, self.present = self.present - clients.keys(), frozenset(clients)
        self.node = contended(self.node, GPU, None, self.present, gone)
        return self.second(clients, count=count, dram=0.87)

    @property
    def traffic(self) -> Mapping[int, Bandwidth]:
        return self.node.contention[GPU].windows[-1].traffic

    def quiet(self, count: int = 12) -> "Gpu":
        return self.second({SMALL: ALONE}, count=count, dram=0.01).second({HEAVY: STREAMING}, count=2)

    def crowded(self, small: WorkDelta = SLOWED, count: int = 1, dram: float | None = 0.8) -> "Gpu":
        return self.second({SMALL: small, HEAVY: STREAMING}, count=count, dram=dram, sm=0.95 if dram else 0.8)

    def lost(self, *, caused: bool = False) -> dict[object, float]:
        totals: dict[object, float] = {}
        for (account, _), used in self.node.usage_totals.gpus[GPU].by_account.items():
            name = account.name if isinstance(account, Workload) else account
            totals[name] = totals.get(name, 0.0) + (used.caused_us if caused else used.lost_us) / 1e6
        return {name: seconds for name, seconds in totals.items() if seconds}

    def starved(self) -> Mapping[int, float]:
        return starved(self.node.contention[GPU], self.at)


def owner(user: str) -> Workload:
    return Workload(kind=WorkloadKind.USER, name=user)


def test_lost_time_is_what_the_work_took_beyond_that_on_a_quiet_gpu() -> None:
    """In a second, the work of 150 ms takes 700 ms."""
    gpu = Gpu().quiet().crowded(count=10)
    assert gpu.lost() == {"alice": pytest.approx(5.5, rel=0.01)}
    assert gpu.lost(caused=True) == {"bob": pytest.approx(5.5, rel=0.01)}
    absurd = Gpu().quiet().crowded(work(50, 70_000, gap_ms=300), count=10)
    assert absurd.lost()["alice"] < 10


def test_the_example_of_the_module_has_these_numbers() -> None:
    gpu = Gpu().second({SMALL: ALONE}, count=4, dram=0.01).second({HEAVY: STREAMING}, count=4)
    gpu.at += 120
    state = gpu.crowded(count=5).node.contention[GPU]
    pace, baseline, found = state.windows[-1].paces[SMALL], state.baselines[SMALL], slowdowns(state)[SMALL]
    ((neighbour, part),) = found.neighbours
    assert (neighbour, found.resource) == (HEAVY, Resource.MEMORY)
    for text in (
        f"launches {ALONE.kernels:,} kernels a second, with {ALONE.busy_ns / 1e6:.0f} ms in flight",
        f"uses {part:.0%} of the memory's bandwidth".replace("%", " %"),
        f"it launches {SLOWED.kernels} a second for five seconds, with {SLOWED.busy_ns / 1e6:.0f} ms in flight",
        f"= {baseline.wanted(pace) / 1e6:,.0f} ms lost time",
        f"= {gpu.lost()['alice'] / 5 * 1000:.0f} ms a second, by memory bandwidth, caused by the other client",
        f"= {found.ratio:.2f}, with a standard error of {found.error_ratio:.2f}",
    ):
        assert text in " ".join((contention.__doc__ or "").split())
    assert gpu.lost(caused=True) == {"bob": pytest.approx(gpu.lost()["alice"])}


def test_time_is_lost_while_the_probes_pause_as_before() -> None:
    """They count for one second in ten."""
    gpu = Gpu().quiet()
    for _ in range(6):
        gpu.at += 9
        gpu.crowded()
    assert gpu.lost() == {"alice": pytest.approx(33, rel=0.01)}


def test_noise_loses_no_time_in_the_long_run() -> None:
    gpu = Gpu().quiet(count=40)
    for _ in range(50):
        gpu.crowded(work(100, 330, gap_ms=600)).crowded(work(100, 270, gap_ms=600))
    assert sum(gpu.lost().values()) < 0.1


FASTER = work(100, 200, gap_ms=600)
"""A second in which the client is faster than alone, by 100 ms."""


def test_a_client_that_was_faster_loses_time_only_beyond_that(subtests: pytest.Subtests) -> None:
    """At most 5 s count. Then it loses 11 s in 20."""
    for name, seconds, sm, dram, lost in (
        ("a little", 10, 0.95, 0.8, 10.0),
        ("very much", 100, 0.95, 0.8, 6.0),
        ("while nothing was used up", 10, 0.5, 0.1, 10.0),
    ):
        with subtests.test(name):
            gpu = Gpu().quiet().second({SMALL: FASTER, HEAVY: STREAMING}, count=seconds, sm=sm, dram=dram)
            assert gpu.lost() == {}
            assert gpu.crowded(count=20).lost() == {"alice": pytest.approx(lost, rel=0.02)}


def test_time_is_lost_only_beside_others_that_use_a_resource_up() -> None:
    """Longer kernels alone, or beside others on a GPU with free SMs and bandwidth, are the client's own work."""
    longer = work(100, 350, gap_ms=600)
    gpu = Gpu().second({SMALL: ALONE}, count=12, dram=0.01).second({SMALL: longer}, count=5, dram=0.01)
    assert gpu.second({SMALL: SLOWED, HEAVY: STREAMING}, count=5, sm=0.5, dram=0.1).lost() == {}
    gpu = Gpu().second({HEAVY: STREAMING}, count=12, dram=0.1)
    assert gpu.second({HEAVY: work(850, 990, each=1, width=132)}, count=5, dram=0.1).lost() == {}


def test_time_is_not_lost_by_a_client_without_a_baseline_or_with_other_work() -> None:
    assert Gpu().crowded(count=5).lost() == {}
    assert Gpu().quiet().crowded(work(50, 700, width=20), count=5).lost() == {}


def test_nobody_known_caused_a_loss_if_the_use_of_the_resource_is_unknown() -> None:
    gpu = Gpu().quiet()
    gpu.node = replace(gpu.node, contention={GPU: replace(gpu.node.contention[GPU], windows=())})
    state = gpu.node.attribution[GPU]
    gpu.at += 1
    split = replace(state.windows[-1], at=gpu.at, dram=0.9, unknown=frozenset({HEAVY}))
    node = replace(gpu.node, attribution={GPU: GpuAttribution(windows=(split,))})
    rate = LaunchRate(seconds=1.0, deltas={SMALL: SLOWED})
    gpu.node = contended(node, GPU, rate, frozenset(OWNERS), NONE)
    assert list(gpu.lost(caused=True)) == [SharedAccount.UNATTRIBUTED]


def test_what_no_client_is_known_to_have_used_caused_its_part_of_the_loss(subtests: pytest.Subtests) -> None:
    """The known shares are 2 % of alice and 3 % of bob."""
    for name, dram, unknown, measured, part in (
        ("most SM time is hidden", 0.1, NONE, True, 0.03 / 0.93),
        ("bandwidth that hidden SM time may have used", 0.9, NONE, True, 0.0),
        ("an unknown client without GPM", None, frozenset({602}), False, 0.0),
    ):
        with subtests.test(name):
            gpu = Gpu().quiet()
            gpu.at += 1
            split = Split(
                at=gpu.at,
                seconds=1.0,
                sm=0.95 if measured else 0.05,
                shares={SMALL: flight(0.02), HEAVY: flight(0.03)},
                dram=dram,
                unattributed=0.9 if measured else 0.0,
                unknown=unknown,
                measured=measured,
            )
            node = replace(gpu.node, attribution={GPU: GpuAttribution(windows=(split,))})
            rate = LaunchRate(seconds=1.0, deltas={SMALL: STARVED, HEAVY: work(100, 100)})
            gpu.node = contended(node, GPU, rate, frozenset(OWNERS), NONE)
            lost, caused = gpu.lost(), gpu.lost(caused=True)
            assert caused.get("bob", 0.0) == pytest.approx(part * lost["alice"], rel=1e-3)
            assert caused[SharedAccount.UNATTRIBUTED] == pytest.approx((1 - part) * lost["alice"], rel=1e-3)
            by_account = gpu.node.usage_totals.gpus[GPU].by_account
            methods = {method for (_, method), used in by_account.items() if used.lost_us}
            assert methods == {Method.FLIGHT if measured else Method.LAUNCHES}


def test_a_client_is_starved_after_ten_minutes_and_reported_with_the_cause() -> None:
    gpu = Gpu().quiet().crowded(count=int(STARVED_SECONDS))
    assert not gpu.starved()
    (since,) = gpu.crowded(count=80).starved().values()
    # The first minute has the quiet seconds, too.
    assert since == pytest.approx(AT + 14 + 60, abs=60 + EXAMINED_SECONDS)
    reading = WorkReading(at=gpu.at, boot_ns=1, seconds=1.0, watched=tuple(OWNERS))
    (found,) = starved_clients(View(with_reading(gpu.node, reading)), gpu.at)
    finding = replace(found, at=found.since + 720)
    assert (finding.client, finding.gpu) == (SMALL, GPU)
    name = "Client PID 600 (alice) on GPU 0 has been starved for 12 min 0 s by its neighbours"
    cause = (
        "its work takes 2.2 times as long as on a quiet GPU; it waits for memory bandwidth, of which PID 601 (bob) uses"
    )
    assert finding.text.startswith(f"{name}: {cause}")


@pytest.mark.parametrize("is_known", [True, False])
def test_a_neighbour_that_restarts_has_the_bandwidth_that_it_uses(is_known: bool, subtests: pytest.Subtests) -> None:
    """The new process was never alone. The other client moves what it moved alone."""
    shared = work(500, 990, each=1, width=132)
    for name, clients, sm, dram in (
        ("while the old one ends", {SMALL: STARVED, HEAVY: shared, 602: shared}, 0.95, 0.87),
        ("it seems to move nothing", {SMALL: STARVED, HEAVY: STREAMING, 602: STREAMING}, 0.95, 0.87),
        ("it begins before", {SMALL: STARVED, HEAVY: STREAMING, 602: BEGINNING}, 0.95, 0.87),
        ("it begins after", {SMALL: ALONE, 602: BEGINNING}, 0.05, 0.01),
    ):
        with subtests.test(name):
            gpu = Gpu().quiet() if is_known else Gpu().second({SMALL: ALONE}, count=12, dram=0.01)
            gpu.beside(HEAVY).second(clients, sm=sm, dram=dram, count=3)
            for count in (1, 9, 60):
                gpu.beside(602, count=count)
                assert gpu.traffic[SMALL].part < 0.01
            assert not gpu.node.contention[GPU].windows[-1].doubted
            found = slowdowns(gpu.node.contention[GPU])[SMALL]
            assert (found.at_least, found.ratio) == (False, pytest.approx(11.4, rel=0.05))
            ((neighbour, part),) = found.neighbours
            assert (neighbour, part) == (602, pytest.approx(0.87, abs=0.01))


def test_a_client_remains_starved_while_its_neighbour_restarts_each_minute() -> None:
    gpu, since = Gpu().second({SMALL: ALONE}, count=20, dram=0.01), set[float]()
    for pid in range(602, 618):
        gpu.beside(pid, count=57).second({SMALL: STARVED, pid: STREAMING, pid + 1: BEGINNING}, dram=0.87, count=3)
        assert gpu.traffic[SMALL].part < 0.01
        since |= {*gpu.starved().values()}
    assert gpu.starved()
    assert len(since) == 1


def test_of_two_neighbours_that_use_as_much_one_restarts() -> None:
    """Then their sum is known, and the errors contain the part of each."""
    gpu = Gpu().second({SMALL: ALONE}, count=20, dram=0.01).beside(HEAVY).beside(HEAVY, 602)
    shared = work(500, 990, each=1, width=132)
    gpu.second({SMALL: STARVED, HEAVY: shared, 602: shared, 603: BEGINNING}, dram=0.87, count=3)
    for count in (1, 9, 60):
        gpu.beside(HEAVY, 603, count=count)
        assert gpu.traffic[SMALL].part < 0.01
        assert all(abs(gpu.traffic[pid].part - 0.435) < 2 * gpu.traffic[pid].error for pid in (HEAVY, 603))


def test_nothing_is_known_of_a_starved_client_that_restarts(subtests: pytest.Subtests) -> None:
    """If the neighbour restarts too, the errors contain that each uses nothing."""
    for heavy in (HEAVY, 602):
        with subtests.test(heavy=heavy):
            gpu = Gpu().second({SMALL: ALONE}, count=20, dram=0.01).beside(HEAVY, count=100)
            gpu.beside(heavy, small=603, count=5)
            assert 603 not in slowdowns(gpu.node.contention[GPU])
            assert gpu.traffic[603].part < 2 * gpu.traffic[603].error + 0.01


def test_a_starved_client_has_no_cause_without_gpm() -> None:
    """The GPU was not measured: the work of the client may have changed."""
    gpu = Gpu().quiet()
    for _ in range(int(STARVED_SECONDS) + 80):
        gpu.crowded(STARVED, dram=None)
    assert gpu.starved()
    reading = WorkReading(at=gpu.at, boot_ns=1, seconds=1.0, watched=tuple(OWNERS))
    (found,) = starved_clients(View(with_reading(gpu.node, reading)), gpu.at)
    finding = replace(found, at=found.since + 720)
    assert finding.text.startswith("Client PID 600 (alice) on GPU 0 has been starved for 12 min 0 s: its work takes")
    assert "it is unknown for which resource it waits, so this can also be a change of its own work" in finding.text
    assert "PID 601" not in finding.text
    assert list(gpu.lost(caused=True)) == [SharedAccount.UNATTRIBUTED]


def test_a_client_is_starved_if_it_clearly_takes_twice_as_long() -> None:
    """The probes count for one second in ten. A slowdown of 2.07 is within two standard errors of 2."""
    for busy_ms, is_starved in ((630, False), (700, True)):
        gpu = Gpu().quiet()
        for number in range(70):
            gpu.at += 9
            gpu.crowded(work(50, busy_ms, gap_ms=300))
            if number < 60:
                assert not gpu.starved()
        assert bool(gpu.starved()) is is_starved


def test_reports_starved_clients_in_the_order_of_the_gpus() -> None:
    gpu, gpus = Gpu().quiet().crowded(STARVED, count=700), [f"GPU-{index}" for index in range(8)]
    node = gpu.node
    for index, uuid in enumerate(gpus):
        node, _ = reduce(node, gpu_reading(tuple(OWNERS), gpu=uuid, index=index, at=gpu.at))
    node = replace(
        node,
        contention=dict.fromkeys(gpus, gpu.node.contention[GPU]),
        attribution=dict.fromkeys(gpus, gpu.node.attribution[GPU]),
    )
    node = with_reading(node, WorkReading(at=gpu.at, boot_ns=1, seconds=1.0, watched=tuple(OWNERS)))
    assert [finding.gpu for finding in starved_clients(View(node), gpu.at)] == gpus


def test_a_client_is_not_starved_if_the_neighbour_pauses_or_it_has_less_to_do(subtests: pytest.Subtests) -> None:
    for name, clients in {
        "neighbour pauses": {SMALL: ALONE},
        "waits for requests": {SMALL: work(10, 30, gap_ms=60), HEAVY: STREAMING},
        "other work": {SMALL: work(5, 700, each=100), HEAVY: STREAMING},
        "nothing to do": {HEAVY: STREAMING},
    }.items():
        with subtests.test(name):
            gpu = Gpu().quiet().crowded(count=500).second(clients, count=120).crowded(count=150)
            assert not gpu.starved()


def test_a_client_was_not_starved_in_a_gap(subtests: pytest.Subtests) -> None:
    """The probes were detached, the GPU was not read, or the clock was set."""
    for seconds in (3600, -3600):
        with subtests.test(seconds=seconds):
            gpu = Gpu().quiet().crowded(STARVED, count=100)
            gpu.at += seconds
            assert not gpu.crowded(STARVED, count=int(STARVED_SECONDS) - 20).starved()
            assert gpu.crowded(STARVED, count=40).starved()


def test_nothing_is_known_to_be_starved_without_recent_windows() -> None:
    gpu = Gpu().quiet().crowded(count=700)
    assert gpu.starved()
    assert not starved(gpu.node.contention[GPU], gpu.at + 100)
    assert not starved(gpu.node.contention[GPU], gpu.at - 100)


def test_a_baseline_is_remembered_for_later_processes_of_the_workload() -> None:
    """The exporter has been started anew while the neighbour is heavy."""
    totals = Gpu().quiet().node.usage_totals
    assert set(totals.gpus[GPU].paces[owner("alice")]) == {"alice"}

    later = Gpu(totals).crowded(count=20)
    found = slowdowns(later.node.contention[GPU])[SMALL]
    assert found.ratio == pytest.approx(20 / 9, rel=0.05)
    assert not found.at_least
    assert found.error_ratio > 0.15 * found.ratio

    changed = Gpu(totals).crowded(work(50, 700, width=20), count=5)
    assert not slowdowns(changed.node.contention[GPU])
    assert slowdowns(changed.crowded(work(50, 700, width=20), count=7).node.contention[GPU])[SMALL].at_least


def test_a_baseline_is_remembered_after_ten_windows_and_after_each_hundred_more() -> None:
    def remembered() -> float | None:
        paces = gpu.node.usage_totals.gpus[GPU].paces
        return Pace(*paces[owner("alice")]["alice"]).latency / 1000 if paces else None

    gpu = Gpu().second({SMALL: ALONE}, count=10, dram=0.01)
    assert remembered() is None
    gpu.second({SMALL: ALONE}, dram=0.01).second({SMALL: work(100, 330, gap_ms=600)}, count=99, dram=0.01)
    assert remembered() == pytest.approx(300)
    gpu.second({SMALL: ALONE}, dram=0.01)
    assert remembered() == pytest.approx(328.5, abs=1)
    gpu = Gpu().crowded(count=30)
    assert slowdowns(gpu.node.contention[GPU])[SMALL].at_least
    assert remembered() is None


def test_a_remembered_baseline_replaces_a_bound_only_if_it_is_faster(subtests: pytest.Subtests) -> None:
    for busy_ms, ratio in ((300, 1.0), (100, 800 / 700)):
        with subtests.test(busy_ms=busy_ms):
            gpu = Gpu().crowded(FASTER, count=12)
            totals = remember_pace(
                gpu.node.usage_totals, GPU, owner("alice"), "alice", Pace(1000, 100, 1e5, busy_ms * 1e6, 6e8)
            )
            gpu.node = replace(gpu.node, usage_totals=totals)
            found = slowdowns(gpu.crowded(FASTER).node.contention[GPU])[SMALL]
            assert (found.ratio, found.at_least) == (pytest.approx(ratio, rel=0.01), busy_ms == 300)
            assert busy_ms == 300 or 0.02 < found.error_ratio < 0.2


def test_a_client_that_left_and_a_new_one_with_its_pid_have_no_baseline() -> None:
    gpu = Gpu().quiet().crowded(count=5)
    later = contended(gpu.node, GPU, None, frozenset(OWNERS), {SMALL})
    assert slowdowns(later.contention[GPU]).keys() == {HEAVY}
    rate = LaunchRate(seconds=1.0, deltas={HEAVY: STREAMING})
    assert SMALL not in slowdowns(contended(gpu.node, GPU, rate, frozenset({HEAVY}), NONE).contention[GPU])


def test_two_quiet_windows_replace_a_remembered_baseline() -> None:
    totals = remember_pace(Gpu().node.usage_totals, GPU, owner("alice"), "alice", Pace(1000, 100, 1e5, 9e9, 6e8))
    gpu = Gpu(totals).quiet(count=4).crowded(count=10)
    assert slowdowns(gpu.node.contention[GPU])[SMALL].ratio > 1.5


def test_little_use_by_others_corrects_a_remembered_baseline() -> None:
    """They use 10 % of the SMs: the GPU is quiet, but could be quieter."""
    totals = remember_pace(Gpu().node.usage_totals, GPU, owner("alice"), "alice", Pace(1000, 100, 1e5, 45e7, 6e8))
    gpu = Gpu(totals).second({SMALL: ALONE, HEAVY: work(10, 20)}, count=20, sm=0.12, dram=0.1)
    assert gpu.node.contention[GPU].baselines[SMALL].pace.latency == pytest.approx(3e5, rel=0.05)


def test_a_client_that_is_faster_beside_neighbours_refutes_its_baseline(subtests: pytest.Subtests) -> None:
    remembered = remember_pace(Gpu().node.usage_totals, GPU, owner("alice"), "alice", Pace(1000, 100, 1e5, 7e9, 6e8))
    for name, gpu in {
        "remembered": Gpu(remembered),
        "learned": Gpu().second({SMALL: work(100, 700)}, count=12, dram=0.01),
    }.items():
        with subtests.test(name):
            gpu.crowded(work(100, 200, gap_ms=200), count=80)
            found = slowdowns(gpu.node.contention[GPU])[SMALL]
            assert (found.ratio, found.at_least) == (pytest.approx(1.0), True)


def test_what_is_remembered_is_bounded_and_ends_with_the_account() -> None:
    totals = Gpu().node.usage_totals
    for number in range(2 * MAX_COMMANDS):
        totals = remember_pace(totals, GPU, owner("alice"), f"command {number}", Pace(1, 1, 1, 1, 1))
    assert list(totals.gpus[GPU].paces[owner("alice")]) == [f"command {MAX_COMMANDS + n}" for n in range(MAX_COMMANDS)]
    assert remember_pace(totals, GPU, owner("alice"), "a" * (MAX_COMMAND_LENGTH + 1), Pace(1, 1, 1, 1, 1)) is totals
    assert remember_pace(totals, GPU, owner("nobody"), "a", Pace(1, 1, 1, 1, 1)) is totals
    assert not close_idle_accounts(totals, AT + 1e6).gpus[GPU].paces
