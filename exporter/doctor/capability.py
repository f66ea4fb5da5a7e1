"""The capabilities that matter to the exporter (capabilities(7))."""

from collections.abc import Iterable
from enum import IntEnum


class Capability(IntEnum):
    """Each by its number, which is its bit."""

    DAC_OVERRIDE = 1
    KILL = 5
    SETGID = 6
    SETUID = 7
    SYS_PTRACE = 19
    SYS_ADMIN = 21
    SYSLOG = 34
    PERFMON = 38
    BPF = 39


def names(capabilities: Iterable[Capability]) -> str:
    """As they are written in units: `CAP_KILL, CAP_SETUID`."""
    return ", ".join(f"CAP_{each.name}" for each in capabilities)
