"""Launch counts of clients: they never decrease, and belong to one process."""

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.model.launches import LaunchCounts, ProcessWork
from exporter.model.node import Node
from exporter.usage.launch_history import MAX_READINGS, STALE_SECONDS, launch_counts
from tests.builders import AT, CLIENT, SERVER, at_work, daemon_process, exited, look, process, reduced
from tests.works import BOOTED, SECOND_NS, boot_ns, reading, work

UP = reduced(*at_work(CLIENT), daemon_process(), process(CLIENT)).node


def after(*works: ProcessWork, start: Node = UP) -> Node:
    """Read the probes once a second. Each reading has one process."""
    return reduced(*(reading(AT + 1 + number, each) for number, each in enumerate(works)), start=start).node


def counted(present: Node) -> LaunchCounts:
    counts = launch_counts(present, CLIENT)
    assert counts is not None
    return counts


class TestCounts:
    """Launches and time with work in flight."""

    def test_counts_are_those_of_the_last_reading(self) -> None:
        """They are cumulative. Work in flight counts up to now."""
        present = after(work(CLIENT, kernels=7, graphs=2, flight_ns=5 * SECOND_NS, open_ns=SECOND_NS // 2))
        assert counted(present) == LaunchCounts(kernels=7, graphs=2, flight_ns=5_500_000_000)

    def test_a_probed_client_without_launches_has_zeros(self) -> None:
        assert launch_counts(reduced(reading(AT + 1, watched=(CLIENT,)), start=UP).node, CLIENT) == LaunchCounts()

    def test_a_client_without_probes_has_no_counts(self) -> None:
        """Also if it had probes before."""
        assert launch_counts(UP, CLIENT) is None
        assert launch_counts(reduced(reading(AT + 1, work(SERVER)), start=UP).node, CLIENT) is None
        lost = reduced(reading(AT + 1, work(CLIENT, kernels=3)), reading(AT + 2), start=UP).node
        assert launch_counts(lost, CLIENT) is None

    def test_old_counts_are_not_shown(self) -> None:
        """The collector has failed since."""
        present = after(work(CLIENT, kernels=3))
        assert launch_counts(reduced(look(at=AT + 1 + STALE_SECONDS), start=present).node, CLIENT) == LaunchCounts(
            kernels=3
        )
        assert launch_counts(reduced(look(at=AT + 2 + STALE_SECONDS), start=present).node, CLIENT) is None

    def test_counts_continue_after_probes_are_attached_again(self) -> None:
        """The kernel starts from 0, and the client is the same."""
        again = work(CLIENT, first_ns=boot_ns(AT + 1.5), kernels=2, flight_ns=SECOND_NS)
        assert counted(after(work(CLIENT, kernels=7, flight_ns=SECOND_NS), again)) == LaunchCounts(
            kernels=9, flight_ns=2 * SECOND_NS
        )

    def test_counts_of_a_previous_process_do_not_end_those_of_the_client(self) -> None:
        """A late reading has the counts of the process that had its PID before."""
        seen = (work(CLIENT, kernels=7), work(CLIENT, first_ns=1, kernels=9), work(CLIENT, kernels=8))
        assert [counted(after(*seen[:number])).kernels for number in (1, 2)] == [7, 7]
        assert counted(after(*seen)).kernels == 8

    def test_counts_do_not_decrease_while_a_span_ends(self) -> None:
        """The span is no longer open and not added yet."""
        assert counted(after(work(CLIENT, open_ns=2 * SECOND_NS), work(CLIENT))).flight_ns == 2 * SECOND_NS


class TestIdentity:
    """PID and start time identify a process."""

    def test_launches_before_the_start_of_the_client_do_not_count(self) -> None:
        """Another process had the PID before."""
        present = after(work(CLIENT, first_ns=boot_ns(BOOTED + 1), kernels=9))
        assert launch_counts(present, CLIENT) is None

    def test_a_reused_pid_starts_at_0(self) -> None:
        """In either order of the readings of launches and process."""
        present = after(work(CLIENT, kernels=9))
        later = process(CLIENT, at=AT + 2, ticks=boot_ns(AT + 2) // 10_000_000)
        new = reading(AT + 3, work(CLIENT, first_ns=boot_ns(AT + 2.5), kernels=1))
        assert launch_counts(
            reduced(exited(CLIENT, at=AT + 2), later, new, start=present).node, CLIENT
        ) == LaunchCounts(kernels=1)
        assert launch_counts(reduced(later, new, start=present).node, CLIENT) == LaunchCounts(kernels=1)
        assert launch_counts(reduced(new, later, start=present).node, CLIENT) is None

    def test_an_unknown_process_has_no_counts(self) -> None:
        """It may be another process."""
        assert (
            launch_counts(reduced(reading(AT + 1, work(CLIENT)), start=reduced(*at_work(CLIENT)).node).node, CLIENT)
            is None
        )


class TestLosses:
    """Launches that did not fit into a BPF map."""

    def test_lost_launches_continue_after_probes_are_attached_again(self) -> None:
        """A counter never decreases."""
        seen = [reading(AT + 1 + number, lost=lost) for number, lost in enumerate((2, 5, 1, 1))]
        sums = [reduced(*seen[: number + 1], start=UP).node.launch_history.lost for number in range(4)]
        assert sums == [2, 5, 6, 6]


class TestReadings:
    """Stored readings."""

    def test_a_repeated_or_late_reading_changes_nothing(self) -> None:
        """It does not bring back an exited client."""
        present = after(work(CLIENT, kernels=1), work(CLIENT, kernels=2))
        for each in (reading(AT + 2, work(CLIENT, kernels=9)), reading(AT + 1.5, work(CLIENT, kernels=9))):
            again = reduced(each, start=present).node
            assert (again.work, again.launch_history) == (present.work, present.launch_history)

    def test_readings_of_a_few_seconds_are_stored(self) -> None:
        assert 5 <= len(after(*[work(CLIENT)] * 100).launch_history.readings) <= 10
        often = reduced(*(reading(AT + number / 100) for number in range(100)), start=UP).node
        assert len(often.launch_history.readings) == MAX_READINGS

    def test_counts_of_exited_clients_are_removed(self) -> None:
        left = reduced(reading(AT + 2), start=reduced(exited(CLIENT, at=AT + 1), start=after(work(CLIENT))).node).node
        assert left.launch_history.counts == {}


amounts = st.integers(min_value=0, max_value=2**62)
any_work = st.builds(
    work,
    st.sampled_from((CLIENT, SERVER)),
    first_ns=st.sampled_from((1, boot_ns(AT - 5), boot_ns(AT + 2), boot_ns(AT + 4))),
    kernels=amounts,
    graphs=amounts,
    flight_ns=amounts,
    open_ns=amounts,
    launched_ns=amounts,
    failed_ns=st.just(0) | amounts,
)
any_reading = st.builds(
    lambda *known: known,
    st.sampled_from((-1.0, 0.0, 0.5, 1.0, 20.0)),
    st.lists(any_work, max_size=2, unique_by=lambda each: each.pid),
    st.lists(st.sampled_from((CLIENT, SERVER)), max_size=2),
    amounts,
)


@given(st.lists(any_reading, max_size=12))
@settings(max_examples=100)
def test_no_count_decreases_while_its_client_runs(
    seen: list[tuple[float, list[ProcessWork], list[int], int]],
) -> None:
    """It can be absent for a while."""
    at, present, most, lost = AT, UP, LaunchCounts(), 0
    for gap, works, watched, losses in seen:
        at += gap
        present = reduced(reading(at, *works, watched=watched, lost=losses), start=present).node
        now = launch_counts(present, CLIENT)
        assert present.launch_history.lost >= lost
        lost = present.launch_history.lost
        if now is None:
            continue
        assert all(getattr(now, name) >= getattr(most, name) for name in ("kernels", "graphs", "flight_ns"))
        most = now
