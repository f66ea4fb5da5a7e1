"""Slowdowns on both sides of each limit: what is quiet, the same work, used up, doubted, and learned."""

import math
from collections.abc import Mapping

import pytest

from exporter.model.contention import Bandwidth, Resource
from exporter.model.estimates import NONE
from exporter.model.usage import WorkDelta
from exporter.model.values import replace
from exporter.usage.bandwidth import bandwidths
from exporter.usage.contention import sharing_gain
from tests.usage.test_contention import ALONE, BANDWIDTH, HEAVY, OTHER, SLOWED, SMALL, STREAMING, Gpu, work

WAITING = WorkDelta(busy_ns=10**9, flight_ns=10**9)
"""A client that waits, and launches nothing."""


def slower(ms: float) -> WorkDelta:
    """Return the work of ALONE in another time: 300 ms are as on a quiet GPU."""
    return work(100, ms, gap_ms=600)


def alone(count: int = 12, small: WorkDelta = ALONE, sm: float = 0.05) -> Gpu:
    return Gpu().second({SMALL: small}, {SMALL: sm}, dram=0.01, count=count)


def latency(gpu: Gpu) -> float:
    """Return the baseline of the client, as milliseconds for 1,000 launches."""
    return gpu.state.baselines[SMALL].pace.latency / 1000


def test_a_gpu_is_quiet_up_to_these_limits(subtests: pytest.Subtests) -> None:
    for name, other, own, others, dram, is_quiet in (
        ("others use a fifth", work(1, 50), 0.5, 0.19, 0.1, True),
        ("others use more", work(1, 50), 0.5, 0.21, 0.1, False),
        ("others work for a tenth of the time", work(1, 95), 0.5, 0.15, 0.1, True),
        ("others work for longer, and SMs are left", work(1, 500), 0.49, 0.1, 0.34, True),
        ("others work for longer", work(1, 105), 0.51, 0.1, 0.34, False),
        ("others work for longer, and no bandwidth is left", work(1, 105), 0.49, 0.1, 0.36, False),
        ("others wait for a stream", WAITING, 0.55, 0.1, 0.1, True),
    ):
        with subtests.test(name):
            gpu = Gpu().second({SMALL: ALONE, OTHER: other}, {SMALL: own, OTHER: others}, dram=dram, count=3)
            assert (SMALL in gpu.slowdowns) is is_quiet


def test_a_gpu_without_gpm_is_quiet_if_all_others_are_idle(subtests: pytest.Subtests) -> None:
    for name, clients, unknown, is_quiet in (
        ("its own use is unknown", {SMALL: ALONE}, {SMALL}, True),
        ("another's use is unknown", {SMALL: ALONE}, {OTHER}, False),
        ("another one waits", {SMALL: ALONE, OTHER: WAITING}, set[int](), False),
    ):
        with subtests.test(name):
            gpu = Gpu().second(clients, {SMALL: 0.1}, dram=None, count=3, measured=False, unknown=frozenset(unknown))
            assert (SMALL in gpu.slowdowns) is is_quiet


def test_a_full_gpu_is_not_quiet_while_it_is_unknown_who_works_there() -> None:
    """The new client may stream memory. On a node with several GPUs, its GPU is unknown for some seconds."""
    gpu = alone().second({SMALL: slower(900)}, {SMALL: 0.1}, dram=0.8, count=3, unknown=frozenset({OTHER}))
    assert latency(gpu) == pytest.approx(300)
    assert gpu.slowdowns[SMALL].ratio > 1.1


@pytest.mark.parametrize("factor", [3, 1 / 3], ids=["slower", "faster"])
def test_windows_before_a_change_of_own_work_are_not_compared(factor: float) -> None:
    """A rank of a job waits for ranks of other GPUs in kernels. Small neighbours had no part in that."""
    gpu, shares = Gpu(), {SMALL: 0.05, OTHER: 0.3}
    gpu.second({SMALL: slower(300), OTHER: work(1, 500)}, shares, count=25)
    gpu.second({SMALL: slower(factor * 300)}, {SMALL: 0.05}, count=12)
    assert SMALL not in gpu.slowdowns or gpu.slowdowns[SMALL].ratio == pytest.approx(1, abs=0.05)
    gpu.second({SMALL: slower(factor * 300)}, {SMALL: 0.05}, count=50)
    assert gpu.slowdowns[SMALL].ratio == pytest.approx(1, abs=0.01)


def test_a_client_without_a_share_has_no_quiet_gpu() -> None:
    """What was measured may be its own use, or that of a process that is not known."""
    assert SMALL not in Gpu().second({SMALL: ALONE}, {OTHER: 0.15}, dram=0.1, count=3).slowdowns


def test_a_client_is_alone_while_others_use_a_twentieth() -> None:
    """Then its longer kernels are its own work. With more, they may be a slowdown, but are learned in the long run."""
    for others, apparent in ((0.04, 1.0), (0.07, 1 + 100 / 900)):
        gpu = alone().later()
        gpu.second({SMALL: slower(400), OTHER: work(1, 5)}, {SMALL: 0.05, OTHER: others}, dram=0.1, count=6)
        assert gpu.slowdowns[SMALL].apparent == pytest.approx(apparent, abs=0.03)


def test_only_a_baseline_that_was_learned_beside_others_is_replaced_alone() -> None:
    gpu = Gpu().second({SMALL: slower(400), OTHER: work(1, 5)}, {SMALL: 0.05, OTHER: 0.1}, count=12)
    beside = gpu.slowdowns[SMALL].error_ratio
    assert latency(gpu) == pytest.approx(400)
    assert latency(gpu.second({SMALL: ALONE}, {SMALL: 0.05})) == pytest.approx(300)
    gpu.second({SMALL: slower(400), OTHER: work(1, 5)}, {SMALL: 0.05, OTHER: 0.1}, count=12)
    assert latency(gpu) == pytest.approx(300)
    assert beside**2 - alone(12, slower(400)).slowdowns[SMALL].error_ratio ** 2 == pytest.approx(
        (0.01 * 0.4) ** 2, rel=0.1
    )


def test_a_baseline_forgets_over_fifty_windows() -> None:
    gpu = alone(200).second({SMALL: slower(400)}, {SMALL: 0.05}, count=50)
    assert latency(gpu) == pytest.approx(400 - 100 * 0.98**50, rel=0.01)


def test_two_contradicting_windows_in_a_row_replace_a_baseline(subtests: pytest.Subtests) -> None:
    near, far, fast = (300 * math.exp(each) for each in (0.45, 0.55, -0.55))
    for name, learned, then, expected in (
        ("near", 10, (near, near), 300 + 2 * (near - 300) / 11),
        ("one", 10, (far,), 300),
        ("interrupted", 10, (far, 300, far), 300),
        ("slower", 10, (far, far), far),
        ("faster", 10, (fast, fast), fast),
        ("few windows", 2, (far,), far),
        ("some windows", 3, (far,), 300),
    ):
        with subtests.test(name):
            gpu = alone(learned + 1)
            for ms in then:
                gpu.second({SMALL: slower(ms)}, {SMALL: 0.05}, dram=0.01)
            assert latency(gpu) == pytest.approx(expected, rel=0.02)


def test_a_window_with_three_ended_spans_is_learned() -> None:
    assert SMALL not in alone(3, work(2, 300)).slowdowns
    assert SMALL in alone(3, work(3, 300)).slowdowns


def test_work_is_the_same_within_these_limits(subtests: pytest.Subtests) -> None:
    copies = {"copies": 500, "spans": 50, "kernels": 500, "widths": 500, "busy_ns": 700_000_000, "gap_ns": 300_000_000}
    mixed = WorkDelta(**copies, copied=500 << 15)
    for name, usual, now, is_same in (
        ("width", ALONE, work(50, 700, width=115), True),
        ("larger width", ALONE, work(50, 700, width=118), False),
        ("smaller width", ALONE, work(50, 700, width=85), False),
        ("launches", ALONE, work(50, 700, each=14), True),
        ("more launches", ALONE, work(50, 700, each=15), False),
        ("fewer launches", ALONE, work(50, 700, each=6), False),
        ("copies", mixed, mixed, True),
        ("larger copies", mixed, WorkDelta(**copies, copied=500 << 16), False),
    ):
        with subtests.test(name):
            gpu = alone(4, usual).later().second({SMALL: now, HEAVY: STREAMING}, {SMALL: 0.03, HEAVY: 0.9}, count=5)
            assert (SMALL in gpu.slowdowns) is is_same


def test_a_slowdown_is_unknown_if_most_time_had_other_work() -> None:
    for same, is_known in ((4, False), (6, True)):
        gpu = alone(4).later().second({SMALL: SLOWED, HEAVY: STREAMING}, {SMALL: 0.03, HEAVY: 0.9}, count=same)
        gpu.second({SMALL: work(50, 700, width=20), HEAVY: STREAMING}, {SMALL: 0.03, HEAVY: 0.9}, count=10 - same)
        assert (SMALL in gpu.slowdowns) is is_known


def full(
    small: float,
    other: float,
    *,
    usual: float,
    error: float = 0.0,
    areas: Mapping[int, float] = NONE,
    then: WorkDelta = STREAMING,
) -> Gpu:
    """Let a client that uses 0.2 of the SMs for as much work be slowed by one that uses `usual` of the SMs alone."""
    gpu = alone(4, sm=0.4).second({OTHER: STREAMING}, {OTHER: usual}, dram=0.01, count=4).later()
    shares = {SMALL: small, OTHER: other}
    return gpu.second({SMALL: SLOWED, OTHER: then}, shares, error=error, areas=areas, count=5)


def test_a_client_is_doubted_if_its_own_increase_may_have_filled_the_sms(subtests: pytest.Subtests) -> None:
    for name, gpu, is_certain in (
        ("they are not full", full(0.2, 0.64, usual=0.64), False),
        ("they are full", full(0.2, 0.66, usual=0.66), True),
        ("full without its increase", full(0.33, 0.57, usual=0.57), True),
        ("not full without its increase", full(0.345, 0.555, usual=0.555), False),
        ("the other one uses less", full(0.345, 0.555, usual=0.7), True),
        ("the other one uses more", full(0.3, 0.57, usual=0.4), True),
        ("the other one uses more, and the share is unsure", full(0.3, 0.57, usual=0.4, error=0.03), False),
        ("the other one runs a long kernel", full(0.2, 0.66, usual=0.66, error=0.1, then=WAITING), True),
    ):
        with subtests.test(name):
            found = gpu.slowdowns[SMALL]
            assert found.at_least is not is_certain
            assert found.apparent == pytest.approx(20 / 9, rel=0.01)
            assert (found.resource is Resource.SMS) is is_certain
            assert found.ratio == pytest.approx(found.apparent if is_certain else 1.0, rel=0.01)


def test_work_that_is_wider_than_the_gpu_is_slowed_before_the_sms_are_full(subtests: pytest.Subtests) -> None:
    """Of the client's area, the part counts that it has on a quiet GPU: 150 of 700 ms."""
    for name, other, areas, is_certain in (
        ("wide", 0.27, {SMALL: 0.7, OTHER: 0.87}, True),
        ("less used", 0.23, {SMALL: 0.7, OTHER: 0.87}, False),
        ("narrow", 0.27, {SMALL: 0.7, OTHER: 0.83}, False),
    ):
        with subtests.test(name):
            found = full(0.2, other, usual=other, areas=areas).slowdowns[SMALL]
            assert found.at_least is not is_certain
            assert found.resource is Resource.OTHER


def test_a_client_can_use_five_times_its_part_of_the_sms_as_bandwidth(subtests: pytest.Subtests) -> None:
    """The other one uses more of the memory than ever, so the increase is not known to be its own."""
    for name, sm, dram, resource, is_certain in (
        ("few SMs", 0.03, 0.7, Resource.MEMORY, True),
        ("more SMs", 0.05, 0.7, Resource.OTHER, False),
        ("just used up", 0.01, 0.61, Resource.MEMORY, True),
        ("not used up", 0.01, 0.59, Resource.OTHER, False),
    ):
        with subtests.test(name):
            gpu = alone(4, sm=2 * sm).second({OTHER: STREAMING}, {OTHER: 0.7}, dram=0.4, count=4).later()
            gpu.second({SMALL: SLOWED, OTHER: STREAMING}, {SMALL: sm, OTHER: 0.7}, dram=dram, count=5)
            found = gpu.slowdowns[SMALL]
            assert (found.resource, found.at_least) == (resource, not is_certain)


def test_a_slowdown_without_the_use_of_the_gpu_has_no_resource(subtests: pytest.Subtests) -> None:
    """Then all of it counts, but names no neighbour."""
    for name, other, dram, measured in (("no bandwidth", 0.5, None, True), ("no GPM", 0.9, None, False)):
        with subtests.test(name):
            gpu = Gpu().second({SMALL: ALONE}, {SMALL: 0.05}, dram=None, measured=measured, count=4).later()
            deltas, shares = {SMALL: SLOWED, OTHER: STREAMING}, {SMALL: 0.03, OTHER: other}
            found = gpu.second(deltas, shares, dram=dram, measured=measured, count=5).slowdowns[SMALL]
            assert (found.ratio, found.at_least) == (pytest.approx(20 / 9, rel=0.01), False)
            assert (found.resource, found.neighbours) == (Resource.OTHER, ())


def test_copies_on_full_sms_are_no_bursts() -> None:
    both = replace(STREAMING, copies=10, copied=BANDWIDTH // 5)
    gpu = alone(4).second({OTHER: both}, {OTHER: 0.9}, dram=0.3, count=4).later()
    found = gpu.second({SMALL: SLOWED, OTHER: both}, {SMALL: 0.03, OTHER: 0.9}, dram=0.3, count=5).slowdowns[SMALL]
    assert (found.resource, found.at_least) == (Resource.SMS, False)


def test_a_client_with_copies_or_graphs_only_is_slowed_too() -> None:
    idle = WorkDelta(spans=100, busy_ns=200_000_000, gap_ns=700_000_000)
    for usual in (replace(idle, copies=100, copied=1 << 32), replace(idle, graphs=100, widths=100)):
        gpu = alone(4, usual).second({HEAVY: STREAMING}, {HEAVY: 0.9}, dram=0.8, count=4).later()
        deltas = {SMALL: replace(usual, busy_ns=300_000_000), HEAVY: STREAMING}
        found = gpu.second(deltas, {SMALL: 0.05, HEAVY: 0.9}, dram=0.8, count=5).slowdowns[SMALL]
        assert found.apparent == pytest.approx(10 / 9)


def test_more_time_on_the_cpu_is_no_slowdown() -> None:
    busy_cpu = work(50, 700, gap_ms=900)
    gpu = alone(4).later().second({SMALL: busy_cpu, HEAVY: STREAMING}, {SMALL: 0.03, HEAVY: 0.9}, count=5)
    assert gpu.slowdowns[SMALL].ratio == pytest.approx(20 / 9)


def test_longer_work_of_ten_seconds_is_that_of_the_client_until_it_ends(subtests: pytest.Subtests) -> None:
    """Of each second, 150 ms are as alone. While 0.86 of the SMs are used it waits, else it is doubted."""
    usual, longer = slower(300), SLOWED
    for name, seconds, lost in (
        ("three doubted seconds", ((3, longer, False), (5, longer, True)), 5 * 550),
        ("twelve doubted seconds", ((12, longer, False), (5, longer, True)), 0),
        (
            "twelve doubted seconds, and a usual one",
            ((12, longer, False), (1, usual, False), (5, longer, True)),
            5 * 550,
        ),
        ("twelve seconds in which it waited", ((12, longer, True), (1, longer, False)), 12 * 550),
    ):
        with subtests.test(name):
            gpu, wanted = alone(4, sm=0.4).second({OTHER: STREAMING}, {OTHER: 0.66}, dram=0.01, count=4).later(), 0.0
            for count, delta, is_full in seconds:
                shares = {SMALL: 0.2 if delta is longer else 0.4, OTHER: 0.66 if is_full else 0.3}
                gpu.second({SMALL: delta, OTHER: STREAMING}, shares, count=count)
                wanted += count * (1000 if delta is longer else 900)
            found = gpu.slowdowns[SMALL]
            assert found.at_least
            assert found.ratio == pytest.approx(wanted / (wanted - lost), rel=0.01)


def test_a_small_slowdown_is_no_bound_though_nothing_is_used_up() -> None:
    for ms, at_least in ((360, False), (385, True)):
        gpu = alone(4).later().second({SMALL: slower(ms), OTHER: work(1, 500)}, {SMALL: 0.05, OTHER: 0.5}, count=5)
        found = gpu.slowdowns[SMALL]
        assert found.at_least is at_least
        assert found.ratio == pytest.approx(1.0 if at_least else (600 + ms) / 900)
        assert found.apparent == pytest.approx((600 + ms) / 900)


def test_names_nobody_for_a_bound_that_hardly_exceeds_a_quiet_gpu() -> None:
    """In one second, a neighbour filled the SMs. In the others, nothing was used up."""
    gpu = alone(4).later().second({SMALL: slower(400), OTHER: STREAMING}, {SMALL: 0.05, OTHER: 0.9})
    gpu.second({SMALL: slower(400), OTHER: work(1, 500)}, {SMALL: 0.05, OTHER: 0.5}, count=5)
    found = gpu.slowdowns[SMALL]
    assert found.at_least
    assert found.ratio == pytest.approx(6000 / 5900)
    assert (found.resource, found.neighbours) == (Resource.OTHER, ())


def test_names_neighbours_by_their_part_while_the_client_waited_for_the_main_resource() -> None:
    """It waits for the SMs, a little for the memory, and once it is faster than alone."""
    gpu = alone(4).second({HEAVY: STREAMING}, {HEAVY: 0.9}, dram=0.8, count=4)
    gpu.second({OTHER: STREAMING}, {OTHER: 0.6}, dram=0.01, count=4).later()
    three = {HEAVY: STREAMING, OTHER: STREAMING}
    gpu.second({SMALL: SLOWED, **three}, {SMALL: 0.025, HEAVY: 0.3, OTHER: 0.6}, dram=0.1, count=4)
    gpu.second({SMALL: SLOWED, **three}, {SMALL: 0.025, HEAVY: 0.5, OTHER: 0.4}, dram=0.1, count=2)
    gpu.second({SMALL: slower(200), **three}, {SMALL: 0.05, HEAVY: 0.85, OTHER: 0.05}, dram=0.1, count=4)
    gpu.second({SMALL: slower(500), HEAVY: STREAMING}, {SMALL: 0.05, HEAVY: 0.6}, dram=0.8, count=3)
    found = gpu.slowdowns[SMALL]
    assert found.resource is Resource.SMS
    assert dict(found.neighbours) == pytest.approx({OTHER: (4 * 0.6 + 2 * 0.4) / 6, HEAVY: (4 * 0.3 + 2 * 0.5) / 6})
    assert [pid for pid, _ in found.neighbours] == [OTHER, HEAVY]


def test_a_bound_never_rises_and_ends_on_a_quiet_gpu() -> None:
    """It is the fastest ten seconds in a row, and faster ones replace it."""
    heavy, shares = {HEAVY: STREAMING}, {SMALL: 0.05, HEAVY: 0.9}
    gpu = Gpu().second({SMALL: slower(500), **heavy}, shares, count=10)
    assert latency(gpu) == pytest.approx(500)
    assert latency(gpu.second({SMALL: slower(400), **heavy}, shares, count=10)) == pytest.approx(400)
    assert latency(gpu.second({SMALL: slower(600), **heavy}, shares, count=20)) == pytest.approx(400)
    assert gpu.slowdowns[SMALL].at_least
    gpu.second({SMALL: slower(450)}, {SMALL: 0.05}, count=2)
    assert (latency(gpu), gpu.slowdowns[SMALL].at_least) == (pytest.approx(450), False)


def test_sharing_gain_is_that_of_independent_clients(subtests: pytest.Subtests) -> None:
    """Each wants to work for half of the time, so for a quarter of the time both do."""
    half, hot = work(50, 500), work(50, 550)
    gpu = Gpu()
    for pid in (SMALL, OTHER):
        gpu.second({pid: half}, {pid: 0.4}, count=4)
    gpu.later().second({SMALL: half, OTHER: half}, {SMALL: 0.4, OTHER: 0.4}, count=3)
    assert sharing_gain(gpu.state) == pytest.approx(1 / 0.75)
    # Alone, only the first second can have been slowed down by others.
    later = Gpu().second({SMALL: half}, {SMALL: 0.4}, count=4).later().second({SMALL: hot}, {SMALL: 0.4}, count=3)
    assert sharing_gain(later.state) == pytest.approx(1 - (550 - 520) / (3 * 550), rel=0.005)
    for name, seconds, is_known in (("for less than half of the time", 2, True), ("for longer", 4, False)):
        with subtests.test(name):
            three = {SMALL: half, OTHER: half, HEAVY: STREAMING}
            gpu.second(three, {SMALL: 0.3, OTHER: 0.3, HEAVY: 0.3}, count=seconds)
            assert (sharing_gain(gpu.state) is not None) is is_known
    gpu.second({SMALL: half, HEAVY: STREAMING}, {SMALL: 0.3, HEAVY: 0.6}, count=60)
    assert gpu.slowdowns[HEAVY].at_least
    assert sharing_gain(gpu.state) is None


def parts(gpu: Gpu) -> dict[int, float]:
    """Return the parts of the bandwidth in the last second."""
    return {pid: used.part for pid, used in gpu.state.windows[-1].traffic.items()}


def test_bandwidths_have_their_errors_and_count_by_seconds() -> None:
    gpu = Gpu().second({HEAVY: STREAMING}, {HEAVY: 0.9}, dram=0.8, count=20)
    assert bandwidths(gpu.state)[HEAVY] == pytest.approx(Bandwidth(0.8, 0.04), rel=0.05)
    both = replace(STREAMING, copies=10, copied=BANDWIDTH // 5)
    gpu = Gpu().second({HEAVY: both}, {HEAVY: 0.9}, dram=0.7, count=20)
    assert bandwidths(gpu.state)[HEAVY] == pytest.approx(Bandwidth(0.7, math.hypot(0.025, 0.01)), rel=0.1)
    gpu = Gpu().second({HEAVY: STREAMING}, {HEAVY: 0.9}, dram=0.8, seconds=9.0)
    gpu.second({HEAVY: work(250, 250, each=1, width=132)}, {HEAVY: 0.9}, dram=0.2, seconds=1.0)
    assert bandwidths(gpu.state)[HEAVY].part == pytest.approx(0.74, abs=0.01)


def test_the_bandwidth_is_unknown_if_processes_that_are_not_watched_use_sms() -> None:
    for foreign, is_known in ((0.09, True), (0.11, False)):
        gpu = Gpu().second({HEAVY: STREAMING}, {HEAVY: 0.8, 99: foreign}, dram=0.5, count=2)
        assert (HEAVY in bandwidths(gpu.state)) is is_known


def test_the_bandwidth_follows_kernels_that_change(subtests: pytest.Subtests) -> None:
    """A client that read nothing begins to read, or reads less, while what another one copies is known by its bytes."""
    copying = WorkDelta(copies=10, copied=BANDWIDTH // 5, spans=10, busy_ns=300_000_000)
    both = {HEAVY: STREAMING, OTHER: copying}
    for name, deltas, before, after, count in (
        ("alone", {HEAVY: STREAMING}, 0.0, 0.6, 3),
        ("beside copies", both, 0.21, 0.7, 12),
        ("less, beside copies", both, 0.7, 0.22, 3),
    ):
        with subtests.test(name):
            gpu = Gpu().second(deltas, dict.fromkeys(deltas, 0.3), dram=before, count=12)
            gpu.second(deltas, dict.fromkeys(deltas, 0.3), dram=after, count=count)
            copies = {OTHER: 0.2} if OTHER in deltas else {}
            assert parts(gpu) == pytest.approx({HEAVY: after - sum(copies.values()), **copies}, abs=0.03)
            assert gpu.state.windows[-1].traffic.get(OTHER, Bandwidth(0.2, 0.0)).error < 0.015


def test_copies_in_the_cache_use_no_more_than_their_bytes() -> None:
    """Kernels use 0.3 of the bandwidth. From now on, a client copies 0.2 of it, and 0.7 are used."""
    small = WorkDelta(copies=60_000, copied=BANDWIDTH // 5, spans=10, busy_ns=300_000_000)
    gpu = Gpu().second({HEAVY: STREAMING}, {HEAVY: 0.9}, dram=0.3, count=12)
    gpu.second({HEAVY: STREAMING, OTHER: small}, {HEAVY: 0.8, OTHER: 0.1}, dram=0.7, count=12)
    assert parts(gpu) == pytest.approx({HEAVY: 0.5, OTHER: 0.2}, abs=0.03)


def test_copies_from_the_host_use_bandwidth() -> None:
    upload = WorkDelta(transferred=BANDWIDTH // 5, uploads=10, spans=10, busy_ns=300_000_000)
    gpu = Gpu().second({HEAVY: STREAMING}, {HEAVY: 0.9}, dram=0.3, count=12)
    gpu.second({HEAVY: STREAMING, OTHER: upload}, {HEAVY: 0.9, OTHER: 0.0}, dram=0.5, count=12)
    assert parts(gpu) == pytest.approx({HEAVY: 0.3, OTHER: 0.2}, abs=0.03)


def test_two_quiet_seconds_of_other_work_replace_the_baseline() -> None:
    """The kernels are twice as wide from now on, and take as long as before."""
    gpu = alone().second({SMALL: work(100, 300, gap_ms=600, width=200)}, {SMALL: 0.05}, dram=0.01, count=2).later()
    wide = work(50, 700, gap_ms=300, width=200)
    gpu.second({SMALL: wide, HEAVY: STREAMING}, {SMALL: 0.03, HEAVY: 0.9}, count=5)
    assert gpu.slowdowns[SMALL].ratio == pytest.approx(20 / 9, rel=0.01)
