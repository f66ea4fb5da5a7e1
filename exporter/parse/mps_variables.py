"""Values of CUDA's and MPS's environment variables, and sizes as MPS writes them.

CUDA reads the variables when a process first uses it (NVIDIA's MPS guide, "Environment Variables"). A workload can set
them to any text.
"""

import re
from collections.abc import Mapping, Sequence
from math import isfinite

from exporter.model.settings import ACTIVE_THREAD_PERCENTAGE, PER_CONTEXT_PARTITIONING, PINNED_MEMORY_LIMIT

CORE_DUMPS = ("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "CUDA_ENABLE_USER_TRIGGERED_COREDUMP")
_SIZE = re.compile(r"([0-9]{1,15})([KMGT]?)B?", re.IGNORECASE | re.ASCII)
_SHIFT = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_DEVICE = re.compile(r"0|[1-9][0-9]*|(GPU|MIG)-.*")
_ORDINAL = re.compile(r"[0-9]{1,3}")
_HIDING = re.compile(r"|-[0-9]+|[0-9]{4,}|nodevfiles|none|void", re.IGNORECASE)
"""HTCondor sets 10000, Slurm NoDevFiles, NVIDIA's container runtime void or none, and others -1 or nothing."""

_MAX_VALUE = 2048
"""A longer value may be truncated, and is not used."""


def parse_byte_size(text: str) -> int | None:
    """Return a size such as `3G`, `3000M` or `512` in bytes, 3G as 3 * 2^30 (R580); None if it is 0 or not a size."""
    found = _SIZE.fullmatch(text.strip())
    return None if found is None else int(found[1]) << _SHIFT[found[2].upper()] or None


def format_byte_size(size: int) -> str:
    """Return a size as `nvidia-cuda-mps-control` accepts it: in whole G or M (its manual page), at least 1M."""
    gigabytes, rest = divmod(size, 1 << 30)
    return f"{max(size >> 20, 1)}M" if rest else f"{gigabytes}G"


def parse_percentage(text: str) -> float | None:
    """Return an active thread percentage; None if the text is not one."""
    try:
        share = float(text)
    except ValueError:
        return None
    return share if isfinite(share) and 0 < share <= 100 else None


LEAST_SMS, _SM_STEP = 8, 2
"""MPS gives a client an even number of SMs, at least 8 (measured on whole H200; inferred for all other devices)."""


def sms_of(percentage: float, sms: int) -> int | None:
    """Return how many of `sms` a percentage allows; None if it allows all, or is not a percentage."""
    if not 0 < percentage < 100:
        return None
    return min(sms, max(LEAST_SMS, int(sms * percentage / 100) // _SM_STEP * _SM_STEP))


def core_dumps(variables: Mapping[str, str] | None) -> bool | None:
    """Return whether these turn on GPU core dumps; None if unknown. CUDA_ENABLE_LIGHTWEIGHT_COREDUMP does not."""
    values = {None} if variables is None else {variables.get(name, "0") for name in CORE_DUMPS}
    return "1" in values or (False if values <= {"", "0"} else None)


def client_thread_percentage(variables: Mapping[str, str]) -> float | None:
    """Return the active thread percentage that a client sets for itself, 100 if none; None if it is not known."""
    if variables.get(PER_CONTEXT_PARTITIONING, "0") not in ("", "0"):
        return None
    return parse_percentage(variables.get(ACTIVE_THREAD_PERCENTAGE, "100"))


def client_memory_limits(variables: Mapping[str, str]) -> Mapping[str, int] | None:
    """Return the limits in bytes that a client sets for itself, by device number or UUID; None if not known.

    It is not known which of two limits of one device applies, or for which device an entry such as `01=2G` is.
    """
    if not (text := variables.get(PINNED_MEMORY_LIMIT, "")):
        return {}
    parsed = parse_memory_limits(text)
    limits = {device: limit for device, limit in parsed if limit is not None and _DEVICE.fullmatch(device)}
    return limits if len(limits) == len(parsed) and len(text) <= _MAX_VALUE else None


def parse_memory_limits(text: str) -> Sequence[tuple[str, int | None]]:
    """Return the devices and sizes in a text such as `0=2G,1=512M`; None for a value that is not a size."""
    pairs = (each.strip().partition("=") for each in text.split(",") if each.strip())
    return [(device.strip(), parse_byte_size(size)) for device, _, size in pairs]


def visible_device_entries(text: str) -> tuple[str, ...]:
    """Return the entries of CUDA_VISIBLE_DEVICES in order: ordinals, or UUIDs."""
    return tuple(entry.strip() for entry in text.split(","))


def names_device(entry: str, number: int | None, uuid: str, older_name: str = "") -> bool:
    """Return whether an entry names a GPU by its number, or by a UUID, which may be abbreviated.

    `older_name` is the name of a MIG instance before R470.
    """
    if entry.startswith(("GPU-", "MIG-")):
        return uuid.startswith(entry) or entry == older_name
    return number is not None and entry == str(number)


def has_ordinals(text: str) -> bool:
    """Return whether an entry may be the number of a GPU, which counts the GPUs that the process sees."""
    return any(map(_ORDINAL.fullmatch, visible_device_entries(text)))


def hides_gpus(entry: str) -> bool:
    """Return whether an entry hides all further GPUs on purpose, as in jobs without GPUs."""
    return _HIDING.fullmatch(entry) is not None


def visible_gpu_uuids(text: str, gpus: Mapping[str, int | None]) -> tuple[str, ...]:
    """Return the UUIDs of the GPUs that CUDA_VISIBLE_DEVICES leaves visible, in the order of their new ordinals.

    `gpus` has the numbers of the GPUs that the process sees, by UUID. As in CUDA, an entry that names no GPU (such as
    -1), or a GPU a second time, ends the list.
    """
    found: list[str] = []
    for entry in visible_device_entries(text):
        named = [uuid for uuid, number in gpus.items() if names_device(entry, number, uuid)]
        if len(named) != 1 or named[0] in found:
            break
        found.append(named[0])
    return tuple(found)
