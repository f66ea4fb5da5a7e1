"""Sizes as MPS writes them: `3G`, `3000M`, or bytes."""

import re

_SIZE = re.compile(r"([0-9]{1,15})([KMGT]?)B?", re.IGNORECASE)
_SHIFT = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def byte_size(text: str) -> int | None:
    """The size in bytes (3G are 3 * 2^30, as a server's log has it; R580); None where it is none, or nothing."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    return int(found[1]) << _SHIFT[found[2].upper()] or None


def size_for_mps(size: int) -> str:
    """A size in bytes as `nvidia-cuda-mps-control` takes it, in whole G or M (its manual page), and never as 0."""
    gigabytes, rest = divmod(size, 1 << 30)
    return f"{max(size >> 20, 1)}M" if rest else f"{gigabytes}G"
