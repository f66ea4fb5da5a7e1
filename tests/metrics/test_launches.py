"""Families of kernel launches."""

import pytest

from exporter.model.node import Node
from tests.builders import AT, at_work, exited, launches_counted, look, process, reduced, three_clients
from tests.metrics.test_families import by, samples, value
from tests.works import boot_ns, reading, work

LAUNCHES = "cuda_mps_client_kernel_launches_total"
IN_FLIGHT = "cuda_mps_client_in_flight_seconds_total"
LOST = "cuda_mps_exporter_launches_lost_total"
WATCHED = "cuda_mps_client_watched_ratio"

BUSY, IDLE, UNWATCHED = "600-1aao", "601-1adg", "602-1ag8"


@pytest.fixture
def present() -> Node:
    return launches_counted()


def test_counts_kernels_and_graphs_separately_and_work_that_is_still_in_flight(present: Node) -> None:
    assert by(present, LAUNCHES, "client", kind="kernel") == {BUSY: 12_000, IDLE: 0}
    assert by(present, LAUNCHES, "client", kind="graph") == {BUSY: 40, IDLE: 0}
    assert by(present, IN_FLIGHT, "client") == {BUSY: 91.5, IDLE: 0}
    assert [samples(three_clients(), name) for name in (LAUNCHES, IN_FLIGHT, LOST)] == [[], [], []]


def test_a_client_without_probes_has_no_series(present: Node) -> None:
    later = reduced(reading(AT + 3, work(600, kernels=12_001)), start=present).node

    assert set(by(later, LAUNCHES, "client")) == {BUSY}


def test_omits_launches_of_a_previous_process_with_the_pid() -> None:
    early = reading(AT + 2, work(600, first_ns=1, kernels=9))

    assert samples(reduced(early, start=three_clients()).node, LAUNCHES) == []


def test_a_reused_pid_has_a_new_series(present: Node) -> None:
    ticks = boot_ns(AT + 3) // 10_000_000
    new = (exited(600, at=AT + 3), process(600, at=AT + 3, ticks=ticks), *at_work(600, 601, 602, at=AT + 3.5))
    seen = reading(AT + 4, work(600, first_ns=boot_ns(AT + 3.2), kernels=1), watched=(601,))
    counted = by(reduced(*new, seen, start=present).node, LAUNCHES, "client", kind="kernel")

    assert BUSY not in counted
    assert sorted(counted.values()) == [0, 1]


def test_counts_lost_launches_and_nothing_after_a_failed_collection(present: Node) -> None:
    assert value(present, LOST) == 0
    assert value(reduced(reading(AT + 3, lost=7), start=present).node, LOST) == 7
    assert samples(reduced(look(at=AT + 60), start=present).node, LAUNCHES) == []


def test_shows_for_which_part_of_the_last_minute_each_client_was_watched() -> None:
    """All of it, then half of it because of the rate limit; older readings do not count. One client has no probes."""
    whole = [reading(AT + second, watched=(600, 601)) for second in range(100, 200)]
    resting = [reading(AT + second, watched=(600, 601), seconds=float(second % 2)) for second in range(200, 301)]
    always, half = (reduced(*seen, start=three_clients()).node for seen in (whole, [*whole, *resting]))
    assert by(always, WATCHED, "client") == {BUSY: 1, IDLE: 1, UNWATCHED: 0}
    assert by(half, WATCHED, "client") == {
        BUSY: pytest.approx(0.5, abs=0.02),
        IDLE: pytest.approx(0.5, abs=0.02),
        UNWATCHED: 0,
    }


def test_a_young_client_was_watched_for_a_part_of_its_life() -> None:
    """For six of eight seconds, because it began in a pause. The time before it began does not count."""
    before = [reading(AT + second, watched=(600,)) for second in range(100, 197)]
    began = (exited(601, at=AT + 196), process(601, at=AT + 196, ticks=boot_ns(AT + 196) // 10_000_000))
    life = [reading(AT + 196 + n, watched=(600,) if n <= 2 else (600, 601)) for n in range(1, 9)]
    node = reduced(*before, *began, *at_work(600, 601, 602, at=AT + 196.5), *life, start=three_clients()).node
    assert sorted(by(node, WATCHED, "client").values()) == [0, 0.75, 1]


def test_one_reading_or_an_old_one_has_no_ratio() -> None:
    one = reduced(reading(AT + 1, watched=(600,)), start=three_clients()).node
    two = reduced(reading(AT + 2, watched=(600,)), start=one).node
    assert samples(one, WATCHED) == []
    assert by(two, WATCHED, "client")[BUSY] == 1
    assert samples(reduced(look(at=AT + 60), start=two).node, WATCHED) == []
