"""Synchronisations: where they are called and where they return."""

from exporter.sources.doors.counting import ARGUMENT, KEY, RECORD, Counting
from exporter.sources.doors.doors import Kind
from exporter.sources.doors.instructions import FRAME
from exporter.sources.doors.layout import (
    AT,
    BURST_GAPS,
    BURST_LAUNCHES,
    BURST_SINCE,
    BURST_WIDTH,
    FRACTION_BITS,
    LAST,
    LAUNCHES,
    SINCE,
    STREAM,
    STREAMS,
    WIDTH,
    stream_at,
)
from exporter.sources.doors.maps import CALLS, EVENTS

BEHIND_NS = 40_000
"""A synchronisation that waits so long found the GPU behind: it had work all along since the last burst began. One that
has nothing to wait for takes about 10 us on an H200."""

EVERY_STREAM = 0


def wait(code: Counting, kind: Kind) -> None:
    """It is called: note for the thread which stream it waits for, the time up to which that will be done, and now."""
    code.move(6, 1)
    if kind in (Kind.WAIT_STREAM, Kind.WAIT_EVENT):
        code.argument(9, 0)
    else:
        code.set(9, 0)
    code.process_key()
    if kind in (Kind.WAIT_STREAM, Kind.WAIT_DEFAULT):
        code.stream_key(9)
    code.now()
    code.process(make=True)  # who only waits pays for it too, and is to be spared
    code.counted(AT["syncs"])
    code.move(7, 8)
    if kind is Kind.WAIT_EVENT:
        code.two_number_key(9)
        code.lookup(EVENTS, KEY)
        code.jump_if_is(0, 0, "out")
        code.load(9, 0, 0)
        code.load(7, 0, 8)
    code.store(FRAME, RECORD, 9)
    code.store(FRAME, RECORD + 8, 7)
    code.store(FRAME, RECORD + 16, 8)
    code.store_number(FRAME, RECORD + 24, int(kind is Kind.WAIT_EVENT))
    code.thread_key()
    code.put(CALLS, KEY, RECORD)


def returned(code: Counting) -> None:
    """A synchronisation returned: its streams are done, unless something was launched there since.

    R7 has the time before which launches are done, R9 the stream, and the frame when it was called.
    """
    code.result(7)
    code.process_key()
    code.thread_key()
    code.lookup(CALLS, KEY)
    code.jump_if_is(0, 0, "out")
    for place in (0, 8, 16, 24):
        code.load(2, 0, place)
        code.store(FRAME, RECORD + place, 2)
    code.drop(CALLS, KEY)
    code.now()
    code.process(make=False)
    code.jump_if_is(7, 0, "went well")
    code.load(1, 6, AT["failed"])
    code.jump_if_is_not(1, 0, "out")
    code.store(6, AT["failed"], 8)
    code.jump("out")
    code.place("went well")
    code.load(7, FRAME, RECORD + 8)
    code.load(9, FRAME, RECORD)
    code.watched_since()
    code.store(FRAME, ARGUMENT, 0)
    for index in range(STREAMS):
        _closed(code, index)


def _closed(code: Counting, index: int) -> None:
    """End a stream's span, if it has one that this synchronisation ends.

    R2 is how long it was, R3 how many kernels, R4 their mean width in 16ths, R5 what is added.
    """
    at, end = stream_at(index), f"closed {index}"
    code.load(1, 6, at + SINCE)
    code.jump_if_is(1, 0, end)
    code.jump_if_is(9, EVERY_STREAM, f"its stream {index}")
    code.load(2, 6, at + STREAM)
    code.jump_if_different(2, 9, end)
    code.place(f"its stream {index}")
    code.load(2, 6, at + LAST)
    code.jump_if_more(2, 7, end)
    code.set(1, 0)
    code.exchange(6, at + SINCE, 1)
    code.set(3, 0)
    code.exchange(6, at + LAUNCHES, 3)
    code.set(4, 0)
    code.exchange(6, at + WIDTH, 4)
    code.load(2, FRAME, ARGUMENT)
    code.jump_if_more(2, 1, end)
    code.jump_if_more(1, 8, end)
    code.move(2, 8)
    code.subtract(2, 1)
    code.jump_if_is_not(3, 0, f"some {index}")
    code.set(3, 1)
    code.place(f"some {index}")
    code.shift_left(4, FRACTION_BITS)
    code.divide(4, 3)
    code.counted(AT["spans"])
    code.add_in_memory(6, AT["flight"], 2)
    _add_area(code, AT["area"], 2)
    _sure(code, index, end)
    code.place(end)


def _sure(code: Counting, index: int, end: str) -> None:
    """Add the span's last burst to what is sure, if the GPU was behind: if it was waited for long, or most of the time.

    R2 is how long the burst was, R3 how long was waited for it, then how many kernels it was; R4 their mean width.
    """
    at = stream_at(index)
    code.load(1, 6, at + BURST_SINCE)
    code.move(2, 8)
    code.subtract(2, 1)
    code.load(1, FRAME, RECORD + 16)
    code.move(3, 8)
    code.subtract(3, 1)
    code.jump_if_at_least(3, BEHIND_NS, f"behind {index}")
    code.shift_left(3, 1)
    code.jump_if_more(2, 3, end)
    code.place(f"behind {index}")
    code.load(5, 6, at + BURST_GAPS)
    code.add_in_memory(6, AT["sure_gaps"], 5)
    code.load(4, 6, at + BURST_WIDTH)
    code.add_in_memory(6, AT["sure_widths"], 4)
    code.load(3, 6, at + BURST_LAUNCHES)
    code.jump_if_is(3, 0, end)
    code.shift_left(4, FRACTION_BITS)
    code.divide(4, 3)
    code.load(1, FRAME, RECORD + 24)
    code.jump_if_is(1, 0, f"no event {index}")
    code.add_in_memory(6, AT["sure_event_heights"], 4)
    code.jump(f"sure {index}")
    code.place(f"no event {index}")
    code.add_in_memory(6, AT["sure_heights"], 4)
    code.place(f"sure {index}")
    _add_area(code, AT["sure_area"], 2)


def _add_area(code: Counting, at: int, length: int) -> None:
    code.move(5, length)
    code.multiply(5, 4)
    code.shift_right(5, FRACTION_BITS)
    code.add_in_memory(6, at, 5)
