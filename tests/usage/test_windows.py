"""Attribution of one window of SM time."""

import pytest

from exporter.model.identity import Workload, WorkloadKind
from exporter.model.launches import GpuUse, WorkReading
from exporter.model.node import Node
from exporter.model.observation import GpuReading, ProcessUtilization
from exporter.model.settings import VISIBLE_DEVICES
from exporter.model.usage import Method, SharedAccount, Usage
from exporter.model.values import replace
from exporter.usage.capacity import gpu_sharing
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
        assert NEXT not in node.attribution[GPU].estimates.indices

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
            ProcessUtilization(pid=pid, timestamp_us=1, sm_percent=percent, memory_percent=0)
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
    row = ProcessUtilization(pid=SERVER, timestamp_us=1, sm_percent=40, memory_percent=0)
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
        row = ProcessUtilization(pid=SERVER, timestamp_us=1, sm_percent=40, memory_percent=0)
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
        assert estimates[CLIENT].sm / estimates[NEXT].sm == pytest.approx(ratio, rel=0.25)


def test_under_mig_without_gpm_nothing_is_invented() -> None:
    """Without GPM and process utilization there is no window."""
    node = present(CLIENT)
    for at in (AT + 5, AT + 10):
        node = after(node, gpu_reading([CLIENT], at=at, mig_mode=True))
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


def test_a_client_without_a_shown_share_is_not_idle() -> None:
    """It was idle for a while; later its use is unknown."""
    node = present(CLIENT, NEXT)
    works = done(CLIENT, 0), done(NEXT, 0)
    for at in range(1, 30):
        node = after(node, *second(AT + at, *works, sm=0.0))
    for at in range(30, 60):
        node = after(node, *second(AT + at, *works, sm=0.5, watched=()))
    found = gpu_sharing(node)[GPU]
    assert found.idle == []
    assert found.recent.unattributed == pytest.approx(0.25, abs=0.01)
