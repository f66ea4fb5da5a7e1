"""The last hour: only the known time, the use of the GPUs, and marks where something failed."""

from collections.abc import Iterable
from dataclasses import replace

from exporter.history import Sample
from exporter.model.event import Event, EventName
from exporter.page.hour import Hour, last_hour
from exporter.report.text import local_time
from exporter.view import StatusInput
from tests.builders import DAEMON
from tests.page.inputs import busy, hour, idle, nothing_collected

# The tests state these values, so that they notice a change of the program's constants.
MAX_SAMPLES = 120
SAMPLE_SECONDS = 30.0
MOST_MARKS = 40

END = idle().at - idle().at % SAMPLE_SECONDS
BEGIN = END - SAMPLE_SECONDS * (MAX_SAMPLES - 1)


def of(data: StatusInput) -> Hour:
    found = last_hour(data)
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


def test_shows_only_the_time_from_the_first_sample_on() -> None:
    shown = known(clients(*(3,) * 10))
    assert (shown.slots, shown.minutes) == (10, 5)
    assert [each.striptags() for each in shown.times] == [
        local_time(END - 270 + seconds)[-8:-3] for seconds in (0, 150, 300)
    ]
    assert [known(clients(*(3,) * count)).minutes for count in (1, 3, 4, MAX_SAMPLES)] == [1, 2, 2, 60]


def test_shows_nothing_before_the_first_collection() -> None:
    data = replace(nothing_collected(), samples=())
    assert last_hour(data) is None


def test_a_value_that_is_not_known_is_not_drawn_and_not_interpolated() -> None:
    counts, _, _ = known([*clients(4, 5, 5, None, None, 9, 9)]).lines
    assert counts.path == "M0 100V58h1V47h2V100m2 0V5h2V100"
    assert counts.summary == "9 now; between 4 and 9"


def test_time_in_which_the_exporter_did_not_run_is_a_gap() -> None:
    samples = clients(*(3,) * 10)
    shown = known([*samples[:2], *samples[6:]])
    assert shown.lines[0].path == "M0 100V5h2V100m4 0V5h4V100"


def test_zero_is_drawn_as_zero_and_unknown_is_named() -> None:
    counts, sm, memory = known(clients(0, 0)).lines
    assert (counts.summary, counts.path) == ("0 now; between 0 and 0", "M0 100V98h2V100")
    assert (sm.summary, sm.path, memory.summary) == ("unknown", "", "unknown")


def test_the_present_values_are_those_of_the_node() -> None:
    data = replace(busy(), samples=hour(busy().at))
    assert of(data).lines[0].summary.startswith("3 now;")
    assert of(replace(data, at=data.at + 300)).lines[0].summary.startswith("unknown now;")


def test_use_is_a_fraction_of_all_gpus() -> None:
    _, sm, memory = known([Sample(at=END, sm_ratio=0.75, memory_ratio=0.75)]).lines
    assert (sm.summary, memory.summary) == ("75 % now; between 75 % and 75 %",) * 2
    paths = [known([Sample(at=END, sm_ratio=ratio)]).lines[1].path for ratio in (0.2, 1.0, 1.5)]
    assert paths == [f"M0 100V{height}h1V100" for height in (81, 5, 5)]


def test_failures_of_the_hour_are_marked_at_their_time() -> None:
    quarter = BEGIN + SAMPLE_SECONDS * MAX_SAMPLES / 4
    times = {EventName.DAEMON_LOST: quarter, EventName.DAEMON_UP: quarter + 60, EventName.FAULT: BEGIN - 1}
    events = (Event(at=at, event=name, daemon=DAEMON) for name, at in times.items())
    ((at, text, incident_id),) = known(whole_hour(), *events).marks
    assert at == MAX_SAMPLES / 4
    assert text.endswith(f"{DAEMON}: the daemon died")
    assert incident_id == ""


def test_marks_are_bounded() -> None:
    many = [Event(at=END - number, event=EventName.FAULT, daemon=DAEMON) for number in range(MOST_MARKS + 1)]
    assert len(known(whole_hour(), *many).marks) == MOST_MARKS
