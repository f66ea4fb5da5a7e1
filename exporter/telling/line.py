"""Lines of text for a person, each piece with its tone: what colour that is, whoever has a terminal decides."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Tone(StrEnum):
    """What a piece of text is to whoever reads it."""

    PLAIN = "plain"
    BAD = "bad"
    DOUBTFUL = "doubtful"
    WELL = "well"
    FAINT = "faint"
    COMMAND = "command"
    """For a shell: never broken, so that it can be copied."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text, and its tone."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Line:
    """One line. Where it must be broken, it goes on `indent` characters from the left."""

    pieces: tuple[Piece, ...] = ()
    indent: int = 4

    @property
    def text(self) -> str:
        """The line without its tones."""
        return "".join(piece.text for piece in self.pieces)

    def has(self, *tones: Tone) -> bool:
        """Whether any piece of it is of one of these tones."""
        return any(piece.tone in tones for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Lines:
    """Several lines, as one value that can be sent."""

    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """How the node is. `at` is when that was so, in seconds since the epoch.

    `head` is that at a glance, `table` who is there and who falls with whom, `sharing` how well they share their GPUs,
    `troubles` what is not well, with all that is known of it, `past` the faults that are over.
    """

    at: float
    head: tuple[Line, ...]
    table: tuple[Line, ...]
    troubles: tuple[Line, ...]
    past: tuple[Line, ...]
    sharing: tuple[Line, ...] = ()


def said(*pieces: Piece | str, indent: int = 4) -> Line:
    """A line of these pieces; those that stand beside each other in one tone become one."""
    joined: list[Piece] = []
    for each in pieces:
        piece = Piece(each) if isinstance(each, str) else each
        if joined and joined[-1].tone is piece.tone:
            piece = Piece(joined.pop().text + piece.text, piece.tone)
        if piece.text:
            joined.append(piece)
    return Line(tuple(joined), indent)


def bad(text: str) -> Piece:
    """What somebody must act on."""
    return Piece(text, Tone.BAD)


def doubtful(text: str) -> Piece:
    """What may need somebody, or not."""
    return Piece(text, Tone.DOUBTFUL)


def well(text: str) -> Piece:
    """What is as it should be."""
    return Piece(text, Tone.WELL)


def faint(text: str) -> Piece:
    """What is beside the matter."""
    return Piece(text, Tone.FAINT)


def shell(text: str) -> Piece:
    """What a shell can be told."""
    return Piece(text, Tone.COMMAND)


def text_of(lines: Iterable[Line]) -> str:
    """The lines as text, without their tones."""
    return "".join(f"{line.text}\n" for line in lines)
