"""Objects as JSON, within a bound on their size."""

import json
from collections.abc import Iterable


def fitting(objects: Iterable[object], most_bytes: int) -> list[bytes]:
    """As many of the objects as fit, from the first on, each encoded; the first one in any case."""
    encoded: list[bytes] = []
    size = 0
    for each in objects:
        text = json.dumps(each, ensure_ascii=False).encode(errors="replace")
        size += len(text)
        if encoded and size > most_bytes:
            break
        encoded.append(text)
    return encoded
