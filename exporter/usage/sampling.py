"""Samples of the node for the last hour of the page: clients, and used memory and SMs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean

from exporter.model.daemon import DaemonState
from exporter.model.identity import Workload
from exporter.model.node import Gpu, Node
from exporter.model.observation import GpuUuid
from exporter.model.usage import MAX_SAMPLES, SAMPLE_SECONDS, Sample, Split, slot_of
from exporter.state.devices import usable_gpus
from exporter.state.gpus import used_bytes
from exporter.state.processes import workload_of
from exporter.usage.last_minute import fresh_splits

_DIGITS = 4  # A sample is stored as text, which rounding makes short.


def with_sample(samples: tuple[Sample, ...], node: Node) -> tuple[Sample, ...]:
    """Return the samples, the oldest first, with one of the node if it is due; the same object if none is.

    The time is that of the last observation: while nothing is observed, there are no samples. At the start of the
    exporter, the first sample waits for the first collections.
    """
    if not node.sources or (samples and samples[-1].slot == slot_of(node.at)):
        return samples
    now = sample_of(node)
    starting = node.began_at is not None and node.at - node.began_at < SAMPLE_SECONDS / 2
    if starting and None in (now.clients, now.memory_ratio):
        return samples
    # If the clock was set back, later samples are dropped.
    recent = (sample for sample in samples if now.slot - MAX_SAMPLES < sample.slot < now.slot)
    return (*recent, now)


def sample_of(node: Node) -> Sample:
    """Return a sample of the node. What cannot be known of one daemon or GPU is not known of the node."""
    reported = [daemon for daemon in node.daemons.values() if daemon.is_reported(node.at)]
    unknown = (None, DaemonState.UNRESPONSIVE)
    clients_known = all(
        daemon.clients_known and (daemon.state not in unknown or not daemon.supported) for daemon in reported
    )
    return Sample(
        at=node.at,
        clients=sum(len(daemon.clients) for daemon in reported) if clients_known else None,
        memory_ratio=_memory_ratio(node),
        sm_ratio=_sm_ratio(node),
    )


def workloads(node: Node) -> Mapping[int, Workload]:
    """Return the known workloads of the connected clients, by PID."""
    reported = (daemon for daemon in node.daemons.values() if daemon.is_reported(node.at))
    by_pid = ((pid, workload_of(node.processes.get(pid))) for daemon in reported for pid in daemon.clients)
    return {pid: workload for pid, workload in by_pid if workload is not None}


def memory_by_workload(node: Node) -> Mapping[GpuUuid, Mapping[Workload, int]]:
    """Return the bytes that the clients of each workload use on each GPU."""
    owners, by_gpu = workloads(node), dict[GpuUuid, dict[Workload, int]]()
    for uuid, gpu in node.gpus.items():
        held = used_bytes(gpu.reading)
        totals = by_gpu[uuid] = defaultdict(int)
        for pid in owners.keys() & held:
            totals[owners[pid]] += held[pid]
    return by_gpu


def _memory_ratio(node: Node) -> float | None:
    # Of several compute instances of one GPU instance, only the first has its memory.
    devices = usable_gpus(node).values()
    readings = [each for each in devices if each.mig is None or each.memory_total_bytes is not None]
    if not readings or any(each.memory_used_bytes is None or not each.memory_total_bytes for each in readings):
        return None
    used = sum(each.memory_used_bytes or 0 for each in readings)
    return round(used / sum(each.memory_total_bytes or 0 for each in readings), _DIGITS)


def _sm_ratio(node: Node) -> float | None:
    splits = fresh_splits(node)
    # MIG instances have different numbers of SMs, so the mean over them is not the node's.
    mig = any(gpu.reading.mig for gpu in node.gpus.values())
    busy = [] if mig else [_busy(gpu, splits.get(uuid)) for uuid, gpu in node.gpus.items()]
    known = [used for used in busy if used is not None]
    return round(fmean(known), _DIGITS) if busy and len(known) == len(busy) else None


def _busy(gpu: Gpu, split: Split | None) -> float | None:
    if gpu.reading.problem is not None:
        return None
    if split is not None:
        return split.sm if split.measured or not split.unknown else None
    return 0.0 if gpu.reading.compute_processes == () else gpu.reading.sm_utilization


def slots_until(samples: Iterable[Sample], at: float) -> Mapping[int, Sample | None]:
    """Return the slots of the hour until `at`, the oldest first, each with its sample; None: no sample was taken.

    The present slot is left out until it has its sample.
    """
    by_slot = {sample.slot: sample for sample in samples}
    last = slot_of(at)
    last -= last not in by_slot and last - 1 in by_slot
    return {slot: by_slot.get(slot) for slot in range(last - MAX_SAMPLES + 1, last + 1)}
