"""The program for each kind of door."""

from collections.abc import Mapping

from exporter.sources.doors import launches, recordings, waits
from exporter.sources.doors.counting import Counting
from exporter.sources.doors.doors import WAITS, Kind
from exporter.sources.doors.registers import Registers


def program(kind: Kind, maps: Mapping[str, int], registers: Registers, *, per_thread: bool = False) -> bytes:
    """Its code, by the maps' descriptors. To a door `per_thread`, the default stream is the thread's own."""
    code = Counting(maps, registers, per_thread=per_thread)
    if kind is Kind.RETURN:
        waits.returned(code)
    elif kind in WAITS:
        waits.wait(code, kind)
    elif kind is Kind.RECORD:
        recordings.record(code)
    elif kind in (Kind.BEGIN_CAPTURE, Kind.END_CAPTURE):
        recordings.capture(code, begins=kind is Kind.BEGIN_CAPTURE)
    else:
        launches.launch(code, kind)
    code.place("out")
    code.leave()
    return code.code()
