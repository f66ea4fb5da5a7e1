"""Text that somebody else chose, so that it can be shown: a workload's name, say, which may hold anything."""

LONGEST_TEXT = 128


def printable(text: str) -> str:
    """Text that can be shown and encoded: whatever a workload calls itself, it is short and keeps to its line."""
    if text.isascii() and text.isprintable() and len(text) <= LONGEST_TEXT:
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text[:LONGEST_TEXT])
