"""Checks of limits and visible devices."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from exporter.doctor.facts import Area, Facts, ProcessFacts
from exporter.doctor.finding import Check, Found, Severity
from exporter.doctor.words import command_to, daemon_text, shown, who
from exporter.model.daemon import Daemon
from exporter.model.settings import ACTIVE_THREAD_PERCENTAGE, PINNED_MEMORY_LIMIT, VISIBLE_DEVICES
from exporter.parse.mps_variables import parse_memory_limits, parse_percentage, visible_device_entries
from exporter.report.text import mebibytes
from exporter.state import gpus as state_gpus


def thread_percentage_wrong(facts: Facts) -> Iterator[Found]:
    """A thread percentage is none, or not between 0 and 100."""
    for whose, text in _percentages(facts):
        if parse_percentage(text) is None:
            yield Found(
                severity=Severity.ERROR,
                what=f"{ACTIVE_THREAD_PERCENTAGE} is {shown(text) or 'empty'}, and not a number above 0 and up to "
                "100: MPS ignores it",
                where=(whose,),
                mend="Write a number, without a percent sign, and start it again",
                commands=(f"{ACTIVE_THREAD_PERCENTAGE}=40",),
            )


def memory_limit_in_environment(facts: Facts) -> Iterator[Found]:
    """A memory limit is in a daemon's environment, where it does nothing."""
    for daemon, each in facts.running():
        if PINNED_MEMORY_LIMIT in (each.process.variables or {}):
            yield Found(
                severity=Severity.WARNING,
                what=f"{PINNED_MEMORY_LIMIT} is in a daemon's environment, where it does nothing: it limits none of "
                "its clients (measured, R580)",
                where=(daemon_text(each),),
                mend="Set the limit by command after each start (ExecStartPost=), or have the exporter keep it "
                "(pinned_memory_limits, watchdog.mode = act); in a client's environment it works",
                commands=command_to(facts, daemon, "set_default_device_pinned_mem_limit 0 2G"),
            )


def memory_limit_beyond_device(facts: Facts) -> Iterator[Found]:
    """A memory limit is more than its GPU has, or none that can be read."""
    for each in _memory_limits(facts):
        for ordinal, limit in each.by_device.items():
            gpu = facts.node.gpus.get(state_gpus.by_its_ordinals(facts.node, each.daemon).get(ordinal, ""))
            total = None if gpu is None else gpu.reading.memory_total_bytes
            if limit is not None and total is not None and limit > total:
                yield Found(
                    severity=Severity.WARNING,
                    what=f"the memory limit of device {ordinal}, {mebibytes(limit)}, is more than the GPU has, "
                    f"{mebibytes(total)}: it limits nobody",
                    where=(each.whose,),
                    mend="Set it to each client's share",
                    commands=command_to(facts, each.daemon, f"set_default_device_pinned_mem_limit {ordinal} 2G"),
                )
            elif limit is None:
                yield Found(
                    severity=Severity.ERROR,
                    what=f"the memory limit of device {ordinal} is no size that MPS can read",
                    where=(each.whose,),
                    mend="Write it with G or M",
                    commands=(f"{PINNED_MEMORY_LIMIT}=0=2G,1=512M",),
                )


def memory_limit_without_device(facts: Facts) -> Iterator[Found]:
    """A memory limit names a device that is not there, or that the client cannot see."""
    for each in _memory_limits(facts):
        strays = sorted(ordinal for ordinal in each.by_device if ordinal >= each.devices) if each.devices else []
        if strays:
            yield Found(
                severity=Severity.ERROR,
                what=f"a memory limit names device {', '.join(map(str, strays))}, where {each.devices} can be seen, "
                "counted from 0: MPS accepts it, and it limits nobody",
                where=(each.whose,),
                mend="Name devices by the daemon's own ordinals, which begin at 0 whatever its CUDA_VISIBLE_DEVICES is",
                commands=command_to(facts, each.daemon, "device_query"),
            )


def gpu_not_visible(facts: Facts) -> Iterator[Found]:
    """A client's CUDA_VISIBLE_DEVICES names a GPU that its daemon does not have."""
    for daemon, _ in facts.running():
        gpus = state_gpus.by_its_ordinals(facts.node, daemon)
        for pid in (*daemon.clients, *daemon.connections.queued) if gpus else ():
            process = facts.processes.get(pid)
            stray = None if process is None else _first_stray(process, gpus)
            if process is not None and stray is not None:
                yield Found(
                    severity=Severity.WARNING,
                    what=f"a client's {VISIBLE_DEVICES} names {shown(stray) or 'nothing'}, which the daemon does not "
                    f"have: it has {len(gpus)}, numbered from 0. CUDA ends the list there, so that the client sees "
                    "fewer GPUs than it should, or none",
                    where=(f"{who(process)}, of {shown(daemon.name)}",),
                    mend="Leave the variable to the daemon, or name GPUs by UUID in both",
                    commands=("nvidia-smi -L",),
                )


def _first_stray(process: ProcessFacts, gpus: Mapping[int, str]) -> str | None:
    """The first entry that is none of the daemon's GPUs. A UUID may be cut short; -1 ends the list on purpose."""
    visible = (process.variables or {}).get(VISIBLE_DEVICES)
    for entry in () if not visible else visible_device_entries(visible):
        if entry == "-1" or entry.startswith("MIG"):
            return None
        ordinal = int(entry) if entry.isascii() and entry.isdecimal() and len(entry) < 4 else None
        named = entry.startswith("GPU-") and any(uuid.startswith(entry) for uuid in gpus.values())
        if ordinal not in gpus and not named:
            return entry
    return None


def _percentages(facts: Facts) -> Iterator[tuple[str, str]]:
    for _, each in facts.running():
        text = (each.process.variables or {}).get(ACTIVE_THREAD_PERCENTAGE)
        if text is not None:
            yield daemon_text(each), text
    for process in facts.processes.values():
        text = (process.variables or {}).get(ACTIVE_THREAD_PERCENTAGE)
        if text is not None:
            yield who(process), text


@dataclass(frozen=True, slots=True)
class _MemoryLimits:
    """Limits in bytes, None where one is no size, by the daemon's ordinals, of which `devices` can be seen."""

    daemon: Daemon
    whose: str
    by_device: Mapping[int, int | None]
    devices: int


def _memory_limits(facts: Facts) -> Iterator[_MemoryLimits]:
    """Wherever they come from: the configuration, a daemon's defaults, clients' environments."""
    for configured in facts.config.daemons:
        daemon = facts.node.daemons.get(configured.name)
        if daemon is not None and configured.pinned_memory_limits:
            whose = f"pinned_memory_limits of {shown(configured.name)}"
            limits = dict(configured.pinned_memory_limits)
            yield _MemoryLimits(daemon, whose, limits, state_gpus.count(facts.node, daemon))
    for daemon in facts.node.daemons.values():
        count = state_gpus.count(facts.node, daemon)
        if daemon.default_limits.pinned_memory:
            whose = f"the default of {shown(daemon.name)}"
            yield _MemoryLimits(daemon, whose, daemon.default_limits.pinned_memory, count)
        for pid in (*daemon.clients, *daemon.connections.queued):
            process = facts.processes.get(pid)
            variables = {} if process is None else process.variables or {}
            if process is not None and PINNED_MEMORY_LIMIT in variables:
                whose = f"{PINNED_MEMORY_LIMIT} of {who(process)}"
                limits_of_client = _by_ordinal(variables[PINNED_MEMORY_LIMIT])
                yield _MemoryLimits(daemon, whose, limits_of_client, min(count, _visible(variables, count)))


def _visible(variables: Mapping[str, str], count: int) -> int:
    """How many GPUs a client leaves itself."""
    visible = variables.get(VISIBLE_DEVICES)
    return count if visible is None else len(list(filter(None, visible_device_entries(visible))))


def _by_ordinal(text: str) -> Mapping[int, int | None]:
    """Return the limits by device ordinal; MPS ignores an entry that names no device."""
    return {
        int(device): limit
        for device, limit in parse_memory_limits(text).items()
        if device.isascii() and device.isdecimal() and len(device) < 4
    }


_NEEDS = (Area.GPUS, Area.DAEMONS, Area.PROCESSES)

CHECKS = (
    Check(
        thread_percentage_wrong,
        fine="thread percentages are above 0, and 100 at most",
        mend="write a number, as in 40",
        needs=(Area.DAEMONS, Area.PROCESSES),
        doc="docs/watchdog.md",
    ),
    Check(
        memory_limit_in_environment,
        fine="no memory limit stands where it does nothing",
        mend="set it by command, or let the exporter keep it",
        needs=(Area.DAEMONS,),
        doc="docs/watchdog.md",
    ),
    Check(
        memory_limit_beyond_device,
        fine="memory limits are within the GPUs'",
        mend="each client's share, in G or M",
        needs=(Area.GPUS, Area.PROCESSES),
        doc="docs/watchdog.md",
    ),
    Check(
        memory_limit_without_device,
        fine="memory limits name devices that are there",
        mend="by the daemon's own ordinals, from 0 on",
        needs=(Area.GPUS, Area.PROCESSES),
        doc="docs/watchdog.md",
    ),
    Check(
        gpu_not_visible,
        fine="clients name GPUs that their daemon has",
        mend="leave the variable to the daemon, or use UUIDs in both",
        needs=_NEEDS,
    ),
)
