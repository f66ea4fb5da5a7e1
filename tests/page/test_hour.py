"""The last hour: only the known time, the states of the daemons, and the use of the GPUs."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from exporter.model.event import Event, EventName
from exporter.model.usage import MAX_SAMPLES, SAMPLE_SECONDS, Sample
from exporter.page.hour import MOST_LANES, MOST_SPANS, Hour, last_hour
from exporter.report.node_status import StatusInput, status_document
from exporter.report.text import local_time
from tests.builders import DAEMON
from tests.page.inputs import busy, dead, fault, full, hour, idle, nothing_collected

END = idle().at - idle().at % SAMPLE_SECONDS
BEGIN = END - SAMPLE_SECONDS * (MAX_SAMPLES - 1)


def of(data: StatusInput) -> Hour:
    found = last_hour(data, status_document(data))
    assert found is not None
    return found


def known(samples: Iterable[Sample], *events: Event, given: StatusInput | None = None) -> Hour:
    """Return the hour of these samples and events, without the values of the node."""
    given = replace(given or idle(), samples=tuple(samples), events=tuple(reversed(events)))
    return of(replace(given, node=replace(given.node, sources={})))


def clients(*counts: int | None) -> list[Sample]:
    """Return samples with these numbers of clients, the last one now."""
    begin = END - SAMPLE_SECONDS * (len(counts) - 1)
    return [Sample(at=begin + SAMPLE_SECONDS * number, clients=count) for number, count in enumerate(counts)]


def whole_hour() -> list[Sample]:
    return clients(*(3,) * MAX_SAMPLES)


def states(shown: Hour) -> list[tuple[str, float, float]]:
    lane, *_ = shown.lines
    return [(each.text.split()[0], each.x, each.width) for each in lane.spans]


def test_shows_only_the_time_from_the_first_sample_on() -> None:
    shown = known(clients(*(3,) * 10))
    assert (shown.slots, shown.minutes, shown.gaps) == (10, 5, [])
    assert shown.times[0] == local_time(END - 270)[-8:-3]


def test_shows_nothing_before_the_first_collection() -> None:
    data = replace(nothing_collected(), samples=())
    assert last_hour(data, status_document(data)) is None


def test_a_value_that_is_not_known_is_not_drawn_and_not_interpolated() -> None:
    *_, counts, _, _ = known([*clients(4, 5, 5, None, None, 9, 9)]).lines
    assert counts.path == "M0 100V58h1V47h2V100M5 100V5h2V100"
    assert counts.summary == "9 now; between 4 and 9"


def test_time_in_which_the_exporter_did_not_run_is_a_gap() -> None:
    samples = clients(*(3,) * 10)
    shown = known([*samples[:2], *samples[6:]])
    assert [(each.x, each.width) for each in shown.gaps] == [(20.0, 40.0)]
    assert shown.lines[-3].path == "M0 100V5h2V100M6 100V5h4V100"


def test_zero_is_drawn_as_zero_and_unknown_is_named() -> None:
    counts, sm, memory = known(clients(0, 0)).lines[-3:]
    assert (counts.summary, counts.path) == ("0 now; between 0 and 0", "M0 100V100h2V100")
    assert (sm.summary, sm.path, memory.summary) == ("unknown", "", "unknown")


def test_the_present_values_are_those_of_the_node() -> None:
    data = replace(busy(), samples=hour(busy().at))
    assert of(data).lines[-3].summary.startswith("3 now;")
    assert of(replace(data, at=data.at + 300)).lines[-3].summary.startswith("unknown now;")


def test_use_is_a_fraction_of_all_gpus() -> None:
    *_, sm, memory = known([Sample(at=END, sm_ratio=0.75, memory_ratio=0.75)]).lines
    assert (sm.summary, memory.summary) == ("75 % now; between 75 % and 75 %",) * 2


def test_the_states_of_a_daemon_follow_its_events() -> None:
    half = BEGIN + SAMPLE_SECONDS * MAX_SAMPLES / 2
    lost, back = (Event(at=half + at, event=event, daemon=DAEMON) for at, event in LOST_AND_BACK)
    assert states(known(whole_hour(), lost, back)) == [("up", 0.0, 50.0), ("down", 50.0, 10.0), ("up", 60.0, 40.0)]
    # Events of one moment may be in any order.
    assert states(known(whole_hour(), back, lost)) == states(known(whole_hour(), lost, back))


LOST_AND_BACK = ((0.0, EventName.DAEMON_LOST), (360.0, EventName.DAEMON_UP))


@pytest.mark.parametrize(
    ("event", "before", "after"),
    [
        (EventName.DAEMON_LOST, "up", "down"),
        (EventName.DAEMON_STOPPED, "up", "stopped"),
        (EventName.DAEMON_UNRESPONSIVE, "up", "unresponsive"),
        (EventName.DAEMON_RESPONSIVE, "unresponsive", "up"),
        (EventName.DAEMON_UP, None, "up"),
    ],
)
def test_the_first_event_shows_the_state_before_it(event: EventName, before: str | None, after: str) -> None:
    shown = states(known(whole_hour(), Event(at=END - 600, event=event, daemon=DAEMON)))
    assert [state for state, *_ in shown] == [*filter(None, [before]), after]
    earlier = states(known(whole_hour(), Event(at=BEGIN - 600, event=event, daemon=DAEMON)))
    assert [state for state, *_ in earlier] == [after]


def test_a_daemon_without_events_is_shown_since_its_state_is_known() -> None:
    (span,) = known(whole_hour(), given=busy()).lines[0].spans
    assert (span.text.split()[0], span.x > 90) == ("up", True)
    unknown, *_ = known(whole_hour(), given=dead()).lines
    assert (unknown.spans, unknown.summary) == ([], "unknown")


def test_a_short_fault_is_wide_enough_to_be_seen() -> None:
    shown = known(hour(fault().at), given=fault())
    faults = [each for each in shown.lines[0].spans if each.text.startswith("fault")]
    assert len(faults) == 2
    assert all(each.width >= 0.4 and each.x + each.width <= 100 for each in faults)
    assert shown.lines[0].summary.count("fault") == 2


def test_lanes_and_spans_are_bounded() -> None:
    many = of(full(gpus=MOST_LANES + 4, clients=1))
    assert len(many.lines) == MOST_LANES + 3
    assert all(len(each.spans) <= MOST_SPANS for each in many.lines)
    assert all(inside(each.path, many.slots) for each in many.lines)


def inside(path: str, slots: int) -> bool:
    heights: Sequence[str] = re.findall(r"V(\d+)", path)
    widths: Sequence[str] = re.findall(r"h(\d+)", path)
    return all(0 <= int(each) <= 100 for each in heights) and sum(map(int, widths)) <= slots
