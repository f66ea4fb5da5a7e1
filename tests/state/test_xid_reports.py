"""Xid reports: two sources make one Xid, an Xid without an incident has its own event, and a flood is limited."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.model.event import Event, EventName
from exporter.model.gpu import IncidentXid
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.reducer import reduce_all
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
"""The last time at which an incident can include an Xid of AT, and a later time."""

SEEN = IncidentXid(at=AT, number=31, gpu=GPU, bus_id=ADDRESS, pid=600, name="train")


def recent(*seen: Observation, start: tuple[Observation, ...] = TWO_GPUS) -> tuple[IncidentXid, ...]:
    """Return the recent Xids after these observations."""
    return reduced(*start, *seen).node.xids.recent


def xid_events(*seen: Observation, start: Node | None = None) -> list[Event]:
    """Return the events of Xids that belong to no incident."""
    return reduced(*seen, start=reduced(*TWO_GPUS).node if start is None else start).of(EventName.GPU_XID)


def xid_events_of_recording(*seen: Observation) -> list[Event]:
    """Return the events of Xids of a recording that ends with these observations."""
    events = [each for _, new_events in reduce_all(node(), (*TWO_GPUS, *seen)) for each in new_events]
    return [each for each in events if each.event is EventName.GPU_XID]


def with_fault(present: Node, *xids: IncidentXid) -> Node:
    """Return a node with an incident that has these Xids."""
    gpus = tuple({xid.gpu for xid in xids if xid.gpu is not None})
    fault = Incident(id="1", daemon=DAEMON, server=SERVER, started_at=AT, detected_at=AT, xids=xids, gpus=gpus)
    return replace(present, incidents={fault.id: fault})


# -- one report each -----------------------------------------------------------------------------------------------


def test_xid_of_the_kernel_log_has_its_process() -> None:
    assert recent(kernel()) == (SEEN,)


def test_xid_of_nvml_has_its_gpu() -> None:
    assert recent(event()) == (IncidentXid(at=AT, number=31, gpu=GPU),)


@pytest.mark.parametrize("seen", [(kernel(), event(at=AT + 0.02)), (event(), kernel(at=AT + 0.02))])
def test_combines_reports_of_both_sources(seen: tuple[Observation, ...]) -> None:
    assert recent(*seen) == (SEEN,)


@pytest.mark.parametrize("seen", [(kernel(), event()), (event(), kernel())])
def test_nvml_gives_the_gpu_of_an_unknown_bus_address(seen: tuple[Observation, ...]) -> None:
    assert recent(*seen, start=()) == (SEEN,)


def test_kernel_log_gives_the_gpu_of_an_event_without_one() -> None:
    assert recent(event(gpu=None), kernel(address=OTHER_ADDRESS)) == (
        replace(SEEN, gpu=OTHER_GPU, bus_id=OTHER_ADDRESS),
    )


def test_each_of_several_simultaneous_xids_has_its_own_process() -> None:
    lines = [kernel(45, at=AT + 0.1, who=f"pid={pid}, name=w, ") for pid in (600, 601, 602)]

    assert [each.pid for each in recent(*(event(45) for _ in lines), *lines)] == [600, 601, 602]


def test_xids_are_removed_after_some_seconds() -> None:
    assert len(recent(kernel(), look(at=AT + RECENT_SECONDS))) == 1
    assert recent(kernel(), look(at=AT + RECENT_SECONDS + 0.1)) == ()


def test_ignores_kernel_log_lines_from_user_space() -> None:
    assert recent(kernel(prefix=12)) == ()


# -- Xids without an incident --------------------------------------------------------------------------------------


def test_xid_without_an_incident_is_reported_when_its_time_is_over() -> None:
    """A bypassing process has faults of its own."""
    assert xid_events(kernel(), SOON) == []
    assert xid_events(kernel(), event(), SOON, LATER, look(at=AT + 3), look(at=AT + 9)) == [
        Event(at=AT, event=EventName.GPU_XID, gpu=GPU, xid=31, pid=600, name="train")
    ]


def test_xid_without_an_incident_is_reported_when_the_recording_ends() -> None:
    assert [each.xid for each in xid_events_of_recording(kernel(13), SOON)] == [13]
    assert [each.xid for each in xid_events_of_recording(kernel(13), LATER)] == [13]


def test_xid_of_an_incident_has_no_event() -> None:
    """The second source may have added details since then."""
    seen = reduced(*TWO_GPUS, event()).node
    (reported,) = seen.xids.recent

    assert xid_events(kernel(at=AT + 0.02), LATER, start=with_fault(seen, reported)) == []


def test_xid_of_another_gpu_has_an_event() -> None:
    seen = reduced(*TWO_GPUS, event(), event(gpu=OTHER_GPU)).node

    assert [each.gpu for each in xid_events(LATER, start=with_fault(seen, seen.xids.recent[0]))] == [OTHER_GPU]


def test_time_number_and_gpu_identify_an_xid(subtests: pytest.Subtests) -> None:
    for other, expected in [
        (SEEN, True),
        (replace(SEEN, settled=True), True),
        (IncidentXid(at=AT, number=31, gpu=GPU), True),
        (IncidentXid(at=AT, number=31, bus_id=ADDRESS), True),
        (IncidentXid(at=AT, number=31), True),
        (replace(SEEN, gpu=OTHER_GPU), False),
        (IncidentXid(at=AT, number=31, bus_id=OTHER_ADDRESS), False),
        (replace(SEEN, number=43), False),
        (replace(SEEN, at=AT + 0.1), False),
    ]:
        with subtests.test(other=other, expected=expected):
            assert is_same(SEEN, other) is is_same(other, SEEN) is expected
            assert is_claimed(with_fault(node(), other), SEEN) is expected


def test_xid_without_an_incident_is_not_claimed() -> None:
    assert not is_claimed(node(), SEEN)
    assert not is_claimed(with_fault(node()), SEEN)


def test_event_of_an_unknown_gpu_has_its_bus_address() -> None:
    assert [each.gpu for each in xid_events(kernel(address="0000:c1:00"), LATER)] == ["PCI:0000:c1:00"]
    assert [each.gpu for each in xid_events(event(gpu=None), LATER)] == [None]


def test_process_name_is_printable_and_short() -> None:
    (reported,) = xid_events(kernel(who=f"pid=600, name=\x1b[31m\n{'x' * 300}, "), LATER)

    assert reported.name is not None
    assert reported.name.isprintable()
    assert len(reported.name) <= 128
    assert reported.pid == 600


# -- floods --------------------------------------------------------------------------------------------------------


def flood(seconds: float, number: int = 31) -> list[Observation]:
    """A thousand Xids a second."""
    return [kernel(number, at=AT + tick / 1000) for tick in range(int(seconds * 1000))]


def test_a_flood_has_few_events_and_a_complete_count() -> None:
    seconds = 1.2 * BURST_SECONDS
    result = reduced(*TWO_GPUS, *flood(seconds), look(at=AT + seconds + 5))

    assert MAX_REPORTED <= len(result.of(EventName.GPU_XID)) <= MAX_REPORTED * 2
    assert result.node.xids.counts[GPU, "31"].total == seconds * 1000
    assert result.node.xids.recent == ()


def test_a_rare_xid_in_a_flood_stays_available_and_is_reported() -> None:
    rare = kernel(79, at=AT + 0.0005, who="")
    seen = sorted([*flood(1.0), rare], key=lambda each: each.at)
    result = reduced(*TWO_GPUS, *seen)

    assert MAX_RECENT / 2 < len(result.node.xids.recent) <= MAX_RECENT
    assert [each.settled for each in result.node.xids.recent if each.number == 79] == [False]
    assert [each.xid for each in reduced(LATER, start=result.node).of(EventName.GPU_XID)].count(79) == 1


def test_many_different_numbers_have_few_events() -> None:
    seen = [kernel(number, at=AT + number / 1000) for number in range(2000)]

    assert len(xid_events_of_recording(*seen)) < 100


reports = st.builds(
    lambda make, number, at: make(number, at=AT + at),
    st.sampled_from((kernel, event)),
    st.sampled_from((13, 31, 45)),
    st.floats(-10, 10),
)


@given(st.lists(reports | st.sampled_from(TWO_GPUS), max_size=30))
@settings(max_examples=100)
def test_in_any_order_there_are_as_many_events_as_counted_xids(seen: list[Observation]) -> None:
    present, events = node(), list[Event]()
    for after, new_events in reduce_all(present, (*TWO_GPUS, *seen)):
        present = after
        events.extend(new_events)
    result = Reduced(present, tuple(events))
    reported = sorted((event.gpu, str(event.xid)) for event in result.of(EventName.GPU_XID))

    assert reported == sorted(key for key, count in present.xids.counts.items() for _ in range(count.total))
