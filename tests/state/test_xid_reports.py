"""Each Xid is seen once, with what both witnesses know; one that no fault claims is told, and a flood is not."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.model.event import Event, EventName
from exporter.model.gpu import IncidentXid
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.state.reducer import reduce_all
from exporter.state.xids import (
    BURST_SECONDS,
    CLAIM_SECONDS,
    MAX_RECENT,
    MAX_REPORTED,
    RECENT_SECONDS,
    is_claimed,
    is_same,
)
from tests.builders import AT, DAEMON, GPU, OTHER_GPU, SERVER, Reduced, look, node, reduced
from tests.state.xid_reports import ADDRESS, OTHER_ADDRESS, TWO_GPUS, event, kernel

SOON, LATER = look(at=AT + CLAIM_SECONDS), look(at=AT + CLAIM_SECONDS + 0.5)
"""A fault may still claim an Xid of AT, and may no more."""

SEEN = IncidentXid(at=AT, number=31, gpu=GPU, bus_id=ADDRESS, pid=600, name="train")


def recent(*seen: Observation, start: tuple[Observation, ...] = TWO_GPUS) -> tuple[IncidentXid, ...]:
    """The sightings after these observations."""
    return reduced(*start, *seen).node.xids.recent


def xids_told(*seen: Observation, start: Node | None = None) -> list[Event]:
    """The events of Xids that belong to no fault."""
    return reduced(*seen, start=reduced(*TWO_GPUS).node if start is None else start).of(EventName.GPU_XID)


def whole(*seen: Observation) -> list[Event]:
    """Those events, where a recording ends with these observations."""
    events = [each for _, news in reduce_all(node(), (*TWO_GPUS, *seen)) for each in news]
    return [each for each in events if each.event is EventName.GPU_XID]


def with_fault(present: Node, *xids: IncidentXid) -> Node:
    """A node on which a fault has these Xids."""
    gpus = tuple({xid.gpu for xid in xids if xid.gpu is not None})
    fault = Incident(id="1", daemon=DAEMON, server=SERVER, started_at=AT, detected_at=AT, xids=xids, gpus=gpus)
    return replace(present, incidents={fault.id: fault})


# -- each once -----------------------------------------------------------------------------------------------------


def test_one_that_the_kernel_alone_tells_of_has_its_process() -> None:
    assert recent(kernel()) == (SEEN,)


def test_one_that_nvml_alone_tells_of_has_its_gpu() -> None:
    assert recent(event()) == (IncidentXid(at=AT, number=31, gpu=GPU),)


@pytest.mark.parametrize("seen", [(kernel(), event(at=AT + 0.02)), (event(), kernel(at=AT + 0.02))])
def test_one_that_both_tell_of_is_one_with_what_both_know(seen: tuple[Observation, ...]) -> None:
    assert recent(*seen) == (SEEN,)


@pytest.mark.parametrize("seen", [(kernel(), event()), (event(), kernel())])
def test_nvml_says_whose_it_is_where_the_kernels_place_is_unknown(seen: tuple[Observation, ...]) -> None:
    assert recent(*seen, start=()) == (SEEN,)


def test_the_kernel_says_where_an_event_without_its_gpu_was() -> None:
    assert recent(event(gpu=None), kernel(address=OTHER_ADDRESS)) == (
        replace(SEEN, gpu=OTHER_GPU, bus_id=OTHER_ADDRESS),
    )


def test_of_several_at_one_time_each_has_its_own_process() -> None:
    lines = [kernel(45, at=AT + 0.1, who=f"pid={pid}, name=w, ") for pid in (600, 601, 602)]

    assert [each.pid for each in recent(*(event(45) for _ in lines), *lines)] == [600, 601, 602]


def test_they_are_kept_for_some_seconds() -> None:
    assert len(recent(kernel(), look(at=AT + RECENT_SECONDS))) == 1
    assert recent(kernel(), look(at=AT + RECENT_SECONDS + 0.1)) == ()


def test_what_a_program_wrote_into_the_kernels_log_is_no_sighting() -> None:
    assert recent(kernel(prefix=12)) == ()


# -- what no fault claims ------------------------------------------------------------------------------------------


def test_one_that_no_fault_claims_is_told_when_none_can_any_more() -> None:
    """A process beside MPS has its own faults."""
    assert xids_told(kernel(), SOON) == []
    assert xids_told(kernel(), event(), SOON, LATER, look(at=AT + 3), look(at=AT + 9)) == [
        Event(at=AT, event=EventName.GPU_XID, gpu=GPU, xid=31, pid=600, name="train")
    ]


def test_or_when_the_recording_ends() -> None:
    assert [each.xid for each in whole(kernel(13), SOON)] == [13]
    assert [each.xid for each in whole(kernel(13), LATER)] == [13]


def test_one_that_a_fault_has_is_not_told() -> None:
    """Whatever the second witness has added since."""
    seen = reduced(*TWO_GPUS, event()).node
    (sighting,) = seen.xids.recent

    assert xids_told(kernel(at=AT + 0.02), LATER, start=with_fault(seen, sighting)) == []


def test_but_its_neighbour_on_another_gpu_is() -> None:
    seen = reduced(*TWO_GPUS, event(), event(gpu=OTHER_GPU)).node

    assert [each.gpu for each in xids_told(LATER, start=with_fault(seen, seen.xids.recent[0]))] == [OTHER_GPU]


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (SEEN, True),
        (replace(SEEN, settled=True), True),
        (IncidentXid(at=AT, number=31, gpu=GPU), True),
        (IncidentXid(at=AT, number=31, bus_id=ADDRESS), True),
        (IncidentXid(at=AT, number=31), True),
        (replace(SEEN, gpu=OTHER_GPU), False),
        (IncidentXid(at=AT, number=31, bus_id=OTHER_ADDRESS), False),
        (replace(SEEN, number=43), False),
        (replace(SEEN, at=AT + 0.1), False),
    ],
)
def test_a_sighting_is_known_again_by_time_number_and_gpu(other: IncidentXid, expected: bool) -> None:
    assert is_same(SEEN, other) is is_same(other, SEEN) is expected
    assert is_claimed(with_fault(node(), other), SEEN) is expected


def test_nobody_has_claimed_what_no_fault_has() -> None:
    assert not is_claimed(node(), SEEN)
    assert not is_claimed(with_fault(node()), SEEN)


def test_of_an_unknown_gpu_it_is_told_where_it_was() -> None:
    assert [each.gpu for each in xids_told(kernel(address="0000:c1:00"), LATER)] == ["PCI:0000:c1:00"]
    assert [each.gpu for each in xids_told(event(gpu=None), LATER)] == [None]


def test_a_name_is_told_on_one_line_and_in_short() -> None:
    (told_of,) = xids_told(kernel(who=f"pid=600, name=\x1b[31m\n{'x' * 300}, "), LATER)

    assert told_of.name is not None
    assert told_of.name.isprintable()
    assert len(told_of.name) <= 128
    assert told_of.pid == 600


# -- floods --------------------------------------------------------------------------------------------------------


def flood(seconds: float, number: int = 31) -> list[Observation]:
    """A thousand a second."""
    return [kernel(number, at=AT + tick / 1000) for tick in range(int(seconds * 1000))]


def test_of_a_flood_few_are_told_and_all_counted() -> None:
    seconds = 1.2 * BURST_SECONDS
    story = reduced(*TWO_GPUS, *flood(seconds), look(at=AT + seconds + 5))

    assert MAX_REPORTED <= len(story.of(EventName.GPU_XID)) <= MAX_REPORTED * 2
    assert story.node.xids.counts[GPU, "31"].total == seconds * 1000
    assert story.node.xids.recent == ()


def test_in_a_flood_another_number_is_told_and_still_kept_for_its_fault() -> None:
    rare = kernel(79, at=AT + 0.0005, who="")
    seen = sorted([*flood(1.0), rare], key=lambda each: each.at)
    story = reduced(*TWO_GPUS, *seen)

    assert MAX_RECENT / 2 < len(story.node.xids.recent) <= MAX_RECENT
    assert [each.settled for each in story.node.xids.recent if each.number == 79] == [False]
    assert [each.xid for each in reduced(LATER, start=story.node).of(EventName.GPU_XID)].count(79) == 1


def test_numbers_without_end_are_not_all_told() -> None:
    seen = [kernel(number, at=AT + number / 1000) for number in range(2000)]

    assert len(whole(*seen)) < 100


tellings = st.builds(
    lambda make, number, at: make(number, at=AT + at),
    st.sampled_from((kernel, event)),
    st.sampled_from((13, 31, 45)),
    st.floats(-10, 10),
)


@given(st.lists(tellings | st.sampled_from(TWO_GPUS), max_size=30))
@settings(max_examples=100)
def test_in_any_order_as_many_are_told_as_are_counted(seen: list[Observation]) -> None:
    """Where no flood and no fault is."""
    present, events = node(), list[Event]()
    for after, news in reduce_all(present, (*TWO_GPUS, *seen)):
        present = after
        events.extend(news)
    story = Reduced(present, tuple(events))
    told_of = sorted((event.gpu, str(event.xid)) for event in story.of(EventName.GPU_XID))

    assert told_of == sorted(key for key, count in present.xids.counts.items() for _ in range(count.total))
