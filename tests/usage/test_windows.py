"""Attribution of one window of SM time."""

from collections.abc import Mapping

import pytest

from exporter.model.estimates import ClientEstimates
from exporter.model.identity import Workload, WorkloadKind
from exporter.model.launches import WorkReading
from exporter.model.node import Node
from exporter.model.observation import GpuReading, ProcessUtilization
from exporter.model.settings import VISIBLE_DEVICES
from exporter.model.sharing import GpuUse
from exporter.model.usage import GpuBusy, Method, Share, SharedAccount, Split, Usage, WorkDelta
from exporter.model.values import replace
from exporter.usage import kernel_times
from exporter.usage.capacity import IDLE_BELOW
from exporter.usage.last_minute import combined, fresh_splits
from tests.builders import AT, CLIENT, GPU, OTHER_GPU, SERVER, active, clients, exited, gpu_reading, process, server_log
from tests.usage.seconds import BESIDE, BOTH, NEXT, TICKS, after, busy, done, last, posted, present, second, split
from tests.works import boot_ns


def test_two_probed_clients_share_by_their_launches() -> None:
    """Three times as much work is three times the share."""
    node = after(present(CLIENT, NEXT), *BOTH)
    assert last(node) == pytest.approx({CLIENT: 20, NEXT: 7}, abs=1)
    assert posted(node)["user-600"] > 2.5 * posted(node)["user-601"] > 0


def test_the_first_window_is_unattributed() -> None:
    node = after(present(CLIENT, NEXT), *busy(AT + 1, done(CLIENT, 900), done(NEXT, 300)))
    assert last(node) == {}
    assert posted(node) == {"unattributed": 500}


def test_without_probes_all_is_unattributed() -> None:
    uses = [GpuUse(at=AT + n, gpu=GPU, seconds=1.0, sm_utilization=0.5) for n in (1, 2)]
    assert last(after(present(CLIENT, NEXT), *uses)) == {}


def test_a_client_without_probes_has_no_share() -> None:
    node = after(
        present(CLIENT, NEXT),
        *second(AT + 1, done(CLIENT, 0), watched=[CLIENT]),
        *second(AT + 2, done(CLIENT, 900), watched=[CLIENT]),
    )
    window = node.attribution[GPU].windows[-1]
    assert (window.estimates.keys(), window.unknown) == ({CLIENT}, {NEXT})
    assert window.estimates[CLIENT].method is Method.FLIGHT


class TestAlone:
    """A single client used everything, which is measured."""

    def test_the_only_client(self) -> None:
        """Measured by the GPU, for any counts of the probes."""
        node = after(present(CLIENT), *busy(AT + 1), *busy(AT + 2))
        assert last(node) == {CLIENT: 50}
        assert split(node).shares[CLIENT].method is Method.MEASURED

    def test_a_new_client_was_maybe_not_alone_in_its_first_window(self) -> None:
        node = after(present(), *busy(AT + 1))
        node = after(node, clients(CLIENT, at=AT + 1.5), *busy(AT + 2, watched=()))
        assert last(node) == {}

    def test_a_client_that_exits_was_alone_until_then(self) -> None:
        node = after(present(CLIENT), *busy(AT + 1), exited(CLIENT, ticks=TICKS, at=AT + 1.5), *busy(AT + 2))
        assert last(node) == {CLIENT: 50}
        assert posted(node)["user-600"] == 500
        assert last(after(node, *busy(AT + 3))) == {}


class TestComingAndGoing:
    """Clients that start and exit within a second."""

    def test_the_last_launches_of_an_exited_client_count(self) -> None:
        """They are reported once more, and not attributed to others."""
        node = after(present(CLIENT, NEXT), *BOTH, exited(NEXT, ticks=TICKS, at=AT + 2.5))
        before = posted(node)
        node = after(node, *second(AT + 3, done(CLIENT, 1800), done(NEXT, 600), watched=[CLIENT]))
        assert last(node) == pytest.approx({CLIENT: 20, NEXT: 7}, abs=2)
        assert posted(node)["user-601"] - before["user-601"] == pytest.approx(70, abs=20)

    def test_a_client_that_ran_between_two_readings_counts(self) -> None:
        node = after(present(CLIENT), *second(AT + 1, done(CLIENT, 0)), *second(AT + 2, done(CLIENT, 900)))
        brief = (clients(CLIENT, NEXT, at=AT + 2.2), process(NEXT, ticks=TICKS, user="user-601"))
        node = after(node, *brief, exited(NEXT, ticks=TICKS, at=AT + 2.7))
        node = after(node, *second(AT + 3, done(CLIENT, 1800), done(NEXT, 300), watched=[CLIENT]))
        assert posted(node)["user-601"] == pytest.approx(70, abs=20)

    def test_launches_of_an_earlier_process_with_the_pid_do_not_count(self) -> None:
        """The counts are of a process that started before."""
        node = after(present(CLIENT, NEXT), *BOTH, process(NEXT, ticks=boot_ns(AT + 2) // 10_000_000, user="new"))
        node = after(node, clients(CLIENT, NEXT, at=AT + 2.3))
        node = after(node, *second(AT + 3, done(CLIENT, 1800), done(NEXT, 600)))
        assert NEXT not in last(node)
        assert "new" not in posted(node)
        assert NEXT not in node.attribution[GPU].estimates.pids

    def test_a_new_process_starts_at_0(self) -> None:
        """Counts lower than those of the earlier process are not negative work."""
        began = boot_ns(AT + 2)
        node = after(present(CLIENT, NEXT), *BOTH, process(NEXT, ticks=began // 10_000_000, user="new"))
        node = after(node, clients(CLIENT, NEXT, at=AT + 2.3))
        node = after(node, *second(AT + 3, done(CLIENT, 1800), done(NEXT, 200, first_ns=began + 10_000_000)))
        assert last(node)[NEXT] == pytest.approx(5, abs=1)


class TestBypassing:
    """Bypassing processes, by NVML's samples."""

    def rows(self, bypassing: int, server: int) -> tuple[ProcessUtilization, ...]:
        """Return the utilization samples of both."""
        return tuple(
            ProcessUtilization(pid=pid, timestamp_us=1, sm_percent=percent)
            for pid, percent in ((BESIDE, bypassing), (SERVER, server))
        )

    def node(self, rows: tuple[ProcessUtilization, ...] | None) -> Node:
        """Return a node after two readings, which show a bypassing process."""
        node = present(CLIENT)
        for at in (AT + 5, AT + 40, AT + 80):
            node = after(node, gpu_reading([CLIENT], beside=[BESIDE], at=at, process_utilization=rows))
        assert node.gpus[GPU].bypassing == (BESIDE,)
        return after(node, *busy(AT + 81), *busy(AT + 82))

    def test_clients_and_bypassing_process_have_their_parts(self) -> None:
        """The bypassing process ran for a quarter of the time."""
        node = self.node(self.rows(10, 30))
        assert last(node) == {BESIDE: 12, CLIENT: 38}
        assert split(node).shares[BESIDE].method is Method.MEASURED

    @pytest.mark.parametrize("rows", [None, ()], ids=["not reported", "no samples"])
    def test_without_samples_the_time_is_unattributed(self, rows: tuple[ProcessUtilization, ...] | None) -> None:
        """It does not prove that the client used nothing, and changes no estimate."""
        node = self.node(rows)
        assert last(node) == {}
        assert split(node).unattributed > 0


def without_gpm(at: float, *, energy: int = 0) -> GpuReading:
    """Return a reading without GPM, in which a kernel of the server ran for 40 % of the time."""
    row = ProcessUtilization(pid=SERVER, timestamp_us=1, sm_percent=40)
    return gpu_reading([CLIENT], at=at, process_utilization=(row, row), gpu_percent=40, energy_millijoules=energy)


class TestWithoutGpm:
    """The time with any kernel running is not SM time."""

    def test_sm_time_is_estimated_by_launches(self) -> None:
        """The client had work in flight on a quarter of the SMs for 90 % of the time: NVML allows 40 % at most."""
        node = present(CLIENT)
        for at in range(21):
            node = after(node, second(AT + at, done(CLIENT, 900 * at), watched=[CLIENT])[0])
            if at % 10 == 0:
                node = after(node, without_gpm(AT + at))
        found = split(node)
        share = found.shares[CLIENT]
        assert (share.method, found.measured, found.unattributed) == (Method.LAUNCHES, False, 0)
        assert share.sm == found.sm < 0.25
        assert share.error > 0.2 * share.sm
        windows = node.attribution[GPU].windows
        assert [window.seconds for window in windows] == [10, 10]
        assert node.usage_totals.gpus[GPU].total.sm_us == pytest.approx(
            10e6 * sum(window.sm for window in windows), rel=0.01
        )

    def test_the_first_window_is_divided_by_the_readings_that_are_remembered(self) -> None:
        node = after(present(CLIENT), without_gpm(AT))
        for at in range(3, 11):
            node = after(node, second(AT + at, done(CLIENT, 900 * at), watched=[CLIENT])[0])
        node = after(node, without_gpm(AT + 10))
        assert 0 < split(node).shares[CLIENT].sm < 0.25

    def test_kernel_times_of_a_client_alone_are_learned_between_two_readings_of_nvml(self) -> None:
        """Its kernels take 100 us with a synchronisation, which is 14 us of that."""
        node = after(present(CLIENT), without_gpm(AT), *second(AT + 1, done(CLIENT, 0), watched=[CLIENT])[:1])
        assert node.attribution[GPU].estimates.mean(CLIENT) is None
        node = after(node, *second(AT + 2, done(CLIENT, 900), watched=[CLIENT])[:1])
        assert node.attribution[GPU].estimates.mean(CLIENT) == pytest.approx(86_000, rel=0.02)

    def test_no_sm_time_is_reported_without_probes(self) -> None:
        node = after(present(CLIENT), *(without_gpm(AT + at) for at in (10, 20, 30)))
        assert node.splits == {}
        assert node.usage_totals.gpus[GPU].total.sm_us == 0

    def test_energy_is_unattributed_if_the_use_of_a_client_is_unknown(self) -> None:
        """Otherwise the other client would pay for both."""
        node = present(CLIENT, NEXT)
        for at in range(31):
            node = after(node, second(AT + at, done(CLIENT, 900 * at), watched=[CLIENT])[0])
            if at % 10 == 0:
                node = after(node, without_gpm(AT + at, energy=1000 * at))
        assert split(node).shares.keys() == {CLIENT}
        energies = {key: used.energy_mj for key, used in node.usage_totals.gpus[GPU].by_account.items()}
        assert energies == {(SharedAccount.UNATTRIBUTED, None): 30_000}

    def test_energy_is_unattributed(self) -> None:
        """There is no basis to divide it. The parts still add up."""
        node = after(present(CLIENT), *(without_gpm(AT + at, energy=1000 * at) for at in (10, 20, 30)))
        usage = node.usage_totals.gpus[GPU]
        assert usage.by_account == {(SharedAccount.UNATTRIBUTED, None): Usage(energy_mj=20_000)}
        assert usage.total == Usage(energy_mj=20_000)

    def test_nothing_is_added_for_the_time_after_gpm_was_lost(self) -> None:
        node = after(present(CLIENT), gpu_reading([CLIENT], at=AT + 10, sm_utilization=0.4, gpm_seconds=10.0))
        assert node.usage_totals.gpus[GPU].total.sm_us == 4_000_000
        node = after(node, *(without_gpm(AT + at) for at in (30, 40, 50)))
        assert node.usage_totals.gpus[GPU].total.sm_us == 4_000_000
        assert len(node.attribution[GPU].windows) == 1


class TestReadings:
    """GPM in full readings and in its own readings."""

    def test_a_full_reading_adds_nothing_while_gpm_is_read_by_itself(self) -> None:
        row = ProcessUtilization(pid=SERVER, timestamp_us=1, sm_percent=40)
        node = after(present(CLIENT), *busy(AT + 1), *busy(AT + 2))
        node = after(
            node, gpu_reading([CLIENT], at=AT + 3, process_utilization=(row,), sm_utilization=0.4, gpm_seconds=3)
        )
        assert node.usage_totals.gpus[GPU].total.sm_us == 1_000_000


class TestTimes:
    """Late, repeated and wrong times."""

    def test_repeated_and_late_readings_add_nothing(self) -> None:
        node = after(present(CLIENT, NEXT), *BOTH)
        again = after(node, *reversed(BOTH), *BOTH)
        assert again.usage_totals == node.usage_totals
        assert again.attribution[GPU].windows == node.attribution[GPU].windows

    def test_old_launch_counts_are_not_used(self) -> None:
        node = after(present(CLIENT, NEXT), *BOTH, GpuUse(at=AT + 9, gpu=GPU, seconds=6.9, sm_utilization=0.5))
        assert last(node) == {}

    def test_a_missed_gpm_reading_is_covered_by_the_next(self) -> None:
        """Launches of both seconds explain the SM time of both."""
        work, _ = second(AT + 3, done(CLIENT, 1800), done(NEXT, 600))
        later, _ = second(AT + 4, done(CLIENT, 2700), done(NEXT, 900))
        node = after(present(CLIENT, NEXT), *BOTH, work, later)
        node = after(node, GpuUse(at=AT + 4.1, gpu=GPU, seconds=2.0, sm_utilization=0.26))
        assert last(node) == pytest.approx({CLIENT: 20, NEXT: 7}, abs=2)

    @pytest.mark.parametrize(("after_gpm", "posts"), [(14.0, False), (16.0, True)])
    def test_readings_of_the_gpu_count_when_those_of_gpm_have_ended(self, after_gpm: float, *, posts: bool) -> None:
        node = after(present(CLIENT), *busy(AT + 1), *busy(AT + 2))
        read = gpu_reading({CLIENT: 100}, at=AT + 2.1 + after_gpm, sm_utilization=0.4, gpm_seconds=10.0)
        total = after(node, read).usage_totals.gpus[GPU].total.sm_us
        assert (total > node.usage_totals.gpus[GPU].total.sm_us) is posts

    @pytest.mark.parametrize("step", [-3600.0, 3600.0], ids=["back", "forward"])
    def test_a_clock_step_loses_at_most_one_window(self, step: float) -> None:
        """The last minute does not contain future times."""
        node = after(present(CLIENT, NEXT), *BOTH)
        for n in (3, 4):
            work, use = second(AT + n, done(CLIENT, 900 * (n - 1)), done(NEXT, 300 * (n - 1)))
            node = after(node, replace(work, at=work.at + step), replace(use, at=use.at + step))
        assert last(node) == pytest.approx({CLIENT: 20, NEXT: 7}, abs=2)
        assert node.usage_totals.gpus[GPU].total.sm_us == 4 * 260_000
        assert all(abs(each.at - AT - step) < 60 for each in node.attribution[GPU].windows)

    @pytest.mark.parametrize("seconds", [0.0, -1.0, 1e9, float("nan")])
    def test_an_impossible_window_is_dropped(self, seconds: float) -> None:
        """Also one whose use is not a number."""
        strange = GpuUse(at=AT + 3, gpu=GPU, seconds=seconds, sm_utilization=0.5)
        nonsense = GpuUse(at=AT + 3, gpu=GPU, seconds=1.0, sm_utilization=float("nan"))
        node = after(present(CLIENT), *BOTH)
        assert after(node, strange, nonsense).usage_totals == node.usage_totals


class TestSeveralGpus:
    """A client's launches count on the GPU of their context, if it is known."""

    def node(self) -> Node:
        """Return a node with one client on both GPUs and one on the first."""
        node = after(present(CLIENT, NEXT), gpu_reading([CLIENT], gpu=OTHER_GPU, index=1))
        lines = [f"Device NVIDIA H200 (uuid {gpu}) is associated" for gpu in (GPU, OTHER_GPU)]
        return after(node, *server_log(*lines, active(CLIENT, 1), active(CLIENT, 2)))

    def test_the_only_client_of_a_gpu_has_all_of_its_time(self) -> None:
        """It has a share of the other GPU, too, because its launches may be on either."""
        node = self.node()
        for n in (1, 2):
            works = done(CLIENT, 900 * (n - 1)), done(NEXT, 300 * (n - 1))
            node = after(node, *busy(AT + n, *works, gpus=(GPU, OTHER_GPU)))
        assert last(node, OTHER_GPU) == {CLIENT: 50}
        assert last(node)[CLIENT] > 0

    @pytest.mark.parametrize(
        ("visible", "ratio"), [(None, 2.0), ("0,1", 2.0), ("1,0", 0.22)], ids=["all", "same order", "reversed"]
    )
    def test_a_client_is_divided_by_what_it_launched_on_each_gpu(self, visible: str | None, ratio: float) -> None:
        """It launched nine times as much on its first device. The client may count the devices in its own order."""
        node = self.node()
        ((name, daemon),) = node.daemons.items()
        runtime = replace(daemon.runtime, devices={0: GPU, 1: OTHER_GPU})
        node = replace(node, daemons={name: replace(daemon, runtime=runtime)})
        environment = {} if visible is None else {VISIBLE_DEVICES: visible}
        node = after(node, process(CLIENT, ticks=TICKS, environment=environment))
        for n in range(1, 4):
            parts = [replace(done(CLIENT, part * (n - 1)), device=device) for device, part in ((0, 900), (1, 100))]
            whole = done(CLIENT, 1000 * (n - 1))
            work, *uses = busy(AT + n, whole, done(NEXT, 450 * (n - 1)), gpus=(GPU, OTHER_GPU))
            assert isinstance(work, WorkReading)
            node = after(node, replace(work, on_devices=tuple(parts)), *uses)
        estimates = node.attribution[GPU].windows[-1].estimates
        assert estimates[CLIENT].sm / estimates[NEXT].sm == pytest.approx(ratio, rel=0.35)

    def test_a_client_that_has_changed_its_devices_is_not_taken_for_idle(self) -> None:
        """It has hidden the first GPU inside its process: its device 0 is the second."""
        node = after(present(CLIENT, NEXT), gpu_reading([CLIENT, NEXT], gpu=OTHER_GPU, index=1))
        node = after(node, gpu_reading([], index=0, at=AT))
        ((name, daemon),) = node.daemons.items()
        runtime = replace(daemon.runtime, devices={0: GPU, 1: OTHER_GPU})
        clients = {pid: replace(each, gpus=frozenset({OTHER_GPU})) for pid, each in daemon.clients.items()}
        node = replace(node, daemons={name: replace(daemon, runtime=runtime, clients=clients)})
        node = after(node, *(process(pid, ticks=TICKS, environment={}) for pid in (CLIENT, NEXT)))
        for n in range(1, 4):
            counts = [done(CLIENT, 900 * (n - 1)), done(NEXT, 300 * (n - 1))]
            work, *uses = busy(AT + n, *counts, gpus=(OTHER_GPU,))
            assert isinstance(work, WorkReading)
            node = after(node, replace(work, on_devices=tuple(replace(each, device=0) for each in counts)), *uses)
        estimates = node.attribution[OTHER_GPU].windows[-1].estimates
        assert 2.5 < estimates[CLIENT].sm / estimates[NEXT].sm < 4.5


@pytest.mark.parametrize("gpm", [{}, {"gpm_seconds": 1.0, "sm_utilization": 0.5}])
def test_a_gpu_in_mig_mode_has_no_sm_time_of_its_own(gpm: Mapping[str, float]) -> None:
    """What GPM reports for the whole GPU is the time of its instances, which have it."""
    node = present(CLIENT)
    for at in (AT + 5, AT + 10):
        node = after(node, gpu_reading([CLIENT], at=at, mig_mode=True, **gpm))
    assert node.splits == {}
    assert node.usage_totals.gpus[GPU].total.sm_us == 0


def test_unattributed_time_is_posted() -> None:
    node = after(present(CLIENT, NEXT), *BOTH)
    usage = node.usage_totals.gpus[GPU]
    assert sum(used.sm_us for used in usage.by_account.values()) == usage.total.sm_us == 2 * 260_000
    assert {account for account, _ in usage.by_account} == {
        SharedAccount.UNATTRIBUTED,
        *(Workload(kind=WorkloadKind.USER, name=f"user-{pid}") for pid in (CLIENT, NEXT)),
    }


def test_time_of_an_unknown_workload_is_unattributed_without_a_method() -> None:
    node = after(replace(present(CLIENT, NEXT), processes={}), *BOTH)
    assert {*node.usage_totals.gpus[GPU].by_account} == {(SharedAccount.UNATTRIBUTED, None)}


def test_a_client_with_a_lately_unknown_use_has_no_share() -> None:
    """It was idle for a while; later its use is unknown."""
    node = present(CLIENT, NEXT)
    works = done(CLIENT, 0), done(NEXT, 0)
    for at in range(1, 30):
        node = after(node, *second(AT + at, *works, sm=0.0))
    for at in range(30, 60):
        node = after(node, *second(AT + at, *works, sm=0.5, watched=()))
    found = fresh_splits(node)[GPU]
    assert found.shares == {}
    assert found.unattributed == pytest.approx(0.25, abs=0.01)


# Sum of the windows of a minute, and the error for unknown windows.


A, B = 600, 601
BOTH_MINUTE = frozenset({A, B})


def window(
    sm: float,
    shares: Mapping[int, float] | None = None,
    *,
    unknown: frozenset[int] = frozenset(),
    method: Method = Method.FLIGHT,
    error: float = 0.001,
    **known: object,
) -> Split:
    """Return one second in which `sm` of the SMs were busy."""
    known_shares = {pid: Share(method=method, sm=each, error=error) for pid, each in (shares or {}).items()}
    rest = sm - sum(share.sm for share in known_shares.values())
    return Split(at=0, seconds=1.0, sm=sm, shares=known_shares, unattributed=rest, unknown=unknown, **known)


def minute(*windows: Split) -> Split:
    """Return the sum of the windows, and check that the parts add up."""
    found = combined(windows)
    assert found.unattributed >= 0
    assert sum(share.sm for share in found.shares.values()) + found.unattributed == pytest.approx(found.sm)
    return found


def test_the_used_bandwidth_is_the_mean_over_the_time_in_which_it_is_known() -> None:
    assert minute(*20 * [window(0.5, dram=0.6)], *40 * [window(0.5)]).dram == pytest.approx(0.6)


class TestUnknown:
    """A client without an estimate used at most the unattributed time."""

    def test_a_share_is_the_mean_over_the_time_in_which_it_is_known(self) -> None:
        split = minute(*40 * [window(0.2, {A: 0.1, B: 0.1})], *20 * [window(0.2, unknown=BOTH_MINUTE)])
        assert split.shares[A].sm == pytest.approx(0.1)
        assert split.unattributed == pytest.approx(0)

    def test_the_error_covers_the_unknown_time(self) -> None:
        """In that time, the client used between nothing and all of the unattributed time."""
        share = minute(*40 * [window(0.2, {A: 0.1, B: 0.1})], *20 * [window(0.2, unknown=BOTH_MINUTE)]).shares[A]
        nothing, everything = 40 * 0.1 / 60, (40 * 0.1 + 20 * 0.2) / 60
        assert share.sm - 2 * share.error <= nothing < everything <= share.sm + 2 * share.error

    def test_no_share_exceeds_the_use_of_the_gpu(self) -> None:
        """The GPU was less busy in the unknown time."""
        split = minute(*40 * [window(0.2, {A: 0.1, B: 0.1})], *20 * [window(0.0, unknown=BOTH_MINUTE)])
        assert split.shares[A].sm == pytest.approx(40 * 0.1 / 60)
        assert split.shares[A].error == pytest.approx(40 * 0.001 / 60)

    def test_a_client_used_nothing_before_it_existed(self) -> None:
        """The value has no error."""
        share = minute(*30 * [window(0.1, {B: 0.1})], *30 * [window(0.2, {A: 0.1, B: 0.1})]).shares[A]
        assert share == Share(method=Method.FLIGHT, sm=pytest.approx(0.05), error=pytest.approx(0.0005))

    def test_a_client_that_may_have_used_nothing_or_all_has_no_share(self) -> None:
        known = window(0.4, {A: 0.4, B: 0.0}, error=0.0)
        split = minute(*2 * [known], *58 * [window(0.4, unknown=BOTH_MINUTE)])
        assert split.shares == {}
        assert split.unattributed == pytest.approx(0.4)

    def test_a_client_that_is_mostly_unknown_has_a_share_with_a_large_error(self) -> None:
        split = minute(*25 * [window(0.1, {B: 0.1})], *35 * [window(0.1, unknown=BOTH_MINUTE)])
        assert split.shares[B].sm == pytest.approx(0.1)
        assert split.shares[B].error > 0.025

    def test_a_low_share_with_unknown_time_is_not_idle(self) -> None:
        """The client may have used half of the GPU in the unknown time."""
        rest = window(0.5, {B: 0.3}, unknown=frozenset({A}))
        share = minute(*40 * [window(0.3, {A: 0.002, B: 0.298})], *20 * [rest]).shares[A]
        assert share.sm + 2 * share.error >= (40 * 0.002 + 20 * 0.2) / 60
        assert share.sm + share.error > IDLE_BELOW

    def test_a_client_with_a_large_error_has_no_share(self) -> None:
        """Its use is known within 70 points only."""
        unsure = {A: Share(method=Method.FLIGHT, sm=0.4, error=0.35)}
        assert minute(*60 * [window(0.9, withheld=unsure)]).shares == {}


class TestWithheld:
    """An estimate that is too uncertain for one window counts in the minute, with its error."""

    def test_estimate_and_error_are_added(self) -> None:
        unsure = {A: Share(method=Method.FLIGHT, sm=0.1, error=0.05)}
        share = minute(*30 * [window(0.1, {A: 0.1})], *30 * [window(0.1, withheld=unsure)]).shares[A]
        assert share.sm == pytest.approx(0.1)
        assert share.error == pytest.approx((0.001 + 0.05) / 2)


class TestMethods:
    """Methods of the windows of one minute."""

    def test_measured_and_estimated_windows_are_an_estimate_together(self) -> None:
        alone = window(0.4, {A: 0.4}, method=Method.MEASURED, error=0.0)
        windows = 30 * [alone] + 30 * [window(0.3, {A: 0.2, B: 0.1})]
        for each in (windows, windows[::-1]):
            assert minute(*each).shares[A].method is Method.FLIGHT
            assert minute(*each).shares[A].sm == pytest.approx(0.3)


# Estimates of kernel times.


SECOND_NS = 1_000_000_000
SMS = 132
CAPACITY = float(SMS * SECOND_NS)


def kernels_in_flight(count: int, nanoseconds: int) -> WorkDelta:
    """Return kernels on all SMs, each followed by a synchronisation. Work is always in flight."""
    area, widths = SMS * SECOND_NS, SMS * count
    sure = count * SMS * (nanoseconds + kernel_times.SYNC_NS)
    return WorkDelta(
        kernels=count, spans=count, widths=widths, area=area, sure_area=sure, sure_widths=widths, sure_heights=widths
    )


def test_a_length_that_changes_slowly_for_an_hour_is_followed() -> None:
    estimates, length = ClientEstimates().with_observed(1, 100.0, 50.0), 100.0
    for _ in range(3600):
        length *= 1.0002
        estimates = estimates.measured({1: 1.0}, length, 2.0, 1.0).solved({})
    assert estimates.mean(1) == pytest.approx(length, rel=0.02)


def test_an_estimate_that_is_raised_to_0_lowers_the_others() -> None:
    """Together they used 100. The difference, which is less certain, would make the first -20."""
    estimates = ClientEstimates(scaled=False).with_observed(1, 50.0, 50.0).with_observed(2, 50.0, 50.0)
    estimates = estimates.measured({1: 1.0, 2: 1.0}, 100.0, 0.1, 1.0).measured({1: -1.0, 2: 1.0}, 140.0, 1.0, 1.0)
    estimates = estimates.solved({})
    assert estimates.mean(1) == 0
    assert abs((estimates.mean(2) or 0.0) - 100) < 1


def test_a_known_kernel_time_stays_known_when_other_clients_fill_the_gpu() -> None:
    """Its kernels took 600 us alone. Now they wait, and take 700 us."""
    deltas = {1: kernels_in_flight(1200, 700_000), 2: kernels_in_flight(1200, 700_000)}
    full = GpuBusy(seconds=1.0, capacity=CAPACITY, busy=CAPACITY, measured=True)
    alone = ClientEstimates().with_observed(1, 600_000.0, 10_000.0)
    estimates = kernel_times.updated(alone.with_observed(2, 230_000.0, 100_000.0), deltas, full, complete=True)
    assert abs((estimates.mean(1) or 0.0) - 600_000) < 20_000
    assert estimates.standard_deviation(1) < 20_000


def test_longer_kernels_on_a_full_gpu_do_not_make_the_estimate_of_another_client_too_sure() -> None:
    """The first client's kernels take 4 % longer beside the other one, which nothing else shows."""
    deltas = {1: kernels_in_flight(1400, 700_000), 2: replace(kernels_in_flight(100, 9_000_000), sure_widths=0)}
    full = GpuBusy(seconds=1.0, capacity=CAPACITY, busy=CAPACITY, measured=True)
    estimates = ClientEstimates().with_observed(1, 600_000.0, 6_000.0).with_observed(2, 4_000_000.0, 2_000_000.0)
    for _ in range(30):
        estimates = kernel_times.updated(estimates, deltas, full, complete=True)
    true = (1 - 1400 * 624_000 / SECOND_NS) / 100 * SECOND_NS
    assert abs((estimates.mean(2) or 0.0) - true) < 2 * estimates.standard_deviation(2)


def test_a_kernel_time_that_exceeds_the_time_in_flight_is_given_up() -> None:
    """The client changed: its kernels took 600 us before, and take at most 200 us now."""
    deltas = {1: kernels_in_flight(1200, 200_000), 2: kernels_in_flight(1200, 200_000)}
    full = GpuBusy(seconds=1.0, capacity=CAPACITY, busy=CAPACITY, measured=True)
    before = ClientEstimates().with_observed(1, 600_000.0, 10_000.0)
    estimates = kernel_times.updated(before.with_observed(2, 230_000.0, 100_000.0), deltas, full, complete=False)
    assert (estimates.mean(1) or 0.0) < 250_000


def test_much_longer_kernels_on_a_shared_gpu_show_that_the_client_changed() -> None:
    """They took 10 us before. That they now take half a second cannot be a wait for the other client."""
    deltas = {1: kernels_in_flight(2, 490_000_000), 2: kernels_in_flight(300, 700_000)}
    full = GpuBusy(seconds=1.0, capacity=CAPACITY, busy=CAPACITY, measured=True)
    estimates = ClientEstimates().with_observed(1, 10_000.0, 300.0).with_observed(2, 690_000.0, 20_000.0)
    for _ in range(5):
        estimates = kernel_times.updated(estimates, deltas, full, complete=True)
    assert (estimates.mean(1) or 0.0) > 100_000_000


def test_a_client_that_began_just_now_may_use_anything() -> None:
    """Its first launch was 20 ms ago, and nothing shows yet how long it takes."""
    area = 66 * 20_000_000
    deltas = {1: WorkDelta(kernels=1, widths=66, area=area, bound=area, flight_ns=20_000_000)}
    use = GpuBusy(seconds=1.0, capacity=CAPACITY, busy=CAPACITY / 100)
    estimates = kernel_times.updated(ClientEstimates(), deltas, use, complete=False)
    assert 2 * estimates.standard_deviation(1) * 66 > CAPACITY


def test_residuals_count_again_after_a_time_without_gpm() -> None:
    deltas = {1: kernels_in_flight(1200, 700_000)}
    use = GpuBusy(seconds=1.0, capacity=CAPACITY, busy=CAPACITY / 2)
    without = kernel_times.updated(ClientEstimates(), deltas, replace(use, measured=False), complete=True)
    again = kernel_times.updated(without, deltas, use, complete=True)
    assert (without.scaled, again.scaled) == (False, True)
