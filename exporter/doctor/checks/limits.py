"""Checks of limits and visible devices."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from exporter.doctor.facts import Area, Facts, ProcessFacts
from exporter.doctor.finding import Occurrence, Severity, check
from exporter.doctor.formatting import control_commands, daemon_label, process_label, shown
from exporter.model.daemon import Daemon
from exporter.model.settings import ACTIVE_THREAD_PERCENTAGE, PINNED_MEMORY_LIMIT, VISIBLE_DEVICES
from exporter.parse.mps_variables import parse_memory_limits, parse_percentage, visible_device_entries
from exporter.parse.protocol3 import LIST_DEVICES, PROTOCOL
from exporter.report.text import mebibytes
from exporter.state import gpus as state_gpus

PAGE = "docs/watchdog.md"


@check(
    Severity.ERROR,
    Area.DAEMONS,
    Area.PROCESSES,
    fix="Write a number without a percent sign, and restart the process.",
    doc=PAGE,
)
def thread_percentage_wrong(facts: Facts) -> Iterator[Occurrence]:
    """A thread percentage is not a number above 0 and up to 100. MPS ignores it."""
    users = [(daemon_label(each), each.process) for _, each in facts.running()]
    users += [(process_label(process), process) for process in facts.processes.values()]
    for user, process in users:
        text = process.variable(ACTIVE_THREAD_PERCENTAGE)
        if text is not None and parse_percentage(text) is None:
            yield Occurrence((user,), detail=f"{ACTIVE_THREAD_PERCENTAGE} is {shown(text) or 'empty'}.")


@check(
    Severity.WARNING,
    Area.DAEMONS,
    fix="Set it by command after each start, or let the watchdog do so (`pinned_memory_limits`). In a client's "
    "environment, the variable works.",
    doc=PAGE,
)
def memory_limit_in_environment(facts: Facts) -> Iterator[Occurrence]:
    """A memory limit is in a daemon's environment. It has no effect on clients (measured, R580)."""
    for daemon, each in facts.running():
        if each.process.variable(PINNED_MEMORY_LIMIT) is not None:
            yield Occurrence(
                (daemon_label(each),),
                detail=f"The variable is {PINNED_MEMORY_LIMIT}.",
                commands=_commands_to_limit(facts, daemon, 0),
            )


@check(Severity.WARNING, Area.GPUS, Area.PROCESSES, fix="Set it to each client's share, in G or M.", doc=PAGE)
def memory_limit_beyond_device(facts: Facts) -> Iterator[Occurrence]:
    """A memory limit is invalid or exceeds the GPU's memory. It limits no client."""
    for each in _memory_limits(facts):
        for ordinal, limit in each.by_device.items():
            gpu = facts.node.gpus.get(state_gpus.gpus_by_ordinal(facts.node, each.daemon).get(ordinal, ""))
            total = None if gpu is None else gpu.reading.memory_total_bytes
            if limit is None:
                yield Occurrence(
                    (each.source,),
                    detail=f"The limit of device {ordinal} is not a size.",
                    commands=(f"{PINNED_MEMORY_LIMIT}=0=2G,1=512M",),
                    severity=Severity.ERROR,
                )
            elif total is not None and limit > total:
                yield Occurrence(
                    (each.source,),
                    detail=f"Device {ordinal} has {mebibytes(total)}, the limit is {mebibytes(limit)}.",
                    commands=_commands_to_limit(facts, each.daemon, ordinal),
                )


@check(
    Severity.ERROR,
    Area.GPUS,
    Area.PROCESSES,
    fix="Name devices by the daemon's own ordinals. They start at 0, whatever its CUDA_VISIBLE_DEVICES is.",
    doc=PAGE,
)
def memory_limit_without_device(facts: Facts) -> Iterator[Occurrence]:
    """A memory limit names a device that is not visible: it limits no client. Then a client has no other limit either.

    MPS accepts it. That a client has no limit at all was published by NVIDIA for driver 615.71.
    """
    for each in _memory_limits(facts):
        missing = sorted(ordinal for ordinal in each.by_device if ordinal >= each.devices) if each.devices else []
        if missing:
            yield Occurrence(
                (each.source,),
                detail=f"It names device {', '.join(map(str, missing))}. The number of visible devices is "
                f"{each.devices}.",
                commands=control_commands(
                    facts, each.daemon, LIST_DEVICES if each.daemon.runtime.protocol == PROTOCOL else "device_query"
                ),
            )


@check(
    Severity.WARNING,
    Area.GPUS,
    Area.DAEMONS,
    Area.PROCESSES,
    fix="Remove the variable, or name GPUs by UUID in client and daemon.",
)
def gpu_not_visible(facts: Facts) -> Iterator[Occurrence]:
    """A client's CUDA_VISIBLE_DEVICES names a GPU that its daemon does not have. CUDA ignores the rest of the list."""
    for daemon, _ in facts.running():
        gpus = state_gpus.gpus_by_ordinal(facts.node, daemon)
        for pid in (*daemon.clients, *daemon.connections.queued) if gpus else ():
            process = facts.processes.get(pid)
            unknown = None if process is None else _first_unknown(process, gpus)
            if process is not None and unknown is not None:
                yield Occurrence(
                    (f"{process_label(process)}, of {shown(daemon.name)}",),
                    detail=f"The entry is {shown(unknown) or 'empty'}. The daemon has {len(gpus)} GPUs, from 0 on.",
                    commands=("nvidia-smi -L",),
                )


def _commands_to_limit(facts: Facts, daemon: Daemon, ordinal: int) -> tuple[str, ...]:
    """Return what limits the memory of later clients. Protocol 3 has no default, but a limit of each server."""
    if daemon.runtime.protocol != PROTOCOL:
        return control_commands(facts, daemon, f"set_default_device_pinned_mem_limit {ordinal} 2G")
    names = [each.name for each in daemon.servers.values() if each.name is not None]
    limits = (control_commands(facts, daemon, f"server set {name} --pinned-memory-limit=2G") for name in names)
    return tuple(chain(*limits))


def _first_unknown(process: ProcessFacts, gpus: Mapping[int, str]) -> str | None:
    """Return the first entry that is not a GPU of the daemon. A UUID may be abbreviated, and -1 ends the list."""
    visible = process.variable(VISIBLE_DEVICES)
    for entry in visible_device_entries(visible) if visible else ():
        if entry == "-1" or entry.startswith("MIG"):
            return None
        named = entry.startswith("GPU-") and any(uuid.startswith(entry) for uuid in gpus.values())
        if not named and _ordinal(entry) not in gpus:
            return entry
    return None


def _ordinal(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 4 else None


@dataclass(frozen=True, slots=True)
class _MemoryLimits:
    """Limits from one `source`, in bytes by the daemon's ordinals. None is not a size. `devices` are visible."""

    daemon: Daemon
    source: str
    by_device: Mapping[int, int | None]
    devices: int


def _memory_limits(facts: Facts) -> Iterator[_MemoryLimits]:
    """Yield the limits of the configuration, of the daemons' defaults and of the clients' environments."""
    for configured in facts.config.daemons:
        daemon = facts.node.daemons.get(configured.name)
        if daemon is not None and configured.pinned_memory_limits:
            source = f"pinned_memory_limits of {shown(configured.name)}"
            count = state_gpus.device_count(facts.node, daemon)
            yield _MemoryLimits(daemon, source, dict(configured.pinned_memory_limits), count)
    for daemon in facts.node.daemons.values():
        count = state_gpus.device_count(facts.node, daemon)
        if daemon.default_limits.pinned_memory:
            source = f"the default of {shown(daemon.name)}"
            yield _MemoryLimits(daemon, source, daemon.default_limits.pinned_memory, count)
        for pid in (*daemon.clients, *daemon.connections.queued):
            process = facts.processes.get(pid)
            text = None if process is None else process.variable(PINNED_MEMORY_LIMIT)
            if process is not None and text is not None:
                source = f"{PINNED_MEMORY_LIMIT} of {process_label(process)}"
                yield _MemoryLimits(daemon, source, _by_ordinal(text), min(count, _visible_count(process, count)))


def _visible_count(process: ProcessFacts, count: int) -> int:
    visible = process.variable(VISIBLE_DEVICES)
    return count if visible is None else len(list(filter(None, visible_device_entries(visible))))


def _by_ordinal(text: str) -> Mapping[int, int | None]:
    """Return the limits by device ordinal; MPS ignores an entry that names no device."""
    limits = ((_ordinal(device), limit) for device, limit in parse_memory_limits(text).items())
    return {ordinal: limit for ordinal, limit in limits if ordinal is not None}
