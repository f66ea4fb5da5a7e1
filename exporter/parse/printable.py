"""Safe display of text that another user chose, such as a workload's name, and checks of unit names."""

import re

LONGEST_TEXT = 128
LONGEST_PROBLEM = 512
"""For a sentence of the exporter with advice for an operator."""


def printable(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return the text truncated, without unprintable characters and line breaks."""
    return printable_line(text[:longest])


def printable_lines(text: str) -> str:
    """Return a text of several lines without unprintable characters, safe for a terminal."""
    return "\n".join(map(printable_line, text.split("\n")))


def printable_line(text: str) -> str:
    """Return the text with each unprintable character, and each line break, replaced."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def is_service_name(name: str) -> bool:
    """Return whether the text names one service, and is neither a pattern nor an option (systemd.unit(5))."""
    return re.fullmatch(r"(?!-)[A-Za-z0-9:_.\\@-]{1,247}\.service", name) is not None
