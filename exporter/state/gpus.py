"""GPUs, and CUDA processes that bypass MPS on them."""

from collections.abc import Iterable, Mapping

from exporter.model.daemon import Daemon
from exporter.model.event import Event, EventName
from exporter.model.gpu import BypassingProcess, Gpu, MonotonicCounter, SharingMode
from exporter.model.node import Node
from exporter.model.observation import GpuReading, GpuUuid, SourceReading
from exporter.model.problem import Problem, ProblemCode
from exporter.model.values import replace
from exporter.parse.control_reply import DEVICE_QUERY
from exporter.parse.mps_variables import is_device_visible, visible_gpu_uuids

MOST_DEVICES = 64
"""More than any machine has: what speaks of a device beyond is not listened to."""


def questions(node: Node, daemon: Daemon) -> Iterable[tuple[str, float | None]]:
    """What may be asked about devices, and since when it has been asked in vain."""
    if not daemon.runtime.devices and len(node.gpus) > 1:
        yield DEVICE_QUERY, daemon.commands.asked_at.get(DEVICE_QUERY)


def served(daemon: Daemon, gpu: GpuReading) -> bool:
    """Whether the daemon has this GPU: as it told, else by what it may see.

    A container's device nodes confine it too, and nothing but its own word shows that. It is asked as soon as it
    answers, while whoever is on another GPU is not yet settled as beside it; older drivers do not know the question.
    """
    if daemon.runtime.devices:
        return gpu.gpu in daemon.runtime.devices.values()
    return is_device_visible(daemon.runtime.visible_devices, gpu.index, gpu.gpu)


def count(node: Node, daemon: Daemon) -> int:
    """How many devices the daemon has, as far as can be told."""
    if daemon.runtime.devices:
        return min(max(daemon.runtime.devices) + 1, MOST_DEVICES)
    visible = (
        is_device_visible(daemon.runtime.visible_devices, gpu.reading.index, uuid) for uuid, gpu in node.gpus.items()
    )
    return min(sum(visible), MOST_DEVICES)


def by_its_ordinals(node: Node, daemon: Daemon) -> Mapping[int, GpuUuid]:
    """The GPUs by the daemon's ordinals: as it told them, else by what it may see; empty where neither is sure.

    An unset CUDA_VISIBLE_DEVICES and one that may not be read look the same, so with several GPUs neither will do.
    """
    if daemon.runtime.devices:
        return daemon.runtime.devices
    if daemon.runtime.visible_devices is not None:
        indices = {uuid: gpu.reading.index for uuid, gpu in node.gpus.items()}
        return dict(enumerate(visible_gpu_uuids(daemon.runtime.visible_devices, indices)))
    return dict(enumerate(node.gpus)) if len(node.gpus) == 1 else {}


GPM = "gpm"


def supported(before: Gpu | None, reading: GpuReading) -> Mapping[str, bool]:
    """Each kind of reading, and whether it is given; of a GPU that failed, as it was.

    Under MIG, NVML tells nothing of single processes on the whole GPU that could be relied on (nvml.h).
    """
    if reading.problem is not None:
        return {} if before is None else before.supported
    whole = not reading.mig_mode
    given = {
        "memory": reading.memory_used_bytes is not None,
        "utilization": reading.gpu_percent is not None,
        "processes": whole and reading.compute_processes is not None,
        "mps_processes": whole and reading.mps_processes is not None,
        "process_memory": whole and _memory_told(reading),
        "process_utilization": whole and reading.process_utilization is not None,
        "energy": reading.energy_millijoules is not None,
        "power": reading.power_milliwatts is not None,
        "temperature": reading.temperature_celsius is not None,
        "clocks_event_reasons": reading.clocks_event_reasons is not None,
        "ecc": reading.ecc_corrected is not None,
    }
    gpm = _gpm(before, reading)
    return given if gpm is None else {**given, GPM: gpm}


def _memory_told(reading: GpuReading) -> bool:
    processes = reading.compute_processes
    return processes is not None and (not processes or any(each.used_bytes is not None for each in processes))


def _gpm(before: Gpu | None, reading: GpuReading) -> bool | None:
    """GPM measures the time between two readings: None at the first, and what is known if a reading fails.

    If NVML says that there is GPM, readings without values do not refute that.
    """
    if reading.sm_utilization is not None or reading.dram_bandwidth is not None:
        return True
    if reading.mig_mode or reading.gpm_supported is False:
        return False
    if before is None:
        return None
    return before.supported.get(GPM, None if before.reading.problem or reading.gpm_supported else False)


ENERGY, ECC_CORRECTED, ECC_UNCORRECTED = "energy_millijoules", "ecc_corrected", "ecc_uncorrected"


def metered(known: Gpu | None, reading: GpuReading) -> Mapping[str, MonotonicCounter]:
    """The counters after a reading; one that it does not tell stands still."""
    counters: Mapping[str, MonotonicCounter] = {} if known is None else known.counters
    late = known is not None and reading.at < known.reading.at
    read = {
        ENERGY: reading.energy_millijoules,
        ECC_CORRECTED: reading.ecc_corrected,
        ECC_UNCORRECTED: reading.ecc_uncorrected,
    }
    return {
        **counters,
        **{name: _grown(counters.get(name), value, late=late) for name, value in read.items() if value is not None},
    }


def _grown(meter: MonotonicCounter | None, value: int, *, late: bool) -> MonotonicCounter:
    """What began anew has since counted all of its value; what is less because it was read before is no news."""
    if meter is None:
        return MonotonicCounter(last=value, total=value)
    if value >= meter.last:
        return MonotonicCounter(last=value, total=meter.total + value - meter.last)
    return meter if late else MonotonicCounter(last=value, total=meter.total + value)


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
        bypassing_known=False,
        counters=metered(known, reading),
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
        return replace(gpu, mps_since={}, mps_left={}, bypassing_processes={}), events
    server = serving_daemon(node, reading)
    if reading.problem is None and reading.mps_processes is not None:
        gpu = _mps_list_read(gpu, reading.at, [process.pid for process in reading.mps_processes])
        if server is None:
            gpu = replace(gpu, bypassing_processes={})
        elif _servers_known(node, reading):
            bypassing_processes, events = _strangers(node, server, reading, gpu.bypassing_processes)
            gpu = replace(gpu, bypassing_processes=bypassing_processes, bypassing_known=True)
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
        if daemon.is_reported(node.at) and served(daemon, gpu):
            yield daemon


def _strangers(
    node: Node,
    server: Daemon,
    reading: GpuReading,
    before: Mapping[int, BypassingProcess],
) -> tuple[Mapping[int, BypassingProcess], tuple[Event, ...]]:
    bypassing_processes: dict[int, BypassingProcess] = {}
    events: list[Event] = []
    for pid in beside_mps(node, reading):
        stranger = before.get(pid) or BypassingProcess(first_seen=reading.at)
        settled = reading.at - stranger.first_seen >= BYPASSING_AFTER_SECONDS
        if not stranger.confirmed and settled and _no_server_since(node, stranger.first_seen):
            stranger = replace(stranger, confirmed=True)
            if not _told_elsewhere(node, reading.gpu, pid):
                events.append(_bypassing(server, reading, pid))
        bypassing_processes[pid] = stranger
    return bypassing_processes, tuple(events)


def _servers_known(node: Node, gpu: GpuReading) -> bool:
    """Until a daemon has said which servers it has, one of them might be taken for a process beside MPS."""
    return all(daemon.connections.listed_at is not None or daemon.ended for daemon in _serving(node, gpu))


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
            daemon.connections.server_exited_at,
            daemon.clients,
            daemon.connections.disconnected_at,
            daemon.connections.queued,
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


def sharing_mode(node: Node, gpu: Gpu) -> SharingMode | None:
    """The one mode, or None where the GPU was not read, a list is missing, or it is open who belongs to MPS."""
    reading = gpu.reading
    if reading.problem is not None:
        return None
    if reading.mig_mode:
        return SharingMode.MIG
    if reading.compute_processes is None or reading.mps_processes is None:
        return None
    others = _others(node, gpu)
    if others is None:
        return None
    if len(others) < len(_everybody(gpu)):
        return SharingMode.MIXED if others else SharingMode.MPS
    if not others:
        return SharingMode.IDLE
    return SharingMode.EXCLUSIVE if len(others) == 1 else SharingMode.TIME_SLICING


def _everybody(gpu: Gpu) -> set[int]:
    reading = gpu.reading
    return {process.pid for process in (*(reading.compute_processes or ()), *(reading.mps_processes or ()))}


def _others(node: Node, gpu: Gpu) -> list[int] | None:
    """The processes without MPS; None while it is not settled whether each of them is one.

    Where it is not known which servers there are, a process beside MPS clients may be theirs.
    """
    beside = beside_mps(node, gpu.reading)
    if not beside:
        return []
    if gpu.bypassing_known:
        return beside if set(beside) <= set(gpu.bypassing) else None
    may_be_server = serving_daemon(node, gpu.reading) is not None or gpu.reading.mps_processes
    return None if may_be_server else beside
