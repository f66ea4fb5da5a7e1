"""What all programs at the doors need.

In every one, R6 has the process' numbers once they were found, R8 the time. What a program cannot read, such as an
argument at an address that is none, counts as 0.
"""

from collections.abc import Mapping

from exporter.sources.doors.instructions import BYTES_4, BYTES_8, FRAME, Instructions
from exporter.sources.doors.layout import AT
from exporter.sources.doors.maps import BLANK, LOST, PROCESSES, WATCH, WATCHED_SINCE
from exporter.sources.doors.registers import Registers

PROCESS, NUMBER, ARGUMENT, KEY, RECORD = -8, -16, -24, -40, -72
"""Places in the frame: the process, a place in an array, what was read, a key of two numbers, a record of four."""

_LEGACY, _PER_THREAD = 1, 2
"""What libcuda calls the stream that all threads share and a thread's own (cuda.h); 0 is either, by the door."""

_LOOKUP, _UPDATE, _DELETE, _PID_AND_THREAD, _READ_USER, _BOOT_TIME = 1, 2, 3, 14, 112, 125
"""The kernel's functions (linux/bpf.h)."""

_NEW_ONLY = 1


class Counting(Instructions):
    """A program that counts by process. A jump to `out` ends it."""

    def __init__(self, maps: Mapping[str, int], registers: Registers, *, per_thread: bool) -> None:
        """To one `per_thread`, the default stream is the thread's own."""
        super().__init__(maps)
        self._registers = registers
        self._per_thread = per_thread

    def argument(self, target: int, place: int, size: int = BYTES_8) -> None:
        """An argument that is in a register; the context is in R6."""
        self.load(target, 6, self._registers.arguments[place], size)

    def result(self, target: int) -> None:
        """What a function returned; the context is in R1."""
        self.load(target, 1, self._registers.result, BYTES_4)

    def stacked_argument(self, target: int, place: int) -> None:
        """An argument, in a register or on the stack; the context is in R6."""
        held = len(self._registers.arguments)
        self.load(3, 6, self._registers.stack)
        self.add_number(3, self._registers.stacked + 8 * (place - held))
        self.read_user(ARGUMENT, 8)
        self.load(target, FRAME, ARGUMENT)

    def read_user(self, place: int, size: int) -> None:
        """Read from the address in R3 into the frame; zeroes where nothing can be read."""
        self.move(1, FRAME)
        self.add_number(1, place)
        self.set(2, size)
        self.call(_READ_USER)

    def process_key(self) -> None:
        """Note the process, by its PID."""
        self.call(_PID_AND_THREAD)
        self.move(1, 0)
        self.shift_right(1, 32)
        self.store(FRAME, PROCESS, 1)

    def thread_key(self) -> None:
        """Note the thread as a key."""
        self.call(_PID_AND_THREAD)
        self.store(FRAME, KEY, 0)

    def two_number_key(self, second: int) -> None:
        """Note the process and a register as a key."""
        self.load(1, FRAME, PROCESS)
        self.store(FRAME, KEY, 1)
        self.store(FRAME, KEY + 8, second)

    def stream_key(self, stream: int) -> None:
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

    def now(self) -> None:
        """R8 has the time, by CLOCK_BOOTTIME."""
        self.call(_BOOT_TIME)
        self.move(8, 0)

    def process(self, *, make: bool, launches: bool = False) -> None:
        """R6 has the process' numbers. Where there are none, they are made, or this is the end, and a launch lost."""
        self.lookup(PROCESSES, PROCESS)
        self.jump_if_is_not(0, 0, "process known")
        if not make:
            self.jump("out")
        else:
            self.in_array(BLANK, 0)
            self.map(1, PROCESSES)
            self.move(2, FRAME)
            self.add_number(2, PROCESS)
            self.move(3, 0)
            self.set(4, _NEW_ONLY)
            self.call(_UPDATE)
            self.lookup(PROCESSES, PROCESS)
            self.jump_if_is_not(0, 0, "process new")
            if launches:
                self.in_array(WATCH, LOST)
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

    def watched_since(self) -> None:
        """R0 has since when the doors are watched."""
        self.in_array(WATCH, WATCHED_SINCE)
        self.load(0, 0, 0)

    def counted(self, at: int) -> None:
        """Count one in the process' numbers."""
        self.set(1, 1)
        self.add_in_memory(6, at, 1)

    def set_long(self, target: int, value: int) -> None:
        """A number of more than 31 bits."""
        self.set(target, value >> 16)
        self.shift_left(target, 16)
        self.either(target, value & 0xFFFF)

    def in_array(self, name: str, place: int) -> None:
        """R0 has where that lies; an array has all its places, which the verifier cannot know."""
        label = f"{name} {place} {len(self)}"
        self.set(1, place)
        self.store(FRAME, NUMBER, 1)
        self.lookup(name, NUMBER)
        self.jump_if_is_not(0, 0, label)
        self.jump("out")
        self.place(label)

    def lookup(self, name: str, key: int) -> None:
        """R0 has where a key of the frame lies in a map, or 0."""
        self.map(1, name)
        self.move(2, FRAME)
        self.add_number(2, key)
        self.call(_LOOKUP)

    def put(self, name: str, key: int, value: int) -> None:
        """Put a value of the frame into a map, under a key of the frame."""
        self.map(1, name)
        self.move(2, FRAME)
        self.add_number(2, key)
        self.move(3, FRAME)
        self.add_number(3, value)
        self.set(4, 0)
        self.call(_UPDATE)

    def drop(self, name: str, key: int) -> None:
        """Forget a key of the frame in a map."""
        self.map(1, name)
        self.move(2, FRAME)
        self.add_number(2, key)
        self.call(_DELETE)
