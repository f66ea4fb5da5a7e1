"""Limits on the GPUs' memory, as they stand in the file: an ordinal and a size, as in `0=2G`."""

import re

from exporter.config.kinds import Kind, several, textual
from exporter.config.values import shown
from exporter.errors import ConfigError
from exporter.parse.byte_size import byte_size, size_for_mps

MOST_BYTES = 1 << 50

MemoryLimit = tuple[int, int]
"""The daemon's ordinal of a device, and bytes."""


def memory_limits() -> Kind:
    """A list of them, in which no device stands twice."""
    return several(textual("ORDINAL=SIZE", _parse, _write), differing=lambda limit: limit[0])


def _parse(where: str, text: str) -> MemoryLimit:
    """G and M alone are what `nvidia-cuda-mps-control` takes (its manual page)."""
    found = re.fullmatch(r"([0-9]|[1-5][0-9]|6[0-3])=([0-9]{1,12}[GM])", text)
    size = None if found is None else byte_size(found[2])
    if found is None or size is None or size > MOST_BYTES:
        raise ConfigError(f"{where}: {shown(text)} is no limit; write a device and a size, as in 0=2G or 1=512M")
    return int(found[1]), size


def _write(limit: MemoryLimit) -> str:
    device, size = limit
    return f"{device}={size_for_mps(size)}"
