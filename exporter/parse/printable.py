"""Text that somebody else chose, so that it can be shown: a workload's name, say, which may hold anything."""

LONGEST_TEXT = 128
LONGEST_PROBLEM = 512
"""For a sentence of ours that tells a person what to do."""


def printable(text: str, longest: int = LONGEST_TEXT) -> str:
    """Text that can be shown and encoded: whatever a workload calls itself, it is short and keeps to its line."""
    return on_its_line(text[:longest])


def harmless(text: str) -> str:
    """Text of some lines, as it may go to a terminal, perhaps root's, whoever wrote it."""
    return "\n".join(map(on_its_line, text.split("\n")))


def on_its_line(text: str) -> str:
    """Text without anything that could not be shown, or would begin another line."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
