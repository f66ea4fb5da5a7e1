"""What is read of spans that have not ended, from the bytes of a map entry. Times are in milliseconds."""

import struct

import pytest

from exporter.libcuda_probes.probes import (
    CONTEXT,
    FIELDS,
    KINDS,
    NEVER,
    STREAMS,
    Group,
    Stream,
    work_of,
)
from exporter.model.launches import ProcessWork, sums
from exporter.model.usage import work_delta

MS = 1_000_000
HOUR = 3_600_000
PLAIN, BY_EVENT = 0, 2
PID = 77


def at(milliseconds: float, kind: int = 0) -> int:
    """Return a point in time. That of a wait has its kind in its lowest bits."""
    return round(milliseconds * MS) // KINDS * KINDS + kind


def stream(since: float = 100, last: float | None = None, **known: int) -> dict[str, int]:
    """Return a stream with one kernel of 20 SMs in flight, for which a thread waits since one millisecond later."""
    last = since if last is None else last
    burst = {"burst_since": at(since), "burst_launches": 1, "burst_width": 20, "burst_gaps": 40}
    flight = {"since": at(since), "last": at(last), "launches": 1, "width": 20, "widest": 20}
    return {"key": 1, **flight, **burst, "waited": at(last + 1, CONTEXT), **known}


def read(*streams: dict[str, int], now: float = 200, began: dict[Group, int] | None = None, **head: int) -> ProcessWork:
    value = struct.pack(f"<{len(FIELDS)}Q", *(head.get(name, 0) for name in FIELDS))
    for each in (*streams, *({},) * (STREAMS - len(streams))):
        value += struct.pack(f"<{len(Stream._fields)}Q", *(each.get(name, 0) for name in Stream._fields))
    attached = dict.fromkeys(Group, at(50)) | (began or {})
    return work_of(PID, value, at(now), attached)


PAUSED = {Group.FREQUENT: NEVER, Group.QUERIES: NEVER}
RESUMED = {Group.FREQUENT: at(150), Group.QUERIES: at(151)}


def test_a_persistent_kernel_of_an_hour_is_in_flight_all_the_time() -> None:
    """A blocked wait shows that work runs for minutes."""
    work = read(stream(), now=HOUR, busy_since=at(100))
    age = at(HOUR) - at(100)
    assert (work.open_ns, work.open_busy_ns, work.open_since_ns) == (age, age, at(100))
    assert work.open_area == work.open_bound == 20 * age


def test_work_without_a_waiting_thread_counts_as_done_after_a_second() -> None:
    """Some streams are never waited for."""
    for now, busy in ((1_000, at(900)), (1_200, 0)):
        work = read(stream(waited=0), now=now, busy_since=at(100))
        assert (work.open_busy_ns, work.open_ns) == (busy, at(now) - at(100))


@pytest.mark.parametrize(
    ("kind", "began", "sure"),
    [
        (CONTEXT, {}, True),
        (CONTEXT, PAUSED, True),
        (CONTEXT, RESUMED, True),
        (CONTEXT, {**PAUSED, Group.RARE: NEVER}, False),
        (CONTEXT, {**RESUMED, Group.RARE: at(149)}, False),
        (PLAIN, {}, True),
        (PLAIN, PAUSED, False),
        (PLAIN, RESUMED, False),
        (BY_EVENT, RESUMED, False),
    ],
)
def test_a_wait_is_sure_if_its_return_cannot_have_been_missed(kind: int, began: dict[Group, int], sure: bool) -> None:
    work = read(stream(waited=at(101, kind)), began=began, busy_since=at(100))
    assert work.open_ns == work.open_busy_ns == at(100)
    assert work.open_unsure_ns == (0 if sure else at(100))


@pytest.mark.parametrize(("answered", "unsure"), [(0, 0), (at(99), at(100))])
def test_a_span_may_have_ended_by_a_query_that_was_not_probed(answered: int, unsure: int) -> None:
    """If the client asks for the end of its work. Allocators ask too, and end no span."""
    for queries in (NEVER, at(101)):
        work = read(stream(waited=0), began={Group.QUERIES: queries}, answered=answered)
        assert (work.open_ns, work.open_unsure_ns) == (at(100), unsure)
    assert read(stream(waited=0), answered=answered).open_unsure_ns == 0


def test_the_first_call_and_the_last_synchronisation_are_known_if_nothing_was_missed_since() -> None:
    for began, known in (({}, True), (PAUSED, False), (RESUMED, False), ({Group.RARE: at(150)}, False)):
        work = read(began=began, initialized=at(60), synced=at(140))
        assert (work.initialized_ns > 0, work.synced_ns > 0) == (known, known)


def test_a_wait_covers_no_later_launches() -> None:
    """After a pause, only a wait for the whole span shows that it has not ended."""
    assert read(stream(last=150, waited=at(101, CONTEXT)), began=RESUMED).open_unsure_ns == at(100)


def test_open_counts_are_those_of_all_streams_and_devices() -> None:
    one, other = read(stream(), stream(since=120)), read(stream(since=140))
    assert one.open_area == 20 * (at(100) + at(80))
    whole = sums([one, other])[PID]
    assert whole.open_area == one.open_area + other.open_area
    assert whole.open_since_ns == at(100)


def test_the_area_of_a_window_includes_the_growth_of_open_spans() -> None:
    before, now = read(stream(), first=1), read(stream(), now=300, first=1)
    assert work_delta(before, now, at(300)).area == 20 * at(100)
