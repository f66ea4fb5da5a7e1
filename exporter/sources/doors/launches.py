"""What is launched: counted, and put to its stream.

R7 has the sum of its kernels' widths, R9 the stream, and the frame how many kernels it is.
"""

from exporter.sources.doors.counting import ARGUMENT, PROCESS, RECORD, Counting
from exporter.sources.doors.doors import Kind
from exporter.sources.doors.instructions import BYTES_4, FRAME
from exporter.sources.doors.layout import (
    AT,
    BURST_GAPS,
    BURST_LAUNCHES,
    BURST_SINCE,
    BURST_WIDTH,
    LAST,
    LAUNCHES,
    SINCE,
    STREAM,
    STREAMS,
    WIDTH,
    stream_at,
)
from exporter.sources.doors.maps import ALL_SMS, WATCH, WIDTHS

PAUSE_NS = 300_000
"""Who launches nothing for so long has paused. What follows is another burst: the GPU may have been idle between."""

CAPTURE_NS = 60 * 10**9
"""A capture of a graph takes no longer; one whose end was not seen, since it failed, is over then."""


def launch(code: Counting, kind: Kind) -> None:
    """A kernel or a graph is launched."""
    code.move(6, 1)
    if kind is Kind.GRAPH:
        code.set(7, 0)
        code.argument(9, 1)
    elif kind is Kind.LAUNCH:
        _product_of_arguments(code)
        code.stacked_argument(9, 8)
    else:
        _product_in_memory(code)
    code.process_key()
    code.stream_key(9)
    code.now()
    code.process(make=True, launches=True)
    _narrowed(code, graph=kind is Kind.GRAPH)
    _captured(code, graph=kind is Kind.GRAPH)
    code.counted(AT["graphs" if kind is Kind.GRAPH else "kernels"])
    code.store(6, AT["launched"], 8)
    code.add_in_memory(6, AT["widths"], 7)
    code.watched_since()
    _to_stream(code, gaps=1 if kind is Kind.GRAPH else 2)


def _product_of_arguments(code: Counting) -> None:
    code.argument(7, 1, BYTES_4)
    for place in (2, 3):
        code.argument(2, place, BYTES_4)
        code.multiply(7, 2)


def _product_in_memory(code: Counting) -> None:
    """CUlaunchConfig: three dimensions of the grid, three of the block, shared memory, and the stream at 32."""
    code.argument(3, 0)
    code.read_user(RECORD, 16)
    code.load(7, FRAME, RECORD, BYTES_4)
    for place in (4, 8):
        code.load(2, FRAME, RECORD + place, BYTES_4)
        code.multiply(7, 2)
    code.argument(3, 0)
    code.add_number(3, 32)
    code.read_user(ARGUMENT, 8)
    code.load(9, FRAME, ARGUMENT)


def _narrowed(code: Counting, *, graph: bool) -> None:
    """A kernel is no wider than the SMs that its process may use; of a graph's kernels that is the first guess."""
    code.in_array(WATCH, ALL_SMS)
    code.load(3, 0, 0)
    code.store(FRAME, ARGUMENT, 3)
    code.lookup(WIDTHS, PROCESS)
    code.load(3, FRAME, ARGUMENT)
    code.jump_if_is(0, 0, "all SMs")
    code.load(3, 0, 0)
    code.place("all SMs")
    if not graph:
        code.jump_if_more(3, 7, "narrow")
    code.move(7, 3)
    code.place("narrow")


def _captured(code: Counting, *, graph: bool) -> None:
    """What is launched into a capture does not run: it tells how wide, and how many, a graph's kernels are."""
    if graph:
        code.set(3, 1)
        code.load(1, 6, AT["captured"])
        code.jump_if_is(1, 0, "graph unknown")
        code.load(2, 6, AT["captures"])
        code.jump_if_is(2, 0, "graph unknown")
        code.load(7, 6, AT["captured_width"])
        code.divide(7, 2)
        code.move(3, 1)
        code.divide(3, 2)
        code.place("graph unknown")
        code.store(FRAME, RECORD, 3)
        return
    code.load(1, 6, AT["capturing"])
    code.jump_if_is(1, 0, "runs")
    code.move(2, 8)
    code.subtract(2, 1)
    code.set_long(3, CAPTURE_NS)
    code.jump_if_more(2, 3, "runs")
    code.counted(AT["captured"])
    code.add_in_memory(6, AT["captured_width"], 7)
    code.jump("out")
    code.place("runs")
    code.set(3, 1)
    code.store(FRAME, RECORD, 3)


def _to_stream(code: Counting, *, gaps: int) -> None:
    """Put it to its stream. R0 has since when the doors are watched, R7 the kernels' widths.

    Before each kernel there is a gap of so many units; one within a graph has half of what others have. A place that no
    stream had yet comes before one whose stream is idle: that one's thread may be launching just now.
    """
    code.move(4, 0)
    code.load(5, FRAME, RECORD)
    for index in range(STREAMS):
        code.load(2, 6, stream_at(index) + STREAM)
        code.jump_if_same(2, 9, f"stream {index}")
        code.jump_if_is_not(2, 0, f"used {index}")
        code.set(0, 0)
        code.compare_and_exchange(6, stream_at(index) + STREAM, 9)
        code.jump_if_is(0, 0, f"stream {index}")
        code.jump_if_same(0, 9, f"stream {index}")
        code.place(f"used {index}")
    for index in range(STREAMS):
        code.load(2, 6, stream_at(index) + SINCE)
        code.jump_if_is_not(2, 0, f"taken {index}")
        code.load(3, 6, stream_at(index) + STREAM)
        code.move(0, 3)
        code.compare_and_exchange(6, stream_at(index) + STREAM, 9)
        code.jump_if_same(0, 3, f"stream {index}")
        code.place(f"taken {index}")
    for index in reversed(range(STREAMS)):
        code.place(f"stream {index}")
        code.move(1, 6)
        code.add_number(1, stream_at(index))
        if index:
            code.jump("stream")
    code.place("stream")
    code.load(2, 1, SINCE)
    code.jump_if_is(2, 0, "begins")
    code.jump_if_more(4, 2, "begins anew")
    code.load(2, 1, LAST)
    code.move(0, 8)
    code.subtract(0, 2)
    code.jump_if_at_least(0, PAUSE_NS, "bursts")
    code.jump("goes on")
    code.place("begins anew")
    for place in (LAUNCHES, WIDTH):
        code.store_number(1, place, 0)
    code.place("begins")
    code.move(0, 2)
    code.compare_and_exchange(1, SINCE, 8)
    code.place("bursts")
    code.store(1, BURST_SINCE, 8)
    for place in (BURST_LAUNCHES, BURST_WIDTH, BURST_GAPS):
        code.store_number(1, place, 0)
    code.place("goes on")
    for place in (LAUNCHES, BURST_LAUNCHES):
        code.add_in_memory(1, place, 5)
    for place in (WIDTH, BURST_WIDTH):
        code.add_in_memory(1, place, 7)
    for _ in range(gaps):
        code.add_in_memory(1, BURST_GAPS, 7)
    code.store(1, LAST, 8)
