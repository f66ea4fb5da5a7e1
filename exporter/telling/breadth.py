"""How many columns of a terminal a text takes: names may be in any script."""

import unicodedata


def breadth(text: str) -> int:
    """The columns that a text takes."""
    return len(text) if text.isascii() else sum(map(_of, text))


def shortened(text: str, columns: int, *, keep_end: bool = False) -> str:
    """A text that takes no more than so many columns; what is left out, its end or its beginning, is shown."""
    if breadth(text) <= columns:
        return text
    kept, left = "", columns - 1
    for char in reversed(text) if keep_end else text:
        left -= _of(char)
        if left < 0:
            break
        kept = char + kept if keep_end else kept + char
    return f"…{kept}" if keep_end else f"{kept}…"


def _of(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1
