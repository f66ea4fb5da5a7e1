"""Colours: whether there are to be any, and which tone has which."""

from collections.abc import Mapping

from exporter.parse.printable import printable_line
from exporter.telling.line import Line, Piece, Tone

CHOICES = ("auto", "always", "never")

_SELECTED = {Tone.BAD: "1;31", Tone.DOUBTFUL: "33", Tone.WELL: "32", Tone.FAINT: "2", Tone.COMMAND: "1"}
"""By SGR, as every terminal knows it: bold red, yellow, green, dim and bold."""


def wanted(choice: str, environment: Mapping[str, str], *, at_a_terminal: bool) -> bool:
    """Whether there are to be colours: as the choice says, else the environment, else where a terminal knows them.

    NO_COLOR (no-color.org) outweighs FORCE_COLOR (force-color.org) and CLICOLOR_FORCE; empty, each counts as unset.
    """
    if choice != "auto":
        return choice == "always"
    if environment.get("NO_COLOR"):
        return False
    if any(environment.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return at_a_terminal and knows_sequences(environment)


def knows_sequences(environment: Mapping[str, str]) -> bool:
    """Whether the terminal is one that obeys escape sequences."""
    return environment.get("TERM", "dumb") not in ("", "dumb")


def painted(line: Line, *, colours: bool) -> str:
    """A line as it is written. No piece of it can bring a sequence of its own, whoever chose its text."""
    return "".join(_painted(piece) if colours else printable_line(piece.text) for piece in line.pieces)


def _painted(piece: Piece) -> str:
    sequence, text = _SELECTED.get(piece.tone), printable_line(piece.text)
    return text if sequence is None else f"\x1b[{sequence}m{text}\x1b[0m"
