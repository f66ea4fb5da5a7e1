"""Clients that copy: their SM time, and how it changes what is known of clients with kernels beside them."""

import math

import pytest

from exporter.model.contention import GpuContention
from exporter.model.estimates import ClientEstimates
from exporter.model.launches import ProcessWork
from exporter.model.node import Node
from exporter.model.usage import GpuBusy, LaunchRate, Method, Share, Split, WorkDelta
from exporter.model.values import replace
from exporter.usage.bandwidth import bandwidths
from exporter.usage.contention import with_window, without
from exporter.usage.kernel_times import updated
from tests.builders import AT, CLIENT, GPU
from tests.usage.seconds import BEGAN, NEXT, after, done, present, second, split

BANDWIDTH = 4_800_000_000_000
FULL = 0.88 * BANDWIDTH
"""Bytes a second at which copies use the whole memory, and 110 % of the SMs if there were so many."""
LARGE = 1 << 32
FIRST_NS = BEGAN + 1
SECONDS = 12


def copying(pid: int, seconds: int, moved: float, *, size: float = LARGE, **known: int) -> ProcessWork:
    """Return the work of a client that has moved so many bytes in each second."""
    copied = round(moved * seconds)
    counts = {"copies": max(1, round(copied / size)), "copied": copied, "spans": seconds, "syncs": seconds}
    return ProcessWork(pid=pid, first_ns=FIRST_NS, initialized_ns=FIRST_NS, **{**counts, **known})


IDLE = ProcessWork(pid=NEXT, first_ns=FIRST_NS, initialized_ns=FIRST_NS)


def kernels(seconds: float, milliseconds: float, *, pid: int = CLIENT) -> ProcessWork:
    """Return the work of a client that uses a quarter of the SMs for so many milliseconds of each second."""
    return done(pid, milliseconds * seconds, initialized_ns=FIRST_NS)


QUIET = [(kernels(n, 400), IDLE) for n in range(1, SECONDS)]


def used(
    *seconds: tuple[ProcessWork, ...], sm: float, bandwidth: int = BANDWIDTH, node: Node | None = None, first: int = 1
) -> Node:
    node = node or present(CLIENT, NEXT)
    for number, works in enumerate(seconds, start=first):
        node = after(node, *second(AT + number, *works, sm=sm, bandwidth=bandwidth))
    return node


def shares(node: Node) -> dict[int, tuple[float, float]]:
    """Return the shares and errors of the last window, in percent of all SMs."""
    window = node.attribution[GPU].windows[-1]
    return {pid: (100 * share.sm, 100 * share.error) for pid, share in window.shares.items()}


def beside(moved: float, *, sm: float, **known: int) -> Node:
    """Let one client use 10 % of the SMs, alone at first, and another one copy then."""
    busy = [(kernels(SECONDS - 1 + n, 400), copying(NEXT, n, moved, **known)) for n in range(1, SECONDS)]
    return used(*busy, sm=sm, node=used(*QUIET, sm=0.1), first=SECONDS)


@pytest.mark.parametrize("moved", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("of_most", [0.3, 0.9])
def test_copies_use_what_kernels_leave(moved: float, of_most: float) -> None:
    """They use fewer SMs if others have them, and are hardly slower: their bytes show only the most that they use."""
    sm = min(1.0, 0.1 + of_most * moved)
    found = shares(beside(moved * FULL, sm=sm))
    assert found[CLIENT][0] == pytest.approx(10, abs=1)
    assert found[NEXT][0] == pytest.approx(100 * sm - 10, abs=1)
    assert found[NEXT][1] < 6


def test_copies_use_no_more_than_their_bytes_need() -> None:
    """Neither do kernels use more than was in flight. The rest is unattributed."""
    node = beside(0.1 * FULL, sm=0.5)
    window = node.attribution[GPU].windows[-1]
    assert 100 * window.estimates[NEXT].sm == pytest.approx(1.25 * 11, abs=0.1)
    assert 100 * window.unattributed > 20


def test_many_small_copies_use_a_part_of_an_sm_each() -> None:
    """A copy of 64 KiB takes about 16 us of one SM (H200), and its bytes alone would show a quarter of that."""
    small = 128 << 10
    node = beside(160_000 * small, sm=0.119, size=small)
    assert shares(node)[NEXT][0] == pytest.approx(1.9, abs=0.3)


def test_a_client_with_kernels_and_copies_uses_both() -> None:
    quiet = [(kernels(n, 400), kernels(n, 300, pid=NEXT)) for n in range(1, SECONDS)]
    node = used(*quiet, sm=0.175)
    for n in range(SECONDS, 2 * SECONDS):
        copied = copying(NEXT, n - SECONDS + 1, 0.2 * FULL)
        both = replace(kernels(n, 300, pid=NEXT), copies=copied.copies, copied=copied.copied)
        node = used((kernels(n, 400), both), sm=0.325, node=node, first=n)
    found = shares(node)
    assert found[CLIENT][0] == pytest.approx(10, abs=1)
    assert found[NEXT][0] == pytest.approx(22.5, abs=1)


def test_copies_use_nothing_if_the_kernels_explain_the_busy_sms() -> None:
    """The GPU was slower in this second: the kernels would have used more."""
    node = used((kernels(2 * SECONDS, 500), copying(NEXT, 1, 0.2 * FULL)), sm=0.08, node=beside(0, sm=0.1), first=24)
    assert shares(node)[NEXT][0] == pytest.approx(0, abs=0.5)


def test_two_clients_share_what_is_copied_by_their_bytes() -> None:
    found = shares(
        used(*[(copying(CLIENT, n, 0.6 * FULL), copying(NEXT, n, 0.2 * FULL)) for n in range(1, SECONDS)], sm=0.4)
    )
    assert found[CLIENT][0] == pytest.approx(30, abs=0.1)
    assert found[NEXT][0] == pytest.approx(10, abs=0.1)
    # 5 % of the share, and 15 % of the other client's part of it.
    assert [error for _, error in found.values()] == pytest.approx(
        [math.hypot(1.5, 1.125), math.hypot(0.5, 1.125)], rel=0.02
    )


def test_copies_between_host_and_gpu_use_no_sms() -> None:
    node = beside(0, sm=0.1, copies=0, transfers=100, transferred=10**9, uploads=100)
    assert shares(node)[NEXT] == pytest.approx((0, 0), abs=0.2)
    assert shares(node)[CLIENT][0] == pytest.approx(10, abs=0.1)


def test_of_an_unknown_bandwidth_copies_may_use_all_that_is_left() -> None:
    node = used(*QUIET, sm=0.1, bandwidth=0)
    busy = [(kernels(SECONDS - 1 + n, 400), copying(NEXT, n, 1e11)) for n in range(1, SECONDS)]
    found = shares(used(*busy, sm=0.7, bandwidth=0, node=node, first=SECONDS))
    assert found[NEXT][0] == pytest.approx(60, abs=1)


def test_a_kernel_that_waits_for_copies_is_not_longer_than_before() -> None:
    """It takes 0.1 ms alone. Beside copies of 2 ms, each of its synchronisations takes that long."""
    waits = {"sure_area": 33 * 2_000_000, "area": 33 * 2_000_000, "busy_ns": 2_000_000, "flight_ns": 2_000_000}
    before = kernels(SECONDS - 1, 400)
    node = used(*QUIET, sm=0.1)
    for n in range(1, SECONDS):
        more = 480 * n
        grown = {name: getattr(before, name) + more * each for name, each in waits.items()}
        counts = {"kernels": before.kernels + more, "widths": before.widths + 33 * more, "spans": more}
        sure = {"sure_widths": before.sure_widths + 33 * more, "sure_heights": before.sure_heights + 33 * more}
        work = ProcessWork(pid=CLIENT, first_ns=FIRST_NS, initialized_ns=FIRST_NS, **{**counts, **sure, **grown})
        seen = second(AT + SECONDS - 1 + n, work, copying(NEXT, n, FULL, size=2 * LARGE), sm=0.97, bandwidth=BANDWIDTH)
        node = after(node, *seen)
    found = shares(node)
    assert found[CLIENT][0] == pytest.approx(1.2, abs=0.3)
    assert found[NEXT][0] == pytest.approx(95.8, abs=0.3)


@pytest.mark.parametrize("bandwidth", [BANDWIDTH, 0])
def test_thousands_of_tiny_copies_change_nothing(bandwidth: int) -> None:
    """Frameworks copy some bytes before many kernels. What is known of the clients stays as certain as without."""

    def found(copies: int) -> Node:
        tiny = [{"copies": copies * n, "copied": 64 * copies * n} for n in range(1, SECONDS)]
        works = [
            (done(CLIENT, 400 * n, initialized_ns=FIRST_NS, **each), kernels(n, 300, pid=NEXT))
            for n, each in enumerate(tiny, start=1)
        ]
        return used(*works, sm=0.18, bandwidth=bandwidth)

    plain, with_copies = found(0), found(5000)
    for pid, share in shares(plain).items():
        assert shares(with_copies)[pid] == pytest.approx(share, rel=1e-3)
    assert split(with_copies).shares[CLIENT].error == pytest.approx(split(plain).shares[CLIENT].error, rel=1e-3)


def test_what_an_earlier_process_copied_is_forgotten_with_it() -> None:
    state = with_window(
        GpuContention(),
        LaunchRate(seconds=1.0, deltas={CLIENT: WorkDelta(copies=1000, copied=10**11)}, bandwidth=BANDWIDTH),
        Split(at=AT, seconds=1.0, sm=0.1, shares={CLIENT: Share(method=Method.FLIGHT, sm=0.1)}, dram=0.01),
        frozenset({CLIENT}),
        {},
    )
    assert state.traffic.pids == {-CLIENT}
    assert not without(state, {CLIENT}).traffic.pids


def parts(*seconds: tuple[float, int, float], bandwidth: int = BANDWIDTH) -> dict[int, float]:
    """Return the parts of the bandwidth after phases: what GPM measured, what the second client copied, and its size.

    The first one launches kernels meanwhile.
    """
    state, at = GpuContention(), AT
    for dram, copied, size in seconds:
        for _ in range(12):
            at += 1
            deltas = {CLIENT: WorkDelta(kernels=1000, widths=33_000, spans=100)}
            deltas[NEXT] = WorkDelta(copied=copied, copies=round(copied / size))
            shares = {pid: Share(method=Method.FLIGHT, sm=0.3) for pid in deltas}
            window = Split(at=at, seconds=1.0, sm=0.6, dram=dram, shares=shares)
            rate = LaunchRate(seconds=1.0, deltas=deltas, bandwidth=bandwidth)
            state = with_window(state, rate, window, frozenset(deltas), {})
    last = GpuContention(windows=state.windows[-1:])
    return {pid: each.part for pid, each in bandwidths(last).items()}


CACHED, UNCACHED = (0.3, BANDWIDTH * 4 // 10, 1 << 24), (0.7, BANDWIDTH * 4 // 10, LARGE)
"""While kernels use 0.3 of the bandwidth, copies move 0.4 of it, within the cache or not."""


def test_the_bandwidth_of_copies_follows_their_size() -> None:
    alone = (0.3, 0, 1)
    assert parts(alone, UNCACHED, CACHED) == pytest.approx({CLIENT: 0.3, NEXT: 0}, abs=0.01)
    assert parts(alone, CACHED, UNCACHED) == pytest.approx({CLIENT: 0.3, NEXT: 0.4}, abs=0.01)
    assert parts(alone, UNCACHED, alone, CACHED, UNCACHED) == pytest.approx({CLIENT: 0.3, NEXT: 0.4}, abs=0.01)


def test_if_the_bandwidth_is_unknown_kernels_do_not_get_the_part_of_large_copies() -> None:
    assert parts((0.3, 0, 1), bandwidth=0)[CLIENT] == pytest.approx(0.3)
    assert not parts((0.3, 0, 1), UNCACHED, bandwidth=0)


CAPACITY = 132e9
"""All SMs for a second, in nanoseconds of one SM."""


def launches(in_flight_ms: float, *, spans: int = 100, gap_ms: float = 0.0) -> WorkDelta:
    """Return a second of kernels of 33 SMs. The client waits for each, which takes 14 us in addition."""
    flight = round(spans * (in_flight_ms + 0.014) * 1e6)
    sure = {"sure_area": 33 * flight, "sure_widths": 33 * spans, "sure_heights": 33 * spans}
    counts = {"kernels": spans, "spans": spans, "widths": 33 * spans, "area": 33 * flight, "busy_ns": flight}
    return WorkDelta(**counts, **sure, gap_ns=round(spans * gap_ms * 1e6))


def copies(ms: float, fraction: float) -> WorkDelta:
    """Return a second with copies that take so long, for a fraction of the time."""
    count = round(1000 * fraction / ms)
    return WorkDelta(copies=count, copied=round(FULL * ms / 1000) * count)


def estimated(
    *deltas: WorkDelta, known: tuple[float, float] | None = None, busy: float | None = None
) -> tuple[float, float]:
    """Return the kernel time of the first client, and its standard error, in milliseconds after a second.

    They may be `known` before. `busy` is the fraction of the SMs that GPM measured, if it did.
    """
    estimates = ClientEstimates()
    if known is not None:
        estimates = estimates.with_observed(0, known[0] * 1e6, known[1] * 1e6)
    gpu = GpuBusy(
        seconds=1.0, capacity=CAPACITY, busy=(busy or 0.0) * CAPACITY, measured=busy is not None, bandwidth=BANDWIDTH
    )
    estimates = updated(estimates, dict(enumerate(deltas)), gpu, complete=busy is not None)
    return (estimates.mean(0) or 0.0) / 1e6, estimates.standard_deviation(0) / 1e6


def test_a_kernel_waits_for_a_part_of_the_copies(subtests: pytest.Subtests) -> None:
    """It takes 0.1 ms. A launch at any time waits for half a copy, and one that follows soon for the rest of it."""
    for name, gap_ms, wait_ms, others in (
        ("at any time", 5, 0.25, [copies(0.5, 1.0)]),
        ("at once", 0, 0.5, [copies(0.5, 1.0)]),
        ("soon", 0.2, 0.3, [copies(0.5, 1.0)]),
        ("while copies run now and then", 0, 0.2, [copies(0.5, 0.4)]),
        ("copies that began in the second before", 0, 0.5, [copies(0.5, 2.0)]),
        ("copies of two sizes", 0, 0.3, [copies(0.5, 0.5), copies(0.1, 0.5)]),
    ):
        with subtests.test(name):
            mean, error = estimated(launches(0.1 + wait_ms, gap_ms=gap_ms), *others)
            assert mean == pytest.approx(0.1, abs=0.01)
            # It is not known when they began.
            assert error > wait_ms


def test_the_wait_of_a_known_client_for_copies_is_less_certain_than_its_bursts() -> None:
    assert estimated(launches(0.1), known=(0.3, 0.2))[1] < 0.02
    assert estimated(launches(0.6), copies(0.5, 1.0), known=(0.3, 0.2))[1] == pytest.approx(0.08, abs=0.005)


def test_a_longer_kernel_beside_copies_on_most_sms_is_no_observation() -> None:
    """It may have waited. Beside no copies, and if its own kernels fill the GPU, it is one."""
    usual, short = (0.1, 0.02), copies(0.001, 0.9)
    assert estimated(launches(0.16), short, known=usual)[0] == pytest.approx(0.1, abs=0.005)
    assert estimated(launches(0.16), known=usual)[0] > 0.14
    assert estimated(launches(0.16, spans=16000), known=usual)[0] > 0.14


def test_copies_that_may_have_used_the_rest_of_the_sms_leave_the_kernels_open(subtests: pytest.Subtests) -> None:
    """The kernels are known to use 10 % of the SMs, and the copies use at most 1.1 times their time of all SMs."""
    work = {"area": 0, "sure_area": 0, "sure_widths": 0, "sure_heights": 0, "bound": round(CAPACITY)}
    unseen = replace(launches(1.0, spans=400), **work)
    for name, fraction, busy, mean, error in (
        ("copies explain the rest", 0.04, 0.13, 1.0, 0.3),
        ("the kernels use all", 0.04, 0.08, 0.84, 0.13),
        ("few copies", 0.008, 0.105, 1.0, 0.107),
    ):
        with subtests.test(name):
            found = estimated(unseen, copies(0.5, fraction), known=(1.0, 0.3), busy=busy)
            assert found == (pytest.approx(mean, abs=0.05), pytest.approx(error, rel=0.05))
