"""Which lines of a log a rule may know, found in bytes: a flood of other lines is counted, and never decoded.

Every line that `parse_line` knows passes, if its fields are ASCII as in all measured logs. A line that passes may still
be unknown to `parse_line`.
"""

import re
from collections.abc import Iterable
from itertools import chain, islice
from typing import NamedTuple

from exporter.parse.log_line import ALL_RULES

_HEADER = re.compile(
    rb"\n\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} [A-Za-z][A-Za-z ]{0,61}+(?<= )\d{1,10}\] ?"
    rb"(?:Volta MPS Server: |Volta MPS: |MPS Server: )?([^\n]*)"
)
_BOUND = re.compile(r"\{(\d+),(\d+)\}")
_BYTES_A_CHARACTER = 4
"""A bounded field of a rule may have so many times more bytes than characters."""

_GRAVE = (
    b"fatal gpu error", b"torn down", b"the following", b"exiting", b"server context", b"starting", b"ready",
    b"started", b"shut", b"teardown", b"exited with", b"exit with", b"quit", b"ui closed", b"privilege",
)  # fmt: skip
"""Words of the lines from which a fault, or the start or end of a daemon or server, can be known. In lower case."""

_ITEMS = re.compile(rb"\n\[.{23} (?!Control )[A-Za-z][A-Za-z ]{0,61}+\d+\] ?\d{1,10}(?=\n|\Z)")
"""An item of a server's list: the devices and clients of a fault."""


class Sifted(NamedTuple):
    """The lines that were kept, how many of these no rule knows, and how many more such lines there are."""

    lines: list[bytes]
    unknown: int
    left: int


def sift(lines: bytes, unknown: int = 0) -> Sifted:
    """Keep the lines that a rule may know, and the first `unknown` others, in their order.

    `lines` are whole lines, without the end of the last one.
    """
    text = b"\n" + lines
    kept: list[bytes] = []
    known = begin = left = 0
    for found in _HEADER.finditer(text):
        if _KNOWN.fullmatch(found[1]):
            others = _others(text[begin : found.start()], unknown - (len(kept) - known))
            kept += (*others, text[found.start() + 1 : found.end()])
            left += text.count(b"\n", begin, found.start()) - len(others)
            known, begin = known + 1, found.end()
    others = _others(text[begin:], unknown - (len(kept) - known))
    kept += others
    return Sifted(kept, len(kept) - known, left + text.count(b"\n", begin) - len(others))


def skim(lines: bytes, most: int) -> list[bytes]:
    """Return the last `most` grave ones of these lines, in order: a fault, or the start or end of a daemon or server.

    A line that is not grave costs less here than in `sift`.
    """
    text = b"\n" + lines
    lower = text.lower()
    begins = {found.start() for found in _ITEMS.finditer(text)}
    for word in _GRAVE:
        found = lower.find(word)
        while found >= 0:
            begins.add(lower.rfind(b"\n", 0, found))
            found = lower.find(word, _end(lower, found))
    found_last = (sift(text[begin + 1 : _end(text, begin + 1)]).lines for begin in sorted(begins, reverse=True))
    return list(islice(chain.from_iterable(found_last), most))[::-1]


def _end(text: bytes, begin: int) -> int:
    end = text.find(b"\n", begin)
    return len(text) if end < 0 else end


def _others(text: bytes, most: int) -> list[bytes]:
    """Return the first `most` of these lines, each of which begins with a line break."""
    return text.split(b"\n", most + 1)[1 : most + 1] if text and most > 0 else []


def _in_bytes(patterns: Iterable[str]) -> re.Pattern[bytes]:
    longer = (_BOUND.sub(_longer, pattern) for pattern in dict.fromkeys(patterns))
    return re.compile("|".join(f"(?:{pattern})" for pattern in longer).encode(), re.IGNORECASE)


def _longer(bound: re.Match[str]) -> str:
    return f"{{{bound[1]},{_BYTES_A_CHARACTER * int(bound[2])}}}"


_KNOWN = _in_bytes(pattern.pattern for pattern, _ in ALL_RULES)
"""All rules as one pattern over bytes."""
