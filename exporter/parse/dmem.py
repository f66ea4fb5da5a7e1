"""Files of the dmem controller of cgroup v2, and the paths of cgroups. Not tried on hardware.

Sources: the kernel's Documentation/admin-guide/cgroup-v2.rst (DMEM) and kernel/cgroup/dmem.c. NVIDIA's MPS guide,
release 615, names the regions `nvidia/PCI/vidmem`, and maps the hard limit to dmem.max and the soft one to dmem.min.
"""

import re
from collections.abc import Mapping

from exporter.parse.kernel_log import parse_bus_id

MAX_BYTES = 1 << 16
"""A file has one line for each region: at most 64 GPUs, and a few regions of other drivers."""

MAX_DEPTH = 64
"""Levels of a path. Deeper cgroups are not read."""

_REGION = re.compile(r"nvidia/([0-9A-Fa-f:.]{7,20})/vidmem ([0-9]{1,20}|max)")
_NO_LIMIT = 1 << 63


def parse_regions(text: str) -> Mapping[str, int | None]:
    """Return the value of each NVIDIA GPU by its PCI address; None for `max`. Other lines are ignored."""
    found: dict[str, int | None] = {}
    for line in text.split("\n"):
        region = _REGION.fullmatch(line)
        address = None if region is None else parse_bus_id(region[1])
        if region is not None and address is not None:
            found[address] = limit_of(None if region[2] == "max" else int(region[2]))
    return found


def limit_of(value: int | None) -> int | None:
    """Return a limit; None if it is larger than any memory. NVML has the largest number for no limit (nvml.h)."""
    return None if value is None or value >= _NO_LIMIT else value


def smallest(*limits: int | None) -> int | None:
    """Return the limit that counts; None if there is none."""
    return min((limit for limit in limits if limit is not None), default=None)


def parse_cgroup_v2(text: str) -> str | None:
    """Return the path of the cgroup v2 in /proc/PID/cgroup; None if it cannot be followed from the root.

    That is a path outside the reader's cgroup namespace (it begins with `/..`), or of a removed cgroup.
    """
    paths = [line[3:] for line in text.split("\n") if line.startswith("0::/")]
    if len(paths) != 1 or paths[0].endswith(" (deleted)") or "\0" in paths[0]:
        return None
    names = components(paths[0])
    return None if len(names) > MAX_DEPTH or not {"..", "."}.isdisjoint(names) else "/" + "/".join(names)


def components(path: str) -> tuple[str, ...]:
    """Return the names of a path."""
    return tuple(name for name in path.split("/") if name)
