"""GPUs, and CUDA processes that bypass MPS on them."""

from collections.abc import Collection, Iterable, Mapping

from exporter.model.daemon import Daemon
from exporter.model.event import Event, EventName
from exporter.model.gpu import BypassingProcess, Gpu, MonotonicCounter, SharingMode
from exporter.model.node import Node
from exporter.model.observation import GpuReading, GpuUuid, SourceReading
from exporter.model.reason import Reason, ReasonCode
from exporter.model.values import replace
from exporter.parse.control_reply import DEVICE_QUERY
from exporter.parse.kernel_log import parse_bus_id
from exporter.parse.mps_variables import is_device_visible, visible_gpu_uuids
from exporter.state.plausibility import ENERGY, is_jump

NVML = "nvml"
"""Name of the collector that reads GPUs."""

VOLTA = 7
"""The major compute capability of Volta."""

MOST_DEVICES = 64
"""No machine has more. Log lines and replies about further devices are ignored."""

BYPASSING_AFTER_SECONDS = 1.0
"""A process that two readings, this far apart, show outside MPS bypasses it. (A starting client is in NVML's MPS list
before it is in the compute list; measured.)"""

LEFT_REMEMBERED_SECONDS = 60.0
"""How long it is remembered that a process has left NVML's MPS list."""

LOST = (ReasonCode.GPU_LOST, ReasonCode.GPU_NOT_REPORTED)
"""Problems of a GPU that NVML reports as a fact. With any other one, the GPU may be well."""

STALE_SECONDS = 5.0
"""A reading that is older than this at the end of its collection, because another GPU's call hung, is not current."""

CLOCK_SLACK_SECONDS = 0.05
"""A collection is timed by another clock than its readings."""

_MPS_COMMAND = "nvidia-cuda-mps"
"""Both MPS binaries have this name, cut to 15 characters."""


# -- devices of a daemon -------------------------------------------------------------------------------------------


def queries(node: Node, daemon: Daemon) -> Iterable[tuple[str, float | None]]:
    """Yield the query for the daemon's devices, if they are needed, and when it was last sent."""
    unknown = not daemon.runtime.devices and len(usable_gpus(node)) > 1
    logged = {uuid for client in daemon.clients.values() for uuid in client.gpus} if node.gpus else ()
    unknown |= any(physical_gpu(node, daemon, each) is None for each in logged)
    # The next server may not divide the GPUs.
    if unknown or daemon.has_mlopart_devices:
        yield DEVICE_QUERY, daemon.commands.asked_at.get(DEVICE_QUERY)


def usable_gpus(node: Node) -> Mapping[GpuUuid, GpuReading]:
    """Return what CUDA processes can use: MIG instances, and all GPUs but those with known instances."""
    divided = {gpu.reading.mig.parent for gpu in node.gpus.values() if gpu.reading.mig is not None}
    return {uuid: gpu.reading for uuid, gpu in node.gpus.items() if uuid not in divided}


def instances_of(node: Node, uuid: GpuUuid) -> tuple[GpuUuid, ...]:
    """Return the MIG instances of a GPU."""
    return tuple(each for each, gpu in node.gpus.items() if gpu.reading.mig and gpu.reading.mig.parent == uuid)


def physical_gpu(node: Node, daemon: Daemon, uuid: GpuUuid) -> GpuUuid | None:
    """Return the GPU of one of the daemon's devices, which may be an MLOPart device; None if it is unknown."""
    if uuid in node.gpus:
        return uuid
    address = daemon.runtime.addresses.get(uuid)
    gpus = (gpu.reading for gpu in node.gpus.values() if address is not None and gpu.reading.mig is None)
    return next((each.gpu for each in gpus if parse_bus_id(each.pci_bus_id or "") == address), None)


def physical_gpus(node: Node, daemon: Daemon, uuids: Iterable[GpuUuid]) -> set[GpuUuid]:
    """Return the GPUs of these devices. A device of an unknown GPU stands for itself."""
    return {physical_gpu(node, daemon, uuid) or uuid for uuid in uuids}


def serves_gpu(node: Node, daemon: Daemon, gpu: GpuReading) -> bool:
    """Return whether the daemon has this GPU or MIG instance: by its own list, else by CUDA_VISIBLE_DEVICES.

    Only its own list shows the limits of a container's device nodes. Older drivers do not know that query. If a GPU
    from Volta on is visible, the daemon ignores those before Volta (NVIDIA's MPS guide).
    """
    if daemon.runtime.devices:
        devices = daemon.runtime.devices.values()
        return gpu.gpu in devices or gpu.gpu in {physical_gpu(node, daemon, each) for each in devices}
    if not _is_visible(daemon, gpu):
        return False
    return is_from_volta(gpu) is not False or not any(
        is_from_volta(each.reading) and _is_visible(daemon, each.reading) for each in node.gpus.values()
    )


def is_from_volta(gpu: GpuReading) -> bool | None:
    """Return whether the architecture of a GPU is Volta or later; None if it is unknown."""
    major = major_version(gpu.compute_capability)
    return None if major is None else major >= VOLTA


def major_version(version: str | None) -> int | None:
    """Return the first number of a version such as 615.71.09; None if it is unknown."""
    return version_number((version or "").partition(".")[0])


def version_number(text: str) -> int | None:
    """Return one number of a version; None if the text is not one."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 4 else None


def _is_visible(daemon: Daemon, gpu: GpuReading) -> bool:
    """Return whether CUDA_VISIBLE_DEVICES leaves the GPU or MIG instance visible.

    Without a MIG instance in it, CUDA uses one instance (MIG user guide), and it is not known which.
    """
    visible = daemon.runtime.visible_devices
    if gpu.mig is None:
        return is_device_visible(visible, gpu.index, gpu.gpu)
    older_name = f"MIG-{gpu.mig.parent}/{gpu.mig.gpu_instance}/{gpu.mig.compute_instance}"
    return visible is not None and is_device_visible(visible, None, gpu.gpu, older_name)


def device_count(node: Node, daemon: Daemon) -> int:
    """Return how many devices the daemon has; 0 if that is unknown. Clients may count MLOPart devices."""
    if daemon.has_mlopart_devices:
        return 0
    if daemon.runtime.devices:
        return min(max(daemon.runtime.devices) + 1, MOST_DEVICES)
    return min(sum(serves_gpu(node, daemon, gpu.reading) for gpu in node.gpus.values()), MOST_DEVICES)


def gpus_by_ordinal(node: Node, daemon: Daemon) -> Mapping[int, GpuUuid]:
    """Return the GPUs by the daemon's ordinals: by its own list, else by CUDA_VISIBLE_DEVICES; empty if unknown.

    An unset CUDA_VISIBLE_DEVICES looks like one that cannot be read, so several GPUs have no known order then.
    Clients may count MLOPart devices, which are not GPUs.
    """
    if daemon.has_mlopart_devices:
        return {}
    if daemon.runtime.devices:
        return daemon.runtime.devices
    devices = usable_gpus(node)
    if daemon.runtime.visible_devices is not None:
        # CUDA enumerates one MIG instance at most (MIG user guide).
        instances = [uuid for uuid, reading in devices.items() if reading.mig and serves_gpu(node, daemon, reading)]
        if instances:
            return {0: instances[0]} if len(instances) == 1 else {}
        indices = {uuid: reading.index for uuid, reading in devices.items()}
        visible = visible_gpu_uuids(daemon.runtime.visible_devices, indices)
        return dict(enumerate(uuid for uuid in visible if serves_gpu(node, daemon, devices[uuid])))
    return dict(enumerate(devices)) if len(devices) == 1 else {}


def uses_gpu(node: Node, daemon: Daemon, uuid: GpuUuid) -> bool:
    """Return whether the daemon has this known GPU, or a MIG instance of it: a fault of a GPU concerns all of them."""
    return any(serves_gpu(node, daemon, node.gpus[each].reading) for each in (uuid, *instances_of(node, uuid)))


def is_same_or_parent(node: Node, uuid: GpuUuid, others: Collection[GpuUuid]) -> bool:
    """Return whether a GPU is one of the others, or one of them is a MIG instance of it."""
    return uuid in others or any(each in others for each in instances_of(node, uuid))


def serving_daemon(node: Node, gpu: GpuReading) -> Daemon | None:
    """Return the known daemon that serves this GPU, or would if it ran."""
    return next(iter(_serving_daemons(node, gpu)), None)


def _serving_daemons(node: Node, gpu: GpuReading) -> Iterable[Daemon]:
    return (each for each in node.daemons.values() if each.is_reported(node.at) and serves_gpu(node, each, gpu))


def mps_pids(node: Node) -> frozenset[int] | None:
    """Return the MPS clients on all GPUs; None if NVML has no list of them for any GPU."""
    lists = [gpu.reading.mps_processes for gpu in node.gpus.values() if gpu.reading.mps_processes is not None]
    return frozenset(process.pid for each in lists for process in each) if lists else None


# -- readings ------------------------------------------------------------------------------------------------------


def apply_reading(node: Node, reading: GpuReading) -> tuple[Node, tuple[Event, ...]]:
    """Apply a reading of a GPU. If it failed, what is known of the GPU's processes stays for the next one."""
    known = node.gpus.get(reading.gpu)
    gpu = replace(
        known or Gpu(reading=reading),
        reading=reading if known is None or reading.problem is None else _failed(known.reading, reading),
        bypassing_known=False,
        energy=_energy(known, reading),
        has_gpm=_has_gpm(known, reading),
        rejected_energy=_rejected_energy(reading),
        discarded=(0 if known is None else known.discarded) + _discarded(reading),
    )
    gpu, events = _apply_process_lists(node, gpu)
    events += _lost(known, gpu.reading)
    gpus = {**node.gpus, reading.gpu: gpu}
    if reading.problem is None and reading.mig is None:
        gpus = {uuid: each for uuid, each in gpus.items() if not _was_removed(each.reading, reading)}
    return replace(node, gpus=gpus), events


def _was_removed(instance: GpuReading, parent: GpuReading) -> bool:
    """Return whether a MIG instance no longer exists, by a reading of its GPU."""
    mig = instance.mig
    return mig is not None and mig.parent == parent.gpu and instance.gpu not in (parent.instances or ())


def is_lost(reading: GpuReading) -> bool:
    """Return whether a whole GPU is lost: it does not respond, or NVML works and does not list it."""
    return reading.mig is None and reading.problem is not None and reading.problem.code in LOST


def mark_unread_gpus(node: Node, collected: SourceReading) -> tuple[Node, tuple[Event, ...]]:
    """Remove the values of the GPUs that this collection did not read, or read too long ago, and report lost ones."""
    began = collected.at - min(collected.seconds, STALE_SECONDS) - CLOCK_SLACK_SECONDS
    events: tuple[Event, ...] = ()
    for uuid, gpu in node.gpus.items():
        if gpu.reading.at < began:
            reading = GpuReading(at=collected.at, gpu=uuid, problem=_unread(node, gpu.reading, collected))
            reading = _failed(gpu.reading, reading)
            node = replace(node, gpus={**node.gpus, uuid: replace(gpu, reading=reading)})
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
    """Report that a GPU is lost, once."""
    if not is_lost(reading) or reading.problem is None or (before is not None and is_lost(before.reading)):
        return ()
    return (Event(at=reading.at, event=EventName.GPU_LOST, gpu=reading.gpu, reason=reading.problem.code.value),)


def _failed(last: GpuReading, failed: GpuReading) -> GpuReading:
    """Return a failed reading with the constant properties of the GPU."""
    return replace(
        failed,
        index=last.index,
        name=last.name,
        pci_bus_id=last.pci_bus_id,
        compute_capability=last.compute_capability,
        mig=last.mig,
    )


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


def _rejected_energy(reading: GpuReading) -> MonotonicCounter | None:
    problem = reading.failed.get(ENERGY)
    if problem is None or problem.code is not ReasonCode.IMPLAUSIBLE:
        return None
    return MonotonicCounter(last=int(problem.parameters.get("detail") or 0), total=0, at=reading.at)


def _discarded(reading: GpuReading) -> int:
    return sum(problem.code is ReasonCode.IMPLAUSIBLE for problem in reading.failed.values())


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
    gpu = replace(
        gpu,
        mps_since={pid: gpu.mps_since.get(pid, at) for pid in pids},
        mps_left={pid: left_at for pid, left_at in left.items() if pid not in pids},
    )
    if reading.compute_processes is None:
        return gpu, ()
    daemons = tuple(_serving_daemons(node, reading))
    if not daemons:
        return replace(gpu, bypassing_processes={}), ()
    # Before a daemon has listed its servers, one of them might be taken for a bypassing process.
    if not all(daemon.connections.listed_at is not None or daemon.ended for daemon in daemons):
        return gpu, ()
    processes, events = _bypassing_processes(node, daemons[0], gpu)
    return replace(gpu, bypassing_processes=processes, bypassing_known=True), events


# -- bypassing processes -------------------------------------------------------------------------------------------


def _bypassing_processes(
    node: Node, daemon: Daemon, gpu: Gpu
) -> tuple[Mapping[int, BypassingProcess], tuple[Event, ...]]:
    found: dict[int, BypassingProcess] = {}
    events: list[Event] = []
    at, uuid = gpu.reading.at, gpu.reading.gpu
    for pid in _pids_outside_mps(node, gpu.reading):
        process = gpu.bypassing_processes.get(pid) or BypassingProcess(first_seen=at)
        lasting = at - process.first_seen >= BYPASSING_AFTER_SECONDS
        if not process.confirmed and lasting and _are_servers_known_since(node, process.first_seen):
            process = replace(process, confirmed=True)
            if not any(pid in other.bypassing for key, other in node.gpus.items() if key != uuid):
                name = EventName.PROCESS_BYPASSING
                events.append(Event(at=at, event=name, daemon=daemon.name, pid=pid, gpu=uuid))
        found[pid] = process
    return found, tuple(events)


def _are_servers_known_since(node: Node, at: float) -> bool:
    """Return whether every server that started since then is known: by the daemon's log, or from a later list."""
    return all(
        daemon.log_followed or daemon.connections.listed_at >= at
        for daemon in node.daemons.values()
        if daemon.connections.listed_at is not None
    )


def _pids_outside_mps(node: Node, reading: GpuReading) -> list[int]:
    """Return the PIDs in the compute list that were never known to use MPS."""
    of_mps = {process.pid for process in reading.mps_processes or ()}
    for daemon in node.daemons.values():
        connections = daemon.connections
        of_mps.update(daemon.servers, connections.server_exited_at)
        of_mps.update(daemon.clients, connections.disconnected_at, connections.queued)
    pids = (process.pid for process in reading.compute_processes or ())
    return [pid for pid in pids if pid not in of_mps and not _is_mps_program(node, pid)]


def _is_mps_program(node: Node, pid: int) -> bool:
    process = node.processes.get(pid)
    if process is None:
        return False
    name = (process.executable or "").rpartition("/")[2] or process.command or ""
    return name.startswith(_MPS_COMMAND)


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
    if outside and gpu.bypassing_known and not set(outside) <= set(gpu.bypassing):
        return None
    # If it is unknown which servers there are, a process outside MPS may be one of them.
    if outside and not gpu.bypassing_known and (reading.mps_processes or serving_daemon(node, reading) is not None):
        return None
    if len(outside) < len({process.pid for process in (*reading.compute_processes, *reading.mps_processes)}):
        return SharingMode.MIXED if outside else SharingMode.MPS
    if not outside:
        return SharingMode.IDLE
    return SharingMode.EXCLUSIVE if len(outside) == 1 else SharingMode.TIME_SLICING
