"""GPUs, and the CUDA processes beside MPS on those that a known daemon serves or should serve.

When a daemon dies, new CUDA processes run without MPS and say nothing (measured): only NVML's lists show them.
"""

from collections.abc import Iterable, Mapping

from exporter.core import devices
from exporter.core.meters import metered
from exporter.core.support import supported
from exporter.model.daemon import Daemon
from exporter.model.event import Event, EventName
from exporter.model.gpu import Gpu, Stranger
from exporter.model.node import Node
from exporter.model.observation import GpuReading, SourceReading
from exporter.model.problem import Problem, ProblemCode
from exporter.model.replace import replace

NVML = "nvml"
"""The source that reads GPUs has this name."""

BYPASSING_AFTER_SECONDS = 1.0
"""Seen beside MPS twice, this far apart, a process is not merely on its way in or out. (A starting client is in
NVML's MPS list before it is in the compute list; measured.)"""

LEFT_REMEMBERED_SECONDS = 60.0
"""How long it is remembered that a process has left NVML's MPS list."""

STALE_SECONDS = 5.0
"""A reading that is older than this when its look ends (another GPU's call hung) is not told as a fresh one."""

CLOCK_SLACK_SECONDS = 0.05
"""A look is timed by another clock than its readings."""

_MPS_COMMAND = "nvidia-cuda-mps"
"""Both MPS binaries have this name, cut to 15 characters."""


def gpu_read(node: Node, reading: GpuReading) -> tuple[Node, tuple[Event, ...]]:
    """NVML has read a GPU, or failed to: a failure leaves what was known of its processes, for the next reading."""
    known = node.gpus.get(reading.gpu)
    gpu = replace(
        known or Gpu(reading=reading),
        reading=reading if known is None or reading.problem is None else _unread(known.reading, reading),
        judged=False,
        meters=metered(known, reading),
        supported=supported(known, reading),
    )
    gpu, events = _processes_read(node, gpu)
    return replace(node, gpus={**node.gpus, reading.gpu: gpu}), events


def _processes_read(node: Node, gpu: Gpu) -> tuple[Gpu, tuple[Event, ...]]:
    """Who came, who left, and who is beside MPS.

    Under MIG the lists are of all instances together, and only for who may see them (nvml.h): neither does an empty one
    mean that nobody is there, nor does a process without MPS run on an instance that has it.
    """
    reading = gpu.reading
    events: tuple[Event, ...] = ()
    if reading.mig_mode:
        return replace(gpu, mps_since={}, mps_left={}, strangers={}), events
    server = serving_daemon(node, reading)
    if reading.problem is None and reading.mps_processes is not None:
        gpu = _mps_list_read(gpu, reading.at, [process.pid for process in reading.mps_processes])
        if server is None:
            gpu = replace(gpu, strangers={})
        elif _servers_known(node, reading):
            strangers, events = _strangers(node, server, reading, gpu.strangers)
            gpu = replace(gpu, strangers=strangers, judged=True)
    return gpu, events


def _mps_list_read(gpu: Gpu, at: float, pids: list[int]) -> Gpu:
    left = {pid: left_at for pid, left_at in gpu.mps_left.items() if at - left_at < LEFT_REMEMBERED_SECONDS}
    left.update(dict.fromkeys(gpu.mps_since, at))
    return replace(
        gpu,
        mps_since={pid: gpu.mps_since.get(pid, at) for pid in pids},
        mps_left={pid: left_at for pid, left_at in left.items() if pid not in pids},
    )


def nvml_looked(node: Node, look: SourceReading) -> Node:
    """NVML was looked at: a GPU that this look did not read, or read too long ago, has no reading."""
    began = look.at - min(look.seconds, STALE_SECONDS) - CLOCK_SLACK_SECONDS
    missed = {uuid: gpu for uuid, gpu in node.gpus.items() if gpu.reading.at < began}
    if not missed:
        return node
    problem = look.problem or Problem(code=ProblemCode.GPU_NOT_REPORTED)
    unread = {
        uuid: replace(gpu, reading=_unread(gpu.reading, GpuReading(at=look.at, gpu=uuid, problem=problem)))
        for uuid, gpu in missed.items()
    }
    return replace(node, gpus={**node.gpus, **unread})


def _unread(last: GpuReading, failed: GpuReading) -> GpuReading:
    """A failed reading, of a GPU that is still the one it was."""
    return replace(
        failed,
        index=last.index,
        name=last.name,
        pci_bus_id=last.pci_bus_id,
        compute_capability=last.compute_capability,
    )


def serving_daemon(node: Node, gpu: GpuReading) -> Daemon | None:
    """The known daemon that serves this GPU, or would if it lived."""
    return next(iter(_serving(node, gpu)), None)


def _serving(node: Node, gpu: GpuReading) -> Iterable[Daemon]:
    for daemon in node.daemons.values():
        if daemon.told_of(node.at) and devices.served(daemon, gpu):
            yield daemon


def _strangers(
    node: Node,
    server: Daemon,
    reading: GpuReading,
    before: Mapping[int, Stranger],
) -> tuple[Mapping[int, Stranger], tuple[Event, ...]]:
    strangers: dict[int, Stranger] = {}
    events: list[Event] = []
    for pid in beside_mps(node, reading):
        stranger = before.get(pid) or Stranger(first_seen=reading.at)
        settled = reading.at - stranger.first_seen >= BYPASSING_AFTER_SECONDS
        if not stranger.told and settled and _no_server_since(node, stranger.first_seen):
            stranger = replace(stranger, told=True)
            if not _told_elsewhere(node, reading.gpu, pid):
                events.append(_bypassing(server, reading, pid))
        strangers[pid] = stranger
    return strangers, tuple(events)


def _servers_known(node: Node, gpu: GpuReading) -> bool:
    """Until a daemon has said which servers it has, one of them might be taken for a process beside MPS."""
    return all(daemon.connections.listed_at is not None or daemon.gone for daemon in _serving(node, gpu))


def _no_server_since(node: Node, at: float) -> bool:
    """Whether every server that started since would be known: by the daemon's log, or from a later list."""
    alive = (daemon for daemon in node.daemons.values() if daemon.connections.listed_at is not None)
    return all(daemon.log_followed or (daemon.connections.listed_at or at) >= at for daemon in alive)


def beside_mps(node: Node, reading: GpuReading) -> list[int]:
    """PIDs in the compute list that MPS has nothing to do with, nor had while they lived."""
    of_mps = {process.pid for process in reading.mps_processes or ()}
    for daemon in node.daemons.values():
        of_mps.update(
            daemon.servers,
            daemon.connections.departed_servers,
            daemon.clients,
            daemon.connections.departed,
            daemon.connections.pending,
        )
    return [
        process.pid
        for process in reading.compute_processes or ()
        if process.pid not in of_mps and not _is_mps_binary(node, process.pid)
    ]


def _is_mps_binary(node: Node, pid: int) -> bool:
    process = node.processes.get(pid)
    if process is None:
        return False
    executable = (process.executable or "").rpartition("/")[2]
    return executable.startswith(_MPS_COMMAND) if executable else (process.command or "").startswith(_MPS_COMMAND)


def _told_elsewhere(node: Node, gpu: str, pid: int) -> bool:
    others = (other for uuid, other in node.gpus.items() if uuid != gpu)
    return any(pid in other.bypassing for other in others)


def _bypassing(server: Daemon, reading: GpuReading, pid: int) -> Event:
    return Event(
        at=reading.at,
        event=EventName.PROCESS_BYPASSING,
        daemon=server.name,
        pid=pid,
        gpu=reading.gpu,
    )
