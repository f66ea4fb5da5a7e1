"""Launch counts of clients: they never decrease, and belong to one process."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.history import MAX_SAMPLES, SAMPLE_SECONDS, Sample, sample_of, slots_until, with_sample
from exporter.model.daemon import DaemonState
from exporter.model.launches import LaunchCounts, ProcessWork
from exporter.model.node import Node
from exporter.model.observation import GpuReading
from exporter.model.settings import ACTIVE_THREAD_PERCENTAGE
from exporter.reducer import reduce
from exporter.usage.attribution import processes_to_watch
from exporter.usage.last_minute import MAX_READINGS, STALE_SECONDS, launch_counts
from tests.builders import (
    AT,
    CLIENT,
    DAEMON,
    OTHER_GPU,
    PAUSED,
    SENSORS,
    SERVER,
    at_work,
    clients,
    daemon_down,
    daemon_process,
    exited,
    flight,
    gpu_lost,
    idle,
    look,
    process,
    reduced,
    reply,
    servers,
    split,
    three_clients,
)
from tests.works import SECOND_NS, boot_ns, reading, work

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


# Samples of the node: what they contain, when they are taken, and that the unknown is not shown as idle.


def at(seconds: float, start: Node | None = None) -> Node:
    return replace(start or idle(), at=seconds)


def test_has_the_clients_and_the_used_fraction_of_all_memory() -> None:
    present = three_clients()
    found = sample_of(present)
    assert found.clients == 3
    readings = [gpu.reading for gpu in present.gpus.values()]
    used, total = (
        sum(each.memory_used_bytes or 0 for each in readings),
        sum(each.memory_total_bytes or 0 for each in readings),
    )
    assert found.memory_ratio == pytest.approx(used / total, abs=1e-4)


def test_the_used_fraction_of_no_memory_is_unknown() -> None:
    reading = GpuReading(at=AT, gpu=OTHER_GPU, memory_used_bytes=0, memory_total_bytes=0)
    assert sample_of(reduce(Node(), reading)[0]).memory_ratio is None


def test_has_the_mean_of_the_used_sms_of_all_gpus() -> None:
    present = split(three_clients(), {600: flight(0.25), 601: flight(0.125)}, unattributed=0.125)
    assert sample_of(split(present, {602: flight(0.25), 801: flight(0.5)}, gpu=OTHER_GPU)).sm_ratio == 0.625


def test_sm_time_is_known_without_attribution() -> None:
    assert sample_of(idle()).sm_ratio == SENSORS["sm_utilization"]


@pytest.mark.parametrize(
    "present",
    [
        three_clients(),
        split(three_clients(), {600: flight(0.2)}),
        split(idle(), {600: flight(0.2)}, gpu="GPU-that-was-removed"),
    ],
    ids=["no GPU", "one GPU of two", "another GPU"],
)
def test_sm_time_is_unknown_if_it_is_unknown_of_one_gpu(present: Node) -> None:
    gpus = {uuid: replace(gpu, reading=replace(gpu.reading, sm_utilization=None)) for uuid, gpu in present.gpus.items()}
    assert sample_of(replace(present, gpus=gpus)).sm_ratio is None


def test_an_old_split_is_not_used() -> None:
    present = split(idle(), {600: flight(0.2)})
    assert sample_of(replace(present, at=present.at + 61)).sm_ratio == sample_of(idle()).sm_ratio


@pytest.mark.parametrize("observed", [gpu_lost(), reduced(look(problem=PAUSED, at=AT + 1), start=idle()).node])
def test_memory_is_unknown_if_a_gpu_could_not_be_read(observed: Node) -> None:
    found = sample_of(observed)
    assert (found.memory_ratio, found.sm_ratio) == (None, None)
    assert found.clients is not None


def test_a_dead_daemon_has_no_clients() -> None:
    assert sample_of(daemon_down()).clients == 0


@pytest.mark.parametrize("state", [None, DaemonState.UNRESPONSIVE])
def test_clients_are_unknown_while_a_daemon_does_not_answer(state: DaemonState | None) -> None:
    present = three_clients()
    daemons = {DAEMON: replace(present.daemons[DAEMON], state=state)}
    assert sample_of(replace(present, daemons=daemons)).clients is None


def test_one_sample_is_taken_in_each_interval_while_something_is_observed() -> None:
    samples: tuple[Sample, ...] = ()
    for second in range(95):
        samples = with_sample(samples, at(AT + second))
    assert [each.at for each in samples] == [AT, AT + 20, AT + 50, AT + 80]
    assert with_sample(samples, at(AT + 94)) is samples


def test_the_first_sample_waits_for_the_first_collections() -> None:
    starting = replace(idle(), gpus={})
    assert with_sample((), at(AT + 14, starting)) == ()
    (late,) = with_sample((), at(AT + 15, starting))
    assert (late.clients, late.memory_ratio) == (0, None)


def test_nothing_is_sampled_before_the_first_collection() -> None:
    assert with_sample((), Node(at=AT)) == ()


def test_samples_of_more_than_an_hour_ago_are_dropped() -> None:
    samples: tuple[Sample, ...] = ()
    for number in range(3 * MAX_SAMPLES):
        samples = with_sample(samples, at(AT + SAMPLE_SECONDS * number))
    assert len(samples) == MAX_SAMPLES


def test_a_clock_that_was_set_back_drops_later_samples() -> None:
    samples = with_sample(with_sample((), at(AT)), at(AT + 3000))
    assert [each.at for each in with_sample(samples, at(AT + 600))] == [AT, AT + 600]


def test_an_interval_without_a_sample_is_a_gap() -> None:
    samples = (Sample(at=AT), Sample(at=AT + 90))
    slots = slots_until(samples, AT + 100)
    assert len(slots) == MAX_SAMPLES
    assert [None if each is None else each.at for each in slots.values()][-4:] == [AT, None, None, AT + 90]


def test_the_present_interval_is_no_gap_until_its_sample_is_due() -> None:
    samples = (Sample(at=AT), Sample(at=AT + 30))
    assert tuple(slots_until(samples, AT + 55).values())[-2:] == samples
    assert tuple(slots_until(samples, AT + 95).values())[-1] is None


# Which processes the libcuda probes watch, and how many threads each may use.


def test_the_lesser_percentage_applies(subtests: pytest.Subtests) -> None:
    """A client can set any text in its environment."""
    for of_server, own, percentage in [
        ("100.0", None, 100.0),
        ("50.0", None, 50.0),
        ("100.0", "25", 25.0),
        ("50.0", "25", 25.0),
        ("25.0", "50", 25.0),
        ("100.0", "100", 100.0),
        *(
            ("50.0", nonsense, 50.0)
            for nonsense in ("", "much", "nan", "inf", "-5", "0", "1e999", "2" * 5000, "\ud800")
        ),
    ]:
        with subtests.test(of_server=of_server, own=own):
            environment = {} if own is None else {ACTIVE_THREAD_PERCENTAGE: own}
            limit = reply(f"get_active_thread_percentage {SERVER}", f"{of_server}\n")
            node = reduced(servers(SERVER), clients(CLIENT), limit, process(environment=environment)).node

            assert processes_to_watch(node)[:2] == ({CLIENT: percentage}, frozenset())


def test_the_servers_percentage_applies_to_a_process_with_an_unreadable_environment() -> None:
    limit = reply(f"get_active_thread_percentage {SERVER}", "50.0\n")

    for readings in ((), (process(environment=None),)):
        node = reduced(servers(SERVER), clients(CLIENT), limit, *readings).node
        assert processes_to_watch(node)[:2] == ({CLIENT: 50.0}, frozenset())
