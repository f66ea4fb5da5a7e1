"""A pseudo-terminal, of which one end is a program's standard output and the other a person's screen."""

import fcntl
import os
import select
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

COLUMNS, LINES = 80, 24


class Pseudo:
    """Both ends."""

    def __init__(self, program: TextIO, person: int) -> None:
        self.program = program
        self._person = person

    def resize(self, columns: int, lines: int) -> None:
        """Give it another size."""
        fcntl.ioctl(self._person, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))

    def seen(self) -> str:
        """What has come to the screen since this was last asked."""
        self.program.flush()
        output = b""
        while select.select([self._person], [], [], 0)[0]:
            output += os.read(self._person, 1 << 16)
        return output.decode(errors="replace").replace("\r\n", "\n")


@contextmanager
def pseudo() -> Iterator[Pseudo]:
    """One of the usual size."""
    person, programs = os.openpty()
    with open(programs, "w", encoding="utf-8") as program:
        made = Pseudo(program, person)
        made.resize(COLUMNS, LINES)
        yield made
    os.close(person)
