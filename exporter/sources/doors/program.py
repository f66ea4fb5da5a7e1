"""The programs at the doors: what each counts, by process.

In every one, R6 has the process' numbers once they were found, R8 the time. What a program cannot read, such as an
argument at an address that is none, counts as 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from exporter.sources.doors.instructions import BYTES_4, FRAME, Instructions
from exporter.sources.doors.layout import AT, FRACTION_BITS, LAST, LAUNCHES, SINCE, STREAM, STREAMS, WIDTH, stream_at
from exporter.sources.doors.registers import Registers

PROCESSES, BLANK, CALLS, EVENTS, WATCH, WIDTHS = "processes", "blank", "calls", "events", "watch", "widths"
"""The maps: numbers by process; a blank page of such; the synchronisation that each thread is in; stream and time of each
recorded event; since when the doors are watched, and launches for which there was no room; and how many SMs a
process may use, where that is not all."""

WATCHED_SINCE, LOST, ALL_SMS = 0, 1, 2
"""Places in the map `watch`."""

BEHIND_NS = 40_000
"""A synchronisation that waits so long found the GPU behind: it had work all along since the span began. One that has
nothing to wait for takes about 10 us on an H200."""

CAPTURE_NS = 60 * 10**9
"""A capture of a graph takes no longer; one whose end was not seen, since it failed, is over then."""

EVERY_STREAM = 0
_LEGACY, _PER_THREAD = 1, 2
"""What libcuda calls a thread's own stream and the one that all share (cuda.h); 0 is either, by the door."""

_LOOKUP, _UPDATE, _DELETE, _PID_AND_THREAD, _READ_USER, _BOOT_TIME = 1, 2, 3, 14, 112, 125
_NEW_ONLY = 1

_PROCESS, _NUMBER, _ARGUMENT, _KEY, _RECORD = -8, -16, -24, -40, -64
"""Places in the frame: the process, a place in an array, what was read, a key of two numbers, a record of three."""


class Kind(StrEnum):
    """What a door is for."""

    LAUNCH = "launch"
    LAUNCH_EX = "launch_ex"
    GRAPH = "graph"
    BEGIN_CAPTURE = "begin_capture"
    END_CAPTURE = "end_capture"
    RECORD = "record"
    WAIT_EVERY = "wait_every"
    WAIT_STREAM = "wait_stream"
    WAIT_EVENT = "wait_event"
    WAIT_DEFAULT = "wait_default"
    RETURN = "return"


WAITS = frozenset({Kind.WAIT_EVERY, Kind.WAIT_STREAM, Kind.WAIT_EVENT, Kind.WAIT_DEFAULT})
"""Doors whose return matters too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A function of libcuda. To one `per_thread`, the default stream is the thread's own."""

    name: str
    kind: Kind
    per_thread: bool = False


def _twins(kind: Kind, *names: str, suffix: str = "_ptsz") -> tuple[Door, ...]:
    return tuple(
        door
        for name in names
        for door in (Door(name=name, kind=kind), Door(name=name + suffix, kind=kind, per_thread=True))
    )


DOORS = (
    *_twins(Kind.LAUNCH, "cuLaunchKernel", "cuLaunchCooperativeKernel"),
    *_twins(Kind.LAUNCH_EX, "cuLaunchKernelEx"),
    *_twins(Kind.GRAPH, "cuGraphLaunch"),
    *_twins(Kind.BEGIN_CAPTURE, "cuStreamBeginCapture", "cuStreamBeginCapture_v2", "cuStreamBeginCaptureToGraph"),
    *_twins(Kind.END_CAPTURE, "cuStreamEndCapture"),
    *_twins(Kind.RECORD, "cuEventRecord", "cuEventRecordWithFlags"),
    Door(name="cuCtxSynchronize", kind=Kind.WAIT_EVERY),
    Door(name="cuCtxSynchronize_v2", kind=Kind.WAIT_EVERY),
    *_twins(Kind.WAIT_STREAM, "cuStreamSynchronize"),
    Door(name="cuEventSynchronize", kind=Kind.WAIT_EVENT),
    *_twins(Kind.WAIT_DEFAULT, "cuMemcpyDtoH_v2", "cuMemcpy", suffix="_ptds"),
)
"""Copies from the device that wait are synchronisations with the default stream. Queries are not here: a client that
asks a million times a second whether something is done would pay for every answer."""


def program(kind: Kind, maps: Mapping[str, int], registers: Registers, *, per_thread: bool = False) -> bytes:
    """The code for one kind of door."""
    writer = _Program(maps, registers, per_thread=per_thread)
    writer.write(kind)
    return writer.code()


class _Program(Instructions):
    def __init__(self, maps: Mapping[str, int], registers: Registers, *, per_thread: bool) -> None:
        super().__init__(maps)
        self._registers = registers
        self._per_thread = per_thread

    def write(self, kind: Kind) -> None:
        if kind is Kind.RETURN:
            self._returned()
        elif kind in WAITS:
            self._wait(kind)
        elif kind is Kind.RECORD:
            self._record()
        elif kind in (Kind.BEGIN_CAPTURE, Kind.END_CAPTURE):
            self._capture(begins=kind is Kind.BEGIN_CAPTURE)
        else:
            self._launch(kind)
        self.place("out")
        self.leave()

    # What is launched. R7 has the sum of its kernels' widths, R9 the stream, and the frame how many kernels it is.

    def _launch(self, kind: Kind) -> None:
        self.move(6, 1)
        if kind is Kind.GRAPH:
            self.set(7, 0)
            self._argument(9, 1)
        elif kind is Kind.LAUNCH:
            self._product_of_arguments()
            self._stacked_argument(9, 8)
        else:
            self._product_in_memory()
        self._process_key()
        self._stream_key(9)
        self._now()
        self._process(make=True)
        self._narrowed(graph=kind is Kind.GRAPH)
        self._captured(graph=kind is Kind.GRAPH)
        self._counted(AT["graphs" if kind is Kind.GRAPH else "kernels"])
        self.store(6, AT["launched"], 8)
        self._watched_since()
        self._to_stream()

    def _product_of_arguments(self) -> None:
        self._argument(7, 1, BYTES_4)
        for place in (2, 3):
            self._argument(2, place, BYTES_4)
            self.multiply(7, 2)

    def _product_in_memory(self) -> None:
        """CUlaunchConfig: three dimensions of the grid, three of the block, shared memory, and the stream at 32."""
        self._argument(3, 0)
        self._read_user(_RECORD, 16)
        self.load(7, FRAME, _RECORD, BYTES_4)
        for place in (4, 8):
            self.load(2, FRAME, _RECORD + place, BYTES_4)
            self.multiply(7, 2)
        self._argument(3, 0)
        self.add_number(3, 32)
        self._read_user(_ARGUMENT, 8)
        self.load(9, FRAME, _ARGUMENT)

    def _narrowed(self, *, graph: bool) -> None:
        """A kernel is no wider than the SMs that its process may use; of a graph's kernels that is the first guess."""
        self._in_array(WATCH, ALL_SMS)
        self.load(3, 0, 0)
        self.store(FRAME, _ARGUMENT, 3)
        self._lookup(WIDTHS, _PROCESS)
        self.load(3, FRAME, _ARGUMENT)
        self.jump_if_is(0, 0, "all SMs")
        self.load(3, 0, 0)
        self.place("all SMs")
        if not graph:
            self.jump_if_more(3, 7, "narrow")
        self.move(7, 3)
        self.place("narrow")

    def _captured(self, *, graph: bool) -> None:
        """What is launched into a capture does not run: it tells how wide, and how many, a graph's kernels are."""
        if graph:
            self.set(3, 1)
            self.load(1, 6, AT["captured"])
            self.jump_if_is(1, 0, "graph unknown")
            self.load(2, 6, AT["captures"])
            self.jump_if_is(2, 0, "graph unknown")
            self.load(7, 6, AT["captured_width"])
            self.divide(7, 2)
            self.move(3, 1)
            self.divide(3, 2)
            self.place("graph unknown")
            self.store(FRAME, _RECORD, 3)
            return
        self.load(1, 6, AT["capturing"])
        self.jump_if_is(1, 0, "runs")
        self.move(2, 8)
        self.subtract(2, 1)
        self._set_long(3, CAPTURE_NS)
        self.jump_if_more(2, 3, "runs")
        self._counted(AT["captured"])
        self.add_in_memory(6, AT["captured_width"], 7)
        self.jump("out")
        self.place("runs")
        self.set(3, 1)
        self.store(FRAME, _RECORD, 3)

    def _to_stream(self) -> None:
        """Put it to its stream. R0 has since when the doors are watched, R7 the kernels' widths."""
        self.move(4, 0)
        self.load(5, FRAME, _RECORD)
        for index in range(STREAMS):
            self.load(2, 6, stream_at(index) + STREAM)
            self.jump_if_same(2, 9, f"stream {index}")
        for index in range(STREAMS):
            self.load(2, 6, stream_at(index) + SINCE)
            self.jump_if_is_not(2, 0, f"taken {index}")
            self.load(3, 6, stream_at(index) + STREAM)
            self.move(0, 3)
            self.compare_and_exchange(6, stream_at(index) + STREAM, 9)
            self.jump_if_same(0, 3, f"stream {index}")
            self.place(f"taken {index}")
        for index in reversed(range(STREAMS)):
            self.place(f"stream {index}")
            self.move(1, 6)
            self.add_number(1, stream_at(index))
            if index:
                self.jump("stream")
        self.place("stream")
        self.load(2, 1, SINCE)
        self.jump_if_is(2, 0, "begins")
        self.jump_if_more(4, 2, "begins anew")
        self.jump("goes on")
        self.place("begins anew")
        self.set(3, 0)
        self.store(1, LAUNCHES, 3)
        self.store(1, WIDTH, 3)
        self.place("begins")
        self.move(0, 2)
        self.compare_and_exchange(1, SINCE, 8)
        self.place("goes on")
        self.add_in_memory(1, LAUNCHES, 5)
        self.add_in_memory(1, WIDTH, 7)
        self.store(1, LAST, 8)

    # Captures and events.

    def _capture(self, *, begins: bool) -> None:
        self._process_key()
        self._now()
        self._process(make=begins)
        if begins:
            self._counted(AT["captures"])
        else:
            self.set(8, 0)
        self.store(6, AT["capturing"], 8)

    def _record(self) -> None:
        self.move(6, 1)
        self._argument(7, 0)
        self._argument(9, 1)
        self._process_key()
        self._stream_key(9)
        self._now()
        self._lookup(PROCESSES, _PROCESS)
        self.jump_if_is(0, 0, "out")
        self._two_number_key(7)
        self.store(FRAME, _RECORD, 9)
        self.store(FRAME, _RECORD + 8, 8)
        self._put(EVENTS, _KEY, _RECORD)

    # Synchronisations: entry notes, for the thread, the stream, the time before which launches will be done, and now.

    def _wait(self, kind: Kind) -> None:
        self.move(6, 1)
        if kind in (Kind.WAIT_STREAM, Kind.WAIT_EVENT):
            self._argument(9, 0)
        else:
            self.set(9, 0)
        self._process_key()
        if kind in (Kind.WAIT_STREAM, Kind.WAIT_DEFAULT):
            self._stream_key(9)
        self._now()
        self._process(make=False)
        self._counted(AT["syncs"])
        self.move(7, 8)
        if kind is Kind.WAIT_EVENT:
            self._two_number_key(9)
            self._lookup(EVENTS, _KEY)
            self.jump_if_is(0, 0, "out")
            self.load(9, 0, 0)
            self.load(7, 0, 8)
        self.store(FRAME, _RECORD, 9)
        self.store(FRAME, _RECORD + 8, 7)
        self.store(FRAME, _RECORD + 16, 8)
        self._thread_key()
        self._put(CALLS, _KEY, _RECORD)

    def _returned(self) -> None:
        """A synchronisation returned: its streams are done, unless something was launched there since.

        R7 has the time before which launches are done, R9 the stream, and the frame when it was called.
        """
        self._argument_result(7)
        self._process_key()
        self._thread_key()
        self._lookup(CALLS, _KEY)
        self.jump_if_is(0, 0, "out")
        for place in (0, 8, 16):
            self.load(2, 0, place)
            self.store(FRAME, _RECORD + place, 2)
        self.map(1, CALLS)
        self.move(2, FRAME)
        self.add_number(2, _KEY)
        self.call(_DELETE)
        self._now()
        self._process(make=False)
        self.jump_if_is(7, 0, "went well")
        self.load(1, 6, AT["failed"])
        self.jump_if_is_not(1, 0, "out")
        self.store(6, AT["failed"], 8)
        self.jump("out")
        self.place("went well")
        self.load(7, FRAME, _RECORD + 8)
        self.load(9, FRAME, _RECORD)
        self._watched_since()
        self.store(FRAME, _ARGUMENT, 0)
        for index in range(STREAMS):
            self._closed(index)

    def _closed(self, index: int) -> None:
        """End a stream's span, if it has one that this synchronisation ends.

        R2 is how long it was, R3 how many kernels, R4 their mean width in 16ths, R5 what is added.
        """
        at, end = stream_at(index), f"closed {index}"
        self.load(1, 6, at + SINCE)
        self.jump_if_is(1, 0, end)
        self.jump_if_is(9, EVERY_STREAM, f"its stream {index}")
        self.load(2, 6, at + STREAM)
        self.jump_if_different(2, 9, end)
        self.place(f"its stream {index}")
        self.load(2, 6, at + LAST)
        self.jump_if_more(2, 7, end)
        self.set(1, 0)
        self.exchange(6, at + SINCE, 1)
        self.set(3, 0)
        self.exchange(6, at + LAUNCHES, 3)
        self.set(4, 0)
        self.exchange(6, at + WIDTH, 4)
        self.load(2, FRAME, _ARGUMENT)
        self.jump_if_more(2, 1, end)
        self.jump_if_more(1, 8, end)
        self.move(2, 8)
        self.subtract(2, 1)
        self.jump_if_is_not(3, 0, f"some {index}")
        self.set(3, 1)
        self.place(f"some {index}")
        self.shift_left(4, FRACTION_BITS)
        self.divide(4, 3)
        self._counted(AT["spans"])
        self.add_in_memory(6, AT["flight"], 2)
        self.add_in_memory(6, AT["heights"], 4)
        self._add_area(AT["area"], 2)
        self.load(1, FRAME, _RECORD + 16)
        self.move(3, 8)
        self.subtract(3, 1)
        self.jump_if_at_least(3, BEHIND_NS, f"behind {index}")
        self.jump_if_more(2, 3, f"partly {index}")
        self.place(f"behind {index}")
        self.move(3, 2)
        self.place(f"partly {index}")
        self.add_in_memory(6, AT["sure"], 3)
        self._add_area(AT["sure_area"], 3)
        self.place(end)

    def _add_area(self, at: int, length: int) -> None:
        self.move(5, length)
        self.multiply(5, 4)
        self.shift_right(5, FRACTION_BITS)
        self.add_in_memory(6, at, 5)

    # What all of them need.

    def _argument(self, target: int, place: int, size: int | None = None) -> None:
        """An argument that is in a register; the context is in R6."""
        offset = self._registers.arguments[place]
        if size is None:
            self.load(target, 6, offset)
        else:
            self.load(target, 6, offset, size)

    def _argument_result(self, target: int) -> None:
        self.load(target, 1, self._registers.result, BYTES_4)

    def _stacked_argument(self, target: int, place: int) -> None:
        """An argument, in a register or on the stack; the context is in R6."""
        held = len(self._registers.arguments)
        self.load(3, 6, self._registers.stack)
        self.add_number(3, self._registers.stacked + 8 * (place - held))
        self._read_user(_ARGUMENT, 8)
        self.load(target, FRAME, _ARGUMENT)

    def _read_user(self, place: int, size: int) -> None:
        """Read from the address in R3 into the frame; zeroes where nothing can be read."""
        self.move(1, FRAME)
        self.add_number(1, place)
        self.set(2, size)
        self.call(_READ_USER)

    def _process_key(self) -> None:
        self.call(_PID_AND_THREAD)
        self.move(1, 0)
        self.shift_right(1, 32)
        self.store(FRAME, _PROCESS, 1)

    def _thread_key(self) -> None:
        self.call(_PID_AND_THREAD)
        self.store(FRAME, _KEY, 0)

    def _two_number_key(self, second: int) -> None:
        self.load(1, FRAME, _PROCESS)
        self.store(FRAME, _KEY, 1)
        self.store(FRAME, _KEY + 8, second)

    def _stream_key(self, stream: int) -> None:
        """What tells a stream from the process' others, and is never 0. A handle is an address, and even by 8."""
        default = _PER_THREAD if self._per_thread else _LEGACY
        self.jump_if_is_not(stream, 0, "not default")
        self.set(stream, default)
        self.place("not default")
        self.jump_if_is_not(stream, _PER_THREAD, "stream known")
        self.call(_PID_AND_THREAD)
        self.move(stream, 0)
        self.shift_left(stream, 32)
        self.shift_right(stream, 24)
        self.either(stream, _PER_THREAD)
        self.place("stream known")

    def _now(self) -> None:
        self.call(_BOOT_TIME)
        self.move(8, 0)

    def _process(self, *, make: bool) -> None:
        """R6 has the process' numbers; there are none of one that has launched nothing, and then this is the end."""
        self._lookup(PROCESSES, _PROCESS)
        self.jump_if_is_not(0, 0, "process known")
        if not make:
            self.jump("out")
        else:
            self._in_array(BLANK, 0)
            self.map(1, PROCESSES)
            self.move(2, FRAME)
            self.add_number(2, _PROCESS)
            self.move(3, 0)
            self.set(4, _NEW_ONLY)
            self.call(_UPDATE)
            self._lookup(PROCESSES, _PROCESS)
            self.jump_if_is_not(0, 0, "process new")
            self._in_array(WATCH, LOST)
            self.set(1, 1)
            self.add_in_memory(0, 0, 1)
            self.jump("out")
            self.place("process new")
            self.move(6, 0)
            self.set(0, 0)
            self.compare_and_exchange(6, AT["first"], 8)
            self.move(0, 6)
        self.place("process known")
        self.move(6, 0)

    def _watched_since(self) -> None:
        """R0 has since when the doors are watched."""
        self._in_array(WATCH, WATCHED_SINCE)
        self.load(0, 0, 0)

    def _counted(self, at: int) -> None:
        self.set(1, 1)
        self.add_in_memory(6, at, 1)

    def _set_long(self, target: int, value: int) -> None:
        """A number of more than 31 bits."""
        self.set(target, value >> 16)
        self.shift_left(target, 16)
        self.either(target, value & 0xFFFF)

    def _in_array(self, name: str, place: int) -> None:
        """R0 has where that lies; an array has all its places, which the verifier cannot know."""
        label = f"{name} {place} {len(self)}"
        self.set(1, place)
        self.store(FRAME, _NUMBER, 1)
        self._lookup(name, _NUMBER)
        self.jump_if_is_not(0, 0, label)
        self.jump("out")
        self.place(label)

    def _lookup(self, name: str, key: int) -> None:
        self.map(1, name)
        self.move(2, FRAME)
        self.add_number(2, key)
        self.call(_LOOKUP)

    def _put(self, name: str, key: int, value: int) -> None:
        self.map(1, name)
        self.move(2, FRAME)
        self.add_number(2, key)
        self.move(3, FRAME)
        self.add_number(3, value)
        self.set(4, 0)
        self.call(_UPDATE)
