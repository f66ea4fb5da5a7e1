"""The limits that an MPS client sets for itself, as they are in its environment.

CUDA reads these variables when the process first uses it (NVIDIA's MPS guide, "Environment Variables"). The values are
text that a workload chose. None: the limit is not known, which is not the same as no limit.
"""

from collections.abc import Mapping

from exporter.model.variables import ACTIVE_THREAD_PERCENTAGE, PER_CONTEXT_PARTITIONING, PINNED_MEMORY_LIMIT
from exporter.parse.byte_size import byte_size
from exporter.parse.control_reply import percentage

LONGEST = 2048
"""A longer value may have been truncated, and is not read."""

ALL_THREADS = 100.0


def thread_percentage(variables: Mapping[str, str]) -> float | None:
    """Return the share of a GPU's threads that the client allows itself, in percent; all where none is set."""
    if variables.get(PER_CONTEXT_PARTITIONING, "0") not in ("", "0"):
        return None
    text = variables.get(ACTIVE_THREAD_PERCENTAGE)
    return ALL_THREADS if text is None else percentage(text)


def memory_limits(variables: Mapping[str, str]) -> Mapping[str, int] | None:
    """Return the client's memory limits in bytes, by device as written: an ordinal or a UUID."""
    text = variables.get(PINNED_MEMORY_LIMIT, "")
    written = written_memory_limits(text)
    limits = {device: limit for device, limit in written.items() if limit is not None}
    return limits if len(limits) == len(written) and len(text) <= LONGEST else None


def written_memory_limits(text: str) -> Mapping[str, int | None]:
    """Return the sizes in a text such as `0=2G,1=512M`, by device; None for what is not a size."""
    pairs = (each.strip().partition("=") for each in text.split(","))
    return {device.strip(): byte_size(size) for device, _, size in pairs if device.strip()}
