"""Whose one window's SM time was: by which method, and nobody's where that is not known."""

import pytest

from exporter.model.accounting import SharedAccount, Usage
from exporter.model.identity import Workload, WorkloadKind
from exporter.model.launches import GpuUse
from exporter.model.node import Node
from exporter.model.observation import GpuReading, ProcessUtilization
from exporter.model.usage import Method
from exporter.model.values import replace
from exporter.usage.capacity import gpu_sharing
from tests.builders import AT, CLIENT, GPU, OTHER_GPU, SERVER, active, clients, exited, gpu_reading, process, server_log
from tests.usage.seconds import BESIDE, BOTH, NEXT, TICKS, after, busy, done, last, posted, present, second, split
from tests.works import boot_ns


def test_two_who_were_watched_have_what_they_launched() -> None:
    """Three times as much work, three times the part."""
    node = after(present(CLIENT, NEXT), *BOTH)
    assert last(node) == pytest.approx({CLIENT: 20, NEXT: 7}, abs=1)
    assert posted(node)["user-600"] > 2.5 * posted(node)["user-601"] > 0


def test_the_first_window_is_nobodys() -> None:
    """What was launched before it is not known."""
    node = after(present(CLIENT, NEXT), *busy(AT + 1, done(CLIENT, 900), done(NEXT, 300)))
    assert last(node) == {}
    assert posted(node) == {"unattributed": 500}


def test_without_doors_all_is_nobodys_unless_equal_parts_are_wanted() -> None:
    """A guess that nobody asked for is none."""
    uses = [GpuUse(at=AT + n, gpu=GPU, seconds=1.0, sm_utilization=0.5) for n in (1, 2)]
    assert last(after(present(CLIENT, NEXT), *uses)) == {}
    node = after(present(CLIENT, NEXT, equal=True), *uses)
    assert last(node) == {CLIENT: 25, NEXT: 25}
    assert {share.method for share in split(node).shares.values()} == {Method.EQUAL}


def test_only_what_those_leave_who_were_watched_is_parted_equally() -> None:
    """Of two, one is watched."""
    node = after(
        present(CLIENT, NEXT, equal=True),
        *second(AT + 1, done(CLIENT, 0), watched=[CLIENT]),
        *second(AT + 2, done(CLIENT, 900), watched=[CLIENT]),
    )
    window = node.attribution.gpus[GPU].windows[-1]
    assert window.shares[NEXT].method is Method.EQUAL
    assert window.withheld[CLIENT].method is Method.FLIGHT
    assert sum(share.sm for share in window.estimates.values()) == pytest.approx(0.26)


class TestAlone:
    """Who is alone has used all of it, and that is measured."""

    def test_the_only_client(self) -> None:
        """By the device, whatever the doors say."""
        node = after(present(CLIENT), *busy(AT + 1), *busy(AT + 2))
        assert last(node) == {CLIENT: 50}
        assert split(node).shares[CLIENT].method is Method.MEASURED

    def test_who_has_come_in_this_window_may_not_have_been_alone_in_all_of_it(self) -> None:
        """Nobody knows who was there before."""
        node = after(present(), *busy(AT + 1))
        node = after(node, clients(CLIENT, at=AT + 1.5), *busy(AT + 2, watched=()))
        assert last(node) == {}

    def test_who_left_in_this_window_was_alone_until_then(self) -> None:
        """And pays, though it is gone."""
        node = after(present(CLIENT), *busy(AT + 1), exited(CLIENT, ticks=TICKS, at=AT + 1.5), *busy(AT + 2))
        assert last(node) == {CLIENT: 50}
        assert posted(node)["user-600"] == 500
        assert last(after(node, *busy(AT + 3))) == {}


class TestComingAndGoing:
    """Within a second."""

    def test_who_left_pays_for_what_it_launched_last(self) -> None:
        """Its work is told once more; those who stay do not pay for it."""
        node = after(present(CLIENT, NEXT), *BOTH, exited(NEXT, ticks=TICKS, at=AT + 2.5))
        before = posted(node)
        node = after(node, *second(AT + 3, done(CLIENT, 1800), done(NEXT, 600), watched=[CLIENT]))
        assert last(node) == pytest.approx({CLIENT: 20, NEXT: 7}, abs=2)
        assert posted(node)["user-601"] - before["user-601"] == pytest.approx(70, abs=20)

    def test_who_came_and_went_between_two_windows_pays_too(self) -> None:
        """It was a client for less than a second."""
        node = after(present(CLIENT), *second(AT + 1, done(CLIENT, 0)), *second(AT + 2, done(CLIENT, 900)))
        brief = (clients(CLIENT, NEXT, at=AT + 2.2), process(NEXT, ticks=TICKS, user="user-601"))
        node = after(node, *brief, exited(NEXT, ticks=TICKS, at=AT + 2.7))
        node = after(node, *second(AT + 3, done(CLIENT, 1800), done(NEXT, 300), watched=[CLIENT]))
        assert posted(node)["user-601"] == pytest.approx(70, abs=20)

    def test_an_earlier_process_of_the_pid_is_not_paid_for_by_the_one_that_has_it_now(self) -> None:
        """What the doors tell is of one who began before it."""
        node = after(present(CLIENT, NEXT), *BOTH, process(NEXT, ticks=boot_ns(AT + 2) // 10_000_000, user="new"))
        node = after(node, clients(CLIENT, NEXT, at=AT + 2.3))
        node = after(node, *second(AT + 3, done(CLIENT, 1800), done(NEXT, 600)))
        assert NEXT not in last(node)
        assert "new" not in posted(node)
        assert NEXT not in node.attribution.gpus[GPU].estimates.indices

    def test_a_new_process_begins_at_nothing(self) -> None:
        """Its counts are its own: fewer than those before it are no less than nothing."""
        began = boot_ns(AT + 2)
        node = after(present(CLIENT, NEXT), *BOTH, process(NEXT, ticks=began // 10_000_000, user="new"))
        node = after(node, clients(CLIENT, NEXT, at=AT + 2.3))
        node = after(node, *second(AT + 3, done(CLIENT, 1800), done(NEXT, 200, first_ns=began + 10_000_000)))
        assert last(node)[NEXT] == pytest.approx(5, abs=1)


class TestBeside:
    """Processes beside MPS, by NVML's samples."""

    def rows(self, stranger: int, server: int) -> tuple[ProcessUtilization, ...]:
        """How often each was seen running."""
        return tuple(
            ProcessUtilization(pid=pid, timestamp_us=1, sm_percent=percent, memory_percent=0)
            for pid, percent in ((BESIDE, stranger), (SERVER, server))
        )

    def node(self, rows: tuple[ProcessUtilization, ...] | None) -> Node:
        """Two readings after which it is known that one bypasses MPS."""
        node = present(CLIENT)
        for at in (AT + 5, AT + 40, AT + 80):
            node = after(node, gpu_reading([CLIENT], beside=[BESIDE], at=at, process_utilization=rows))
        assert node.gpus[GPU].bypassing == (BESIDE,)
        return after(node, *busy(AT + 81), *busy(AT + 82))

    def test_each_side_has_its_part(self) -> None:
        """One quarter of the time it was the other's."""
        node = self.node(self.rows(10, 30))
        assert last(node) == {BESIDE: 12, CLIENT: 38}
        assert split(node).shares[BESIDE].method is Method.MEASURED

    @pytest.mark.parametrize("rows", [None, ()], ids=["none are told", "none are there"])
    def test_without_samples_nobody_knows_whose_it_was(self, rows: tuple[ProcessUtilization, ...] | None) -> None:
        """Least of all is it measured that the client used nothing; nor is anything learned from it."""
        node = self.node(rows)
        assert last(node) == {}
        assert split(node).unattributed > 0


def without_gpm(at: float, *, energy: int = 0) -> GpuReading:
    """A reading by which some kernel of the server ran for 40 % of the time, and no GPM."""
    row = ProcessUtilization(pid=SERVER, timestamp_us=1, sm_percent=40, memory_percent=0)
    return gpu_reading([CLIENT], at=at, process_utilization=(row, row), gpu_percent=40, energy_millijoules=energy)


class TestWithoutGpm:
    """The time with any kernel running is not SM time, so SM time is unknown."""

    def test_no_sm_time_is_reported(self) -> None:
        """Though one client is alone, and its launches are watched."""
        node = present(CLIENT)
        for at in range(21):
            node = after(node, second(AT + at, done(CLIENT, 900 * at), watched=[CLIENT])[0])
            if at % 10 == 0:
                node = after(node, without_gpm(AT + at))
        assert node.splits == {}
        assert node.usage_totals.gpus[GPU].total.sm_us == 0

    def test_energy_is_unattributed(self) -> None:
        """Nothing tells how to split it; the parts are the whole still."""
        node = after(present(CLIENT), *(without_gpm(AT + at, energy=1000 * at) for at in (10, 20, 30)))
        usage = node.usage_totals.gpus[GPU]
        assert usage.by_account == {(SharedAccount.UNATTRIBUTED, None): Usage(energy_mj=20_000)}
        assert usage.total == Usage(energy_mj=20_000)

    def test_nothing_is_added_for_the_time_after_gpm_was_lost(self) -> None:
        """What was measured before stays."""
        node = after(present(CLIENT), gpu_reading([CLIENT], at=AT + 10, sm_utilization=0.4, gpm_seconds=10.0))
        assert node.usage_totals.gpus[GPU].total.sm_us == 4_000_000
        node = after(node, *(without_gpm(AT + at) for at in (30, 40, 50)))
        assert node.usage_totals.gpus[GPU].total.sm_us == 4_000_000
        assert len(node.attribution.gpus[GPU].windows) == 1


class TestReadings:
    """GPM, read with all else or by itself."""

    def test_while_gpm_is_followed_a_reading_tells_nothing_new(self) -> None:
        """Time is posted once."""
        row = ProcessUtilization(pid=SERVER, timestamp_us=1, sm_percent=40, memory_percent=0)
        node = after(present(CLIENT), *busy(AT + 1), *busy(AT + 2))
        node = after(
            node, gpu_reading([CLIENT], at=AT + 3, process_utilization=(row,), sm_utilization=0.4, gpm_seconds=3)
        )
        assert node.usage_totals.gpus[GPU].total.sm_us == 1_000_000


class TestTimes:
    """Nothing comes as it should."""

    def test_what_comes_twice_or_late_tells_nothing(self) -> None:
        """Neither of the GPU nor of the work."""
        node = after(present(CLIENT, NEXT), *BOTH)
        again = after(node, *reversed(BOTH), *BOTH)
        assert again.usage_totals == node.usage_totals
        assert again.attribution.gpus[GPU].windows == node.attribution.gpus[GPU].windows

    def test_work_that_was_read_long_ago_explains_nothing(self) -> None:
        """The eye on the doors stands still."""
        node = after(present(CLIENT, NEXT), *BOTH, GpuUse(at=AT + 9, gpu=GPU, seconds=6.9, sm_utilization=0.5))
        assert last(node) == {}

    def test_a_use_that_was_missed_is_made_up_for_by_the_next(self) -> None:
        """The work of both seconds explains the SM time of both."""
        work, _ = second(AT + 3, done(CLIENT, 1800), done(NEXT, 600))
        later, _ = second(AT + 4, done(CLIENT, 2700), done(NEXT, 900))
        node = after(present(CLIENT, NEXT), *BOTH, work, later)
        node = after(node, GpuUse(at=AT + 4.1, gpu=GPU, seconds=2.0, sm_utilization=0.26))
        assert last(node) == pytest.approx({CLIENT: 20, NEXT: 7}, abs=2)

    @pytest.mark.parametrize("step", [-3600.0, 3600.0], ids=["back", "forward"])
    def test_a_clock_that_was_set_costs_a_window_at_most(self, step: float) -> None:
        """And what is told of the last minute is of no time to come."""
        node = after(present(CLIENT, NEXT), *BOTH)
        for n in (3, 4):
            work, use = second(AT + n, done(CLIENT, 900 * (n - 1)), done(NEXT, 300 * (n - 1)))
            node = after(node, replace(work, at=work.at + step), replace(use, at=use.at + step))
        assert last(node) == pytest.approx({CLIENT: 20, NEXT: 7}, abs=2)
        assert node.usage_totals.gpus[GPU].total.sm_us == 4 * 260_000
        assert all(abs(each.at - AT - step) < 60 for each in node.attribution.gpus[GPU].windows)

    @pytest.mark.parametrize("seconds", [0.0, -1.0, 1e9, float("nan")])
    def test_a_window_that_cannot_be_is_none(self, seconds: float) -> None:
        """Nor one of which the part is no number."""
        strange = GpuUse(at=AT + 3, gpu=GPU, seconds=seconds, sm_utilization=0.5)
        nonsense = GpuUse(at=AT + 3, gpu=GPU, seconds=1.0, sm_utilization=float("nan"))
        node = after(present(CLIENT), *BOTH)
        assert after(node, strange, nonsense).usage_totals == node.usage_totals


class TestSeveralGpus:
    """Where work was launched is not seen."""

    def node(self) -> Node:
        """One client is on both, the other on the first."""
        node = after(present(CLIENT, NEXT), gpu_reading([CLIENT], gpu=OTHER_GPU, index=1))
        lines = [f"Device NVIDIA H200 (uuid {gpu}) is associated" for gpu in (GPU, OTHER_GPU)]
        return after(node, *server_log(*lines, active(CLIENT, 1), active(CLIENT, 2)))

    def test_the_only_client_of_one_of_them_has_all_of_that(self) -> None:
        """And work of its own on the other."""
        node = self.node()
        for n in (1, 2):
            works = done(CLIENT, 900 * (n - 1)), done(NEXT, 300 * (n - 1))
            node = after(node, *busy(AT + n, *works, gpus=(GPU, OTHER_GPU)))
        assert last(node, OTHER_GPU) == {CLIENT: 50}
        assert last(node)[CLIENT] > 0


def test_under_mig_without_gpm_nothing_is_invented() -> None:
    """No GPM for the whole GPU, no process utilisation: no window."""
    node = present(CLIENT)
    for at in (AT + 5, AT + 10):
        node = after(node, gpu_reading([CLIENT], at=at, mig_mode=True))
    assert node.splits == {}
    assert node.usage_totals.gpus[GPU].total.sm_us == 0


def test_nobodys_time_is_posted_as_such() -> None:
    """So that the sum is the whole."""
    node = after(present(CLIENT, NEXT), *BOTH)
    usage = node.usage_totals.gpus[GPU]
    assert sum(used.sm_us for used in usage.by_account.values()) == usage.total.sm_us == 2 * 260_000
    assert {account for account, _ in usage.by_account} == {
        SharedAccount.UNATTRIBUTED,
        *(Workload(kind=WorkloadKind.USER, name=f"user-{pid}") for pid in (CLIENT, NEXT)),
    }


def test_what_a_process_used_whose_owner_nobody_knows_is_nobodys_by_no_method() -> None:
    node = after(replace(present(CLIENT, NEXT), processes={}), *BOTH)
    assert {*node.usage_totals.gpus[GPU].by_account} == {(SharedAccount.UNATTRIBUTED, None)}


def test_a_client_whose_share_is_withheld_is_not_called_idle() -> None:
    """It was seen doing nothing for a while, and then nothing is known of it."""
    node = present(CLIENT, NEXT)
    works = done(CLIENT, 0), done(NEXT, 0)
    for at in range(1, 30):
        node = after(node, *second(AT + at, *works, sm=0.0))
    for at in range(30, 60):
        node = after(node, *second(AT + at, *works, sm=0.5, watched=()))
    found = gpu_sharing(node)[GPU]
    assert found.idle == []
    assert found.recent.unattributed == pytest.approx(0.25, abs=0.01)
