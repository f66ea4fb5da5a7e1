"""Safe display of text that another user chose, such as a workload's name."""

import re
from collections.abc import Mapping
from typing import Any

LONGEST_TEXT = 128
LONGEST_PROBLEM = 512
"""For a sentence of the exporter with advice for an operator."""
LONGEST_VALUE = 4096  # for any text in JSON, such as a path or a command


class PrintableText(str):
    """A text of several lines that is printable already."""

    __slots__ = ()


def printable(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return the text truncated, without unprintable characters and line breaks."""
    return kept if (kept := text[:longest]).isprintable() else printable_line(kept)


def printable_lines(text: str) -> str:
    """Return a text of several lines without unprintable characters, safe for a terminal."""
    return "\n".join(map(printable_line, text.split("\n")))


def printable_line(text: str) -> str:
    """Return the text with each unprintable character, and each line break, replaced."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def printable_value(value: object, longest: int = LONGEST_VALUE) -> Any:
    """Return a value for JSON with each text and key in it truncated and printable. `PrintableText` stays as it is."""
    match value:
        case str() if not isinstance(value, PrintableText):
            return printable(value, longest)
        case Mapping():
            return {printable_value(key, longest): printable_value(each, longest) for key, each in value.items()}
        case list() | tuple():
            return [printable_value(each, longest) for each in value]
    return value


def metric_label(name: str) -> str:
    """Return the metric label for a label of a pod, as kube-state-metrics names it (internal/store/utils.go)."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", re.sub(r"[^a-zA-Z0-9_]", "_", name[:LONGEST_VALUE]))
    return f"label_{words.lower()}"
