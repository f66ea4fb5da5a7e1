"""GPUs: readings, those that cannot be true, lost GPUs, and processes that bypass MPS."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from exporter.model.daemon import Daemon
from exporter.model.event import Event, EventName
from exporter.model.node import BypassingProcess, Gpu, MonotonicCounter, Node, SharingMode
from exporter.model.observation import GpuProcess, GpuReading, GpuUuid, SourceReading
from exporter.model.reason import Reason, ReasonCode
from exporter.model.sharing import GpuUse
from exporter.model.values import replace
from exporter.parse.proc import mps_program
from exporter.state.devices import LOST, instances_of, is_lost, serves_process, serving_daemons, with_contexts
from exporter.state.servers import REMEMBERED_SECONDS
from exporter.state.xids import with_resets

LEFT_REMEMBERED_SECONDS = 60.0  # How long it is remembered that a process has left NVML's MPS list.

STALE_SECONDS = 5.0
"""A reading that is older than this at the end of its collection, because another GPU's call hung, is not current."""

_CONSTANT = ("index", "name", "pci_bus_id", "compute_capability", "mig")
"""Properties of a GPU that do not change."""

CLOCK_SLACK_SECONDS = 0.05  # A collection is timed by another clock than its readings.


def apply_reading(node: Node, reading: GpuReading) -> tuple[Node, tuple[Event, ...]]:
    """Apply a reading of a GPU. If it failed, what is known of the GPU's processes stays for the next one."""
    known = node.gpus.get(reading.gpu)
    implausible = {name: each for name, each in reading.failed.items() if each.code is ReasonCode.IMPLAUSIBLE}
    rejected = implausible.get(ENERGY)
    energy = None if rejected is None else int(rejected.parameters.get("detail") or 0)
    gpu = replace(
        known or Gpu(reading=reading),
        reading=reading if known is None or reading.problem is None else _failed(known.reading, reading),
        bypassing_known=False,
        failing_since=None if reading.problem is None else (known and known.failing_since) or reading.at,
        energy=_energy(known, reading),
        has_gpm=_has_gpm(known, reading),
        rejected_energy=None if energy is None else MonotonicCounter(last=energy, total=0, at=reading.at),
        discarded=(0 if known is None else known.discarded) + len(implausible),
    )
    node = replace(node, daemons={name: with_contexts(each, reading) for name, each in node.daemons.items()})
    before, now = known.energy if known else None, gpu.energy
    if known and before and now and now.last < before.last and now.total > before.total:
        node = with_resets(node, (reading.gpu,), known.reading.at)
    gpu, events = _apply_process_lists(node, gpu)
    events += _lost(known, gpu.reading)
    gpus = {**_without_index(node.gpus, reading), reading.gpu: gpu}
    if reading.problem is None and reading.mig is None:
        # MIG instances that no longer exist are removed.
        gone = set(instances_of(node, reading.gpu)).difference(reading.instances or ())
        gpus = {uuid: each for uuid, each in gpus.items() if uuid not in gone}
    return replace(node, gpus=gpus), events


def _without_index(gpus: Mapping[GpuUuid, Gpu], reading: GpuReading) -> Mapping[GpuUuid, Gpu]:
    """Return the GPUs, of which no other one has this index: after a GPU was lost, NVML may count the others anew."""
    if reading.index is None or reading.mig is not None:
        return gpus
    others = {uuid: gpu.reading for uuid, gpu in gpus.items() if uuid != reading.gpu and gpu.reading.mig is None}
    same = {uuid: replace(each, index=None) for uuid, each in others.items() if each.index == reading.index}
    return {**gpus, **{uuid: replace(gpus[uuid], reading=each) for uuid, each in same.items()}}


def mark_unread_gpus(node: Node, collected: SourceReading) -> tuple[Node, tuple[Event, ...]]:
    """Remove the values of the GPUs that this collection did not read, or read too long ago, and report lost ones."""
    began = collected.at - min(collected.seconds, STALE_SECONDS) - CLOCK_SLACK_SECONDS
    events: tuple[Event, ...] = ()
    for uuid, gpu in node.gpus.items():
        if gpu.reading.at < began:
            reading = GpuReading(at=collected.at, gpu=uuid, problem=_unread(node, gpu.reading, collected))
            reading = _failed(gpu.reading, reading)
            unread = replace(gpu, reading=reading, failing_since=gpu.failing_since or reading.at)
            node = replace(node, gpus={**node.gpus, uuid: unread})
            events = (*events, *_lost(gpu, reading))
    return node, events


def _unread(node: Node, last: GpuReading, collected: SourceReading) -> Reason:
    """Return why a GPU was not read. If a problem is not of one known GPU, it is unknown whether NVML lists this one.

    A MIG instance has the problem of its GPU.
    """
    parent = None if last.mig is None else node.gpus.get(last.mig.parent)
    if parent is not None and parent.reading.problem is not None:
        return parent.reading.problem
    if last.at >= collected.at - collected.seconds - CLOCK_SLACK_SECONDS:
        return Reason(ReasonCode.STILL_RUNNING, seconds=collected.seconds)
    for each in () if collected.problem is None else collected.problem.each:
        if each.code not in LOST and (each.parameters.get("subject") or "").partition(" ")[0] not in node.gpus:
            return each
    return Reason(ReasonCode.GPU_NOT_REPORTED)


def _lost(before: Gpu | None, reading: GpuReading) -> tuple[Event, ...]:
    if not is_lost(reading) or reading.problem is None or (before is not None and is_lost(before.reading)):
        return ()
    return (Event(at=reading.at, event=EventName.GPU_LOST, gpu=reading.gpu, reason=reading.problem.code.value),)


def _failed(last: GpuReading, failed: GpuReading) -> GpuReading:
    """Return a failed reading with the constant properties of the GPU."""
    return replace(failed, **{name: getattr(last, name) for name in _CONSTANT})


def _has_gpm(before: Gpu | None, reading: GpuReading) -> bool | None:
    """Return whether there is GPM, which measures between two readings: None if not known.

    If NVML reports that there is GPM, readings without values do not refute that.
    """
    known = None if before is None else before.has_gpm
    if reading.problem is not None:
        return reading.gpm_supported if known is None else known
    if reading.sm_utilization is not None or reading.dram_bandwidth is not None:
        return True
    if reading.mig_mode or reading.gpm_supported is False:
        return False
    if known is not None or reading.gpm_supported:
        return known is not False
    return None if before is None or before.reading.problem else False


def _energy(before: Gpu | None, reading: GpuReading) -> MonotonicCounter | None:
    """Return the energy counter after a reading; one without energy does not change it."""
    known, value = None if before is None else before.energy, reading.energy_millijoules
    if value is None:
        return known
    if known is None:
        return MonotonicCounter(last=value, total=value, at=reading.at)
    if before is not None and reading.at < before.reading.at and value < known.last:
        return known
    # A smaller value shows a reset: the counter has counted all of it since.
    last = known.last if value >= known.last else 0
    used = 0 if is_jump(known, value, reading.at) else value - last
    return MonotonicCounter(last=value, total=known.total + used, at=reading.at)


def _apply_process_lists(node: Node, gpu: Gpu) -> tuple[Gpu, tuple[Event, ...]]:
    """Update which processes use MPS and which bypass it.

    Under MIG the lists are of all instances together, and complete only for a privileged user (nvml.h). So an empty
    list does not mean that there is no process, and a process outside MPS may run on an instance without MPS.
    """
    reading = gpu.reading
    if reading.mig_mode:
        return replace(gpu, mps_since={}, mps_left={}, bypassing_processes={}), ()
    if reading.problem is not None or reading.mps_processes is None:
        return gpu, ()
    at, pids = reading.at, [process.pid for process in reading.mps_processes]
    left = {pid: left_at for pid, left_at in gpu.mps_left.items() if at - left_at < LEFT_REMEMBERED_SECONDS}
    left.update(dict.fromkeys(gpu.mps_since, at))
    since = {pid: gpu.mps_since.get(pid, at) for pid in pids}
    left = {pid: left_at for pid, left_at in left.items() if pid not in pids}
    gpu = replace(gpu, mps_since=since, mps_left=left)
    if reading.compute_processes is None:
        return gpu, ()
    daemons = tuple(serving_daemons(node, reading))
    if not daemons:
        return replace(gpu, bypassing_processes={}), ()
    # Before a daemon has listed its servers, one of them might be taken for a bypassing process.
    if not all(daemon.connections.listed_at is not None or daemon.ended for daemon in daemons):
        return gpu, ()
    return with_bypassing_processes(node, daemons, gpu)


def used_bytes(reading: GpuReading) -> Mapping[int, int]:
    """Return the memory of each process on a GPU. NVML's two lists agree on clients in both (measured).

    The lists of a GPU in MIG mode repeat those of its MIG instances (nvml.h), so they are not read.
    """
    if reading.mig_mode:
        return {}
    processes = (*(reading.compute_processes or ()), *(reading.mps_processes or ()))
    return {each.pid: each.used_bytes for each in processes if each.used_bytes is not None}


# -- readings that cannot be true ------------------------------------------------------------------------------------

# Drivers return such values now and then, for example 2^64 - 1 for an energy counter. They are discarded and counted
# before they become metrics or usage.

ENERGY = "energy_millijoules"

MOST_WATTS = 10_000
"""More than any GPU takes: 1,400 W in 2026. A limit that is too low would lose the energy of a new GPU."""

LIMITS: Mapping[str, float] = {
    "gpu_percent": 100,
    "power_milliwatts": MOST_WATTS * 1e3,
    ENERGY: MOST_WATTS * 1e3 * 20 * 365 * 86400,  # 20 years of that power
    "memory_total_bytes": 1 << 46,  # 64 TiB
    "sm_utilization": 1.1,  # GPM rounds
    "dram_bandwidth": 1.1,
    "gpm_seconds": 86400,
}
"""The largest value of each field of a reading. The least is 0 for all."""

SLACK_SECONDS = 10.0
"""How much longer than the time between two readings an energy counter may have counted: it is updated late."""


def checked(before: Gpu | None, reading: GpuReading) -> GpuReading:
    """Return a reading without the values that cannot be true. Their problems are in `failed`."""
    wrong = dict(_wrong(before, reading))
    if wrong:
        values: dict[str, Any] = dict.fromkeys(wrong)
        reading = replace(reading, failed={**reading.failed, **wrong}, **values)
    total = reading.memory_total_bytes
    compute, mps = (_with_possible_memory(each, total) for each in (reading.compute_processes, reading.mps_processes))
    return replace(reading, compute_processes=compute, mps_processes=mps)


def is_possible(use: GpuUse) -> bool:
    """Return whether a GPU can have been used so much."""
    return all(
        value is None or 0 <= value <= LIMITS[name]
        for name, value in (("sm_utilization", use.sm_utilization), ("dram_bandwidth", use.dram_bandwidth))
    )


def is_jump(known: MonotonicCounter, value: int, at: float) -> bool:
    """Return whether an energy counter cannot have counted so much since it was last read, or since a reset."""
    counted = value - known.last if value >= known.last else value
    return counted > MOST_WATTS * 1e3 * (max(0.0, at - known.at) + SLACK_SECONDS)


def _wrong(before: Gpu | None, reading: GpuReading) -> Iterator[tuple[str, Reason]]:
    for name, most in LIMITS.items():
        value = getattr(reading, name)
        if value is not None and not 0 <= value <= most:
            yield name, _problem(name, value)
    used, total, energy = reading.memory_used_bytes, reading.memory_total_bytes, reading.energy_millijoules
    if used is not None and (used < 0 or (total and used > total)):
        yield "memory_used_bytes", _problem("memory_used_bytes", used)
    known = None if before is None else before.energy
    if before is None or known is None or energy is None or not 0 <= energy <= LIMITS[ENERGY]:
        return
    # Two readings in sequence that agree are right, and the one before them was wrong.
    rejected = before.rejected_energy
    agrees = rejected is not None and energy >= rejected.last and not is_jump(rejected, energy, reading.at)
    if is_jump(known, energy, reading.at) and not agrees:
        yield ENERGY, _problem(ENERGY, energy)


def _problem(name: str, value: Any) -> Reason:
    return Reason(ReasonCode.IMPLAUSIBLE, subject=name, detail=str(value))


def _with_possible_memory(processes: tuple[GpuProcess, ...] | None, total: int | None) -> tuple[GpuProcess, ...] | None:
    """Return the processes. One with more memory than the GPU has an unknown amount."""
    if not processes or not total:
        return processes
    return tuple(replace(each, used_bytes=None) if (each.used_bytes or 0) > total else each for each in processes)


# -- processes that bypass MPS -----------------------------------------------------------------------------------------


BYPASSING_AFTER_SECONDS = 1.0
"""A process that two readings, this far apart, show outside MPS bypasses it. (A starting client is in NVML's MPS list
before it is in the compute list; measured.)"""


def with_bypassing_processes(node: Node, daemons: Sequence[Daemon], gpu: Gpu) -> tuple[Gpu, tuple[Event, ...]]:
    """Find the processes that use a GPU of the daemons outside MPS, confirmed or not, and report new ones."""
    found: dict[int, BypassingProcess] = {}
    events: list[Event] = []
    at, uuid = gpu.reading.at, gpu.reading.gpu
    for pid in _pids_outside_mps(node, gpu.reading):
        known = gpu.bypassing_processes.get(pid) or BypassingProcess(first_seen=at)
        served_by = (each.name for each in daemons if serves_process(node, each, node.processes.get(pid)))
        process = replace(known, daemon=next(served_by, None))
        lasting = at - process.first_seen >= BYPASSING_AFTER_SECONDS
        # By the daemon's log, or from a later list, every server that started since then must be known.
        servers_known = all(
            each.log_followed or each.connections.listed_at >= process.first_seen
            for each in node.daemons.values()
            if each.connections.listed_at is not None
        )
        if not process.confirmed and lasting and servers_known:
            process = replace(process, confirmed=True)
        is_new = process.confirmed and process.daemon is not None and not (known.confirmed and known.daemon)
        if is_new and not any(pid in other.bypassing for key, other in node.gpus.items() if key != uuid):
            name = EventName.PROCESS_BYPASSING
            events.append(Event(at=at, event=name, daemon=process.daemon, pid=pid, gpu=uuid))
        found[pid] = process
    return replace(gpu, bypassing_processes=found, bypassing_known=True), tuple(events)


def may_bypass(node: Node, changed: Mapping[GpuUuid, frozenset[int]]) -> bool:
    """Return whether a process that began or stopped using a GPU since its reading may bypass a daemon there."""
    known = _known_to_mps(node) if any(changed.values()) else set()
    return any(
        any(serving_daemons(node, node.gpus[each].reading))
        for uuid, pids in changed.items()
        if not pids <= known
        for each in (uuid, *instances_of(node, uuid))
        if each in node.gpus
    )


def _known_to_mps(node: Node) -> set[int]:
    of_mps: set[int] = set()
    for daemon in node.daemons.values():
        connections = daemon.connections
        of_mps.update(daemon.servers, connections.server_exited_at)
        of_mps.update(daemon.clients, connections.disconnected_at, connections.queued)
    return of_mps


def _pids_outside_mps(node: Node, reading: GpuReading) -> list[int]:
    """Return the PIDs in the compute list that neither NVML nor a daemon has recently shown as users of MPS.

    Any user can write the log (measured, R580), so it does not show that. A client that exits leaves NVML's MPS list
    before the other list (R580).
    """
    of_mps = {*node.deaths, *(process.pid for process in reading.mps_processes or ())}
    for gpu in node.gpus.values():
        left = (pid for pid, left_at in gpu.mps_left.items() if reading.at - left_at <= REMEMBERED_SECONDS)
        of_mps.update(gpu.mps_since, left)
    for daemon in node.daemons.values():
        of_mps.update(daemon.servers, daemon.connections.server_exited_at)
        clients = (*daemon.clients.values(), *daemon.connections.recently_disconnected.values())
        of_mps.update(each.pid for each in clients if each.listed_at is not None)
    others = dict.fromkeys(each.pid for each in reading.compute_processes or () if each.pid not in of_mps)
    found = ((pid, node.processes.get(pid)) for pid in others)
    return [pid for pid, each in found if each is None or not mps_program(each.executable or each.command)]


def sharing_mode(node: Node, gpu: Gpu) -> SharingMode | None:
    """Return the sharing mode.

    It is None if the GPU was not read, if a list is missing, or if it is unknown which processes use MPS.
    """
    reading = gpu.reading
    if reading.problem is not None:
        return None
    if reading.mig_mode:
        return SharingMode.MIG
    if reading.compute_processes is None or reading.mps_processes is None:
        return None
    outside = _pids_outside_mps(node, reading)
    if outside and gpu.bypassing_known and not set(outside) <= set(gpu.outside):
        return None
    # If it is unknown which servers there are, a process outside MPS may be one of them.
    if outside and not gpu.bypassing_known and (reading.mps_processes or any(serving_daemons(node, reading))):
        return None
    if len(outside) < len({process.pid for process in (*reading.compute_processes, *reading.mps_processes)}):
        return SharingMode.MIXED if outside else SharingMode.MPS
    if not outside:
        return SharingMode.IDLE
    return SharingMode.EXCLUSIVE if len(outside) == 1 else SharingMode.TIME_SLICING
