"""Which GPUs a daemon has, and which of them it means by an ordinal."""

from collections.abc import Iterable, Mapping

from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import GpuReading, GpuUuid
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
