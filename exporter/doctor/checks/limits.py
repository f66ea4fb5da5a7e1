"""Checks of limits and visible devices."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from exporter.doctor.facts import Area, Facts, ProcessFacts
from exporter.doctor.finding import Occurrence, Severity, check
from exporter.doctor.formatting import control_commands, daemon_label, gpu_label, process_label, shown
from exporter.model.daemon import Daemon
from exporter.model.settings import ACTIVE_THREAD_PERCENTAGE, PINNED_MEMORY_LIMIT, VISIBLE_DEVICES
from exporter.parse.mps_variables import parse_memory_limits, parse_percentage, visible_device_entries
from exporter.parse.protocol3 import LIST_DEVICES, PROTOCOL
from exporter.report.text import mebibytes
from exporter.state import devices as state_devices
from exporter.state.failure_domains import gpus_of_clients

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
    Severity.ERROR,
    Area.GPUS,
    Area.DAEMONS,
    Area.PROCESSES,
    fix="Give each device of a client its share, in G or M. Name devices by the daemon's own ordinals. They start at "
    "0, whatever its CUDA_VISIBLE_DEVICES is.",
    doc=PAGE,
)
def memory_limit_without_effect(facts: Facts) -> Iterator[Occurrence]:
    """A memory limit does not limit a client, and MPS reports no error.

    A limit in a daemon's environment has no effect (measured, R580). If one entry names a device that is not visible,
    a client has no limit at all (published by NVIDIA for driver 615.71).
    """
    for daemon, each in facts.running():
        if each.process.variable(PINNED_MEMORY_LIMIT) is not None:
            yield Occurrence(
                (daemon_label(each),),
                detail=f"{PINNED_MEMORY_LIMIT} has no effect in the environment of a daemon.",
                fix="Set the limit by command after each start, or let the watchdog do so (`pinned_memory_limits`).",
                commands=_commands_to_limit(facts, daemon, 0),
                severity=Severity.WARNING,
            )
    for limits in _memory_limits(facts):
        yield from _without_effect(facts, limits)


def _without_effect(facts: Facts, limits: "_MemoryLimits") -> Iterator[Occurrence]:
    """Yield what is wrong with these limits; a GPU without a limit only if nothing else explains it."""
    daemon, where = limits.daemon, (limits.source,)
    by_ordinal = state_devices.gpus_by_ordinal(facts.node, daemon)
    example = (f"{PINNED_MEMORY_LIMIT}=0=2G,1=512M",)
    wrong = [f"The value names no device: {shown(text)}." for text in limits.unnamed]
    wrong += [f"The limit of device {device} is not a size." for device, size in limits.by_device.items() if not size]
    if wrong:
        yield Occurrence(where, detail=" ".join(wrong), commands=example)
    missing = sorted(device for device in limits.by_device if device >= limits.devices) if limits.devices else []
    if missing:
        yield Occurrence(
            where,
            detail=f"It names device {', '.join(map(str, missing))}. The number of visible devices is "
            f"{limits.devices}.",
            commands=control_commands(
                facts, daemon, LIST_DEVICES if daemon.runtime.protocol == PROTOCOL else "device_query"
            ),
        )
    for device, size in limits.by_device.items():
        gpu = facts.node.gpus.get(by_ordinal.get(device, ""))
        total = None if gpu is None else gpu.reading.memory_total_bytes
        if size and total is not None and size > total:
            yield Occurrence(
                where,
                detail=f"Device {device} has {mebibytes(total)}, the limit is {mebibytes(size)}.",
                commands=_commands_to_limit(facts, daemon, device),
                severity=Severity.WARNING,
            )
    named = {*limits.by_device, *daemon.default_limits.pinned_memory}
    unlimited = limits.used - {uuid for device in named for uuid in (by_ordinal.get(device), limits.own.get(device))}
    for uuid in () if wrong or missing else sorted(unlimited):
        label = gpu_label(facts.node.gpus[uuid]) if uuid in facts.node.gpus else shown(uuid)
        yield Occurrence(
            where, detail=f"Its GPU has no limit of this client: {label}.", severity=Severity.WARNING, commands=example
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
        gpus = state_devices.gpus_by_ordinal(facts.node, daemon)
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


def _ordinal(text: str) -> int:
    """Return a device's ordinal; -1 if the text is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 4 else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemoryLimits:
    """Limits from one `source`, in bytes by the daemon's ordinals. None is not a size. `devices` are visible.

    `unnamed` are the entries that name no device. `used` are the GPUs of a client, and `own` its GPUs by its own
    ordinals, if its CUDA_VISIBLE_DEVICES gives it other ones.
    """

    daemon: Daemon
    source: str
    by_device: Mapping[int, int | None]
    devices: int
    unnamed: tuple[str, ...] = ()
    used: frozenset[str] = frozenset()
    own: Mapping[int, str] = field(default_factory=dict)


def _memory_limits(facts: Facts) -> Iterator[_MemoryLimits]:
    """Yield the limits of the configuration, of the daemons' defaults and of the clients' environments."""
    for configured in facts.config.daemons:
        daemon = facts.node.daemons.get(configured.name)
        if daemon is not None and configured.pinned_memory_limits:
            source = f"pinned_memory_limits of {shown(configured.name)}"
            count = state_devices.device_count(facts.node, daemon)
            limits = dict(configured.pinned_memory_limits)
            yield _MemoryLimits(daemon=daemon, source=source, by_device=limits, devices=count)
    for daemon in facts.node.daemons.values():
        count = state_devices.device_count(facts.node, daemon)
        if daemon.default_limits.pinned_memory:
            source, limits = f"the default of {shown(daemon.name)}", dict(daemon.default_limits.pinned_memory)
            yield _MemoryLimits(daemon=daemon, source=source, by_device=limits, devices=count)
        used = gpus_of_clients(facts.node, daemon, daemon.clients)
        for pid in (*daemon.clients, *daemon.connections.queued):
            process = facts.processes.get(pid)
            text = None if process is None else process.variable(PINNED_MEMORY_LIMIT)
            if process is not None and text is not None:
                yield _limits_of_client(facts, daemon, process, text, count, used.get(pid, frozenset()))


def _limits_of_client(
    facts: Facts, daemon: Daemon, process: ProcessFacts, text: str, count: int, used: frozenset[str]
) -> _MemoryLimits:
    """Return the limits that a client sets for itself. A device is an ordinal, or the UUID of a GPU.

    A client in a container may see only some GPUs, and then counts them in its own way.
    """
    gpus = state_devices.gpus_by_ordinal(facts.node, daemon)
    ordinals = {uuid: ordinal for ordinal, uuid in gpus.items()}
    entries = parse_memory_limits(text)
    devices = {name: ordinals.get(name, _ordinal(name)) for name in entries}
    visible = process.variable(VISIBLE_DEVICES)
    names = [] if visible is None else [name for name in visible_device_entries(visible) if name]
    return _MemoryLimits(
        daemon=daemon,
        source=f"{PINNED_MEMORY_LIMIT} of {process_label(process)}",
        by_device={device: entries[name] for name, device in devices.items() if device >= 0},
        devices=count if visible is None else min(count, len(names)),
        unnamed=tuple(name for name, device in devices.items() if device < 0),
        used=used if process.container is None else frozenset(),
        own={number: name if name in ordinals else gpus.get(_ordinal(name), "") for number, name in enumerate(names)},
    )
