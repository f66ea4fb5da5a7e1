"""An assembler for the few BPF instructions that the doors' programs are made of (Linux, bpf/standardization).

Registers are numbers, 0 to 10; R1 to R5 are gone after a call, R10 is the frame. All arithmetic is unsigned, 64 bits.
"""

import struct
from collections.abc import Mapping

FRAME = 10

BYTES_4, BYTES_8 = 0x00, 0x18
"""Sizes of what is loaded and stored."""

_EXCHANGE, _COMPARE_AND_EXCHANGE, _ADD = 0xE1, 0xF1, 0x00
_MAP_BY_DESCRIPTOR = 1


class Instructions:
    """A program being written down. A jump goes forward, to a label that is placed later."""

    def __init__(self, maps: Mapping[str, int]) -> None:
        """`maps` has the file descriptor of each map, by name."""
        self._maps = maps
        self._written: list[tuple[int, int, int, int, int]] = []
        self._places: dict[str, int] = {}
        self._jumps: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._written)

    def place(self, label: str) -> None:
        """Here jumps to this label arrive."""
        self._places[label] = len(self._written)

    def code(self) -> bytes:
        """The program as the kernel takes it."""
        for at, label in self._jumps:
            operation, target, source, _, value = self._written[at]
            self._written[at] = (operation, target, source, self._places[label] - at - 1, value)
        self._jumps.clear()
        return b"".join(
            struct.pack("<BBhi", operation, target | source << 4, offset, value)
            for operation, target, source, offset, value in self._written
        )

    def set(self, target: int, value: int) -> None:
        """A register takes a number."""
        self._write(0xB7, target, 0, 0, value)

    def move(self, target: int, source: int) -> None:
        """A register takes another's value."""
        self._write(0xBF, target, source)

    def add_number(self, target: int, value: int) -> None:
        """Add a number, which may be negative."""
        self._write(0x07, target, 0, 0, value)

    def subtract(self, target: int, source: int) -> None:
        """Take a register away."""
        self._write(0x1F, target, source)

    def multiply(self, target: int, source: int) -> None:
        """Multiply by a register."""
        self._write(0x2F, target, source)

    def divide(self, target: int, source: int) -> None:
        """Divide by a register; by 0 gives 0."""
        self._write(0x3F, target, source)

    def shift_left(self, target: int, bits: int) -> None:
        """Multiply by a power of 2."""
        self._write(0x67, target, 0, 0, bits)

    def shift_right(self, target: int, bits: int) -> None:
        """Divide by a power of 2."""
        self._write(0x77, target, 0, 0, bits)

    def either(self, target: int, value: int) -> None:
        """Set the bits of a number."""
        self._write(0x47, target, 0, 0, value)

    def load(self, target: int, source: int, offset: int, size: int = BYTES_8) -> None:
        """A register takes what lies in memory."""
        self._write(0x61 | size, target, source, offset)

    def store(self, target: int, offset: int, source: int, size: int = BYTES_8) -> None:
        """Memory takes a register's value."""
        self._write(0x63 | size, target, source, offset)

    def store_number(self, target: int, offset: int, value: int) -> None:
        """Memory takes a number."""
        self._write(0x62 | BYTES_8, target, 0, offset, value)

    def add_in_memory(self, target: int, offset: int, source: int) -> None:
        """Add a register to what lies in memory, whoever else does so at the same time."""
        self._write(0xDB, target, source, offset, _ADD)

    def exchange(self, target: int, offset: int, source: int) -> None:
        """Memory and register exchange their values, at once."""
        self._write(0xDB, target, source, offset, _EXCHANGE)

    def compare_and_exchange(self, target: int, offset: int, source: int) -> None:
        """Memory takes the register's value if it has that of R0; R0 takes what memory had."""
        self._write(0xDB, target, source, offset, _COMPARE_AND_EXCHANGE)

    def jump(self, label: str) -> None:
        """Go on there."""
        self._jump(0x05, 0, 0, 0, label)

    def jump_if_is(self, left: int, value: int, label: str) -> None:
        """Go on there if a register has this value."""
        self._jump(0x15, left, 0, value, label)

    def jump_if_is_not(self, left: int, value: int, label: str) -> None:
        """Go on there unless a register has this value."""
        self._jump(0x55, left, 0, value, label)

    def jump_if_same(self, left: int, right: int, label: str) -> None:
        """Go on there if two registers have the same value."""
        self._jump(0x1D, left, right, 0, label)

    def jump_if_different(self, left: int, right: int, label: str) -> None:
        """Go on there unless two registers have the same value."""
        self._jump(0x5D, left, right, 0, label)

    def jump_if_more(self, left: int, right: int, label: str) -> None:
        """Go on there if the left register has more than the right one."""
        self._jump(0x2D, left, right, 0, label)

    def jump_if_at_least(self, left: int, value: int, label: str) -> None:
        """Go on there if a register has this much."""
        self._jump(0x35, left, 0, value, label)

    def map(self, target: int, name: str) -> None:
        """A register takes a map, for a call."""
        self._write(0x18, target, _MAP_BY_DESCRIPTOR, 0, self._maps[name])
        self._write(0, 0, 0, 0, 0)

    def call(self, helper: int) -> None:
        """Call one of the kernel's functions; the answer is in R0."""
        self._write(0x85, 0, 0, 0, helper)

    def leave(self) -> None:
        """Return 0, which means that there is nothing for perf to record."""
        self.set(0, 0)
        self._write(0x95, 0, 0)

    def _jump(self, operation: int, left: int, right: int, value: int, label: str) -> None:
        self._jumps.append((len(self._written), label))
        self._write(operation, left, right, 0, value)

    def _write(self, operation: int, target: int, source: int, offset: int = 0, value: int = 0) -> None:
        self._written.append((operation, target, source, offset, value))
