"""Sessions in a control.log: commands, and the bytes that each wrote."""

from collections import Counter
from collections.abc import Mapping


def bytes_by_command(log: str) -> Mapping[str, tuple[int, int]]:
    """Return the number and the bytes of the sessions of each kind of command."""
    times: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    size, kind = 0, "nothing"
    for line in log.splitlines(keepends=True):
        size += len(line.encode())
        text = line.partition("] ")[2].rstrip("\n")
        if text.startswith("Cmd:"):
            kind = text.removeprefix("Cmd:").partition(" ")[0]
        if text == "UI closed":
            times[kind] += 1
            sizes[kind] += size
            size = 0
    return {kind: (times[kind], sizes[kind]) for kind in sorted(sizes, key=sizes.__getitem__, reverse=True)}
