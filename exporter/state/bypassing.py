"""Detection of CUDA processes that use a GPU without MPS although a daemon serves it."""

from exporter.model.daemon import Daemon
from exporter.model.event import Event, EventName
from exporter.model.gpu import BypassingProcess, Gpu, SharingMode
from exporter.model.node import Node
from exporter.model.observation import GpuReading
from exporter.model.values import replace
from exporter.state.devices import serving_daemon

BYPASSING_AFTER_SECONDS = 1.0
"""A process that two readings, this far apart, show outside MPS bypasses it. (A starting client is in NVML's MPS list
before it is in the compute list; measured.)"""

_MPS_COMMAND = "nvidia-cuda-mps"
"""Both MPS binaries have this name, cut to 15 characters."""


def with_bypassing_processes(node: Node, daemon: Daemon, gpu: Gpu) -> tuple[Gpu, tuple[Event, ...]]:
    """Find the processes that use a GPU of the daemon outside MPS, confirmed or not, and report new ones."""
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
    return replace(gpu, bypassing_processes=found, bypassing_known=True), tuple(events)


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
