"""How the processes on a GPU share it, as far as that can be judged."""

from exporter.core.gpus import beside_mps, serving_daemon
from exporter.model.gpu import Gpu, SharingMode
from exporter.model.node import Node


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
    if gpu.judged:
        return beside if set(beside) <= set(gpu.bypassing) else None
    may_be_server = serving_daemon(node, gpu.reading) is not None or gpu.reading.mps_processes
    return None if may_be_server else beside
