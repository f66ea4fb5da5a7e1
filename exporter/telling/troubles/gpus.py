"""What is the matter with GPUs, and with who is on them."""

from collections.abc import Iterable

from exporter.core.devices import served
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.parse.printable import printable
from exporter.telling.level import Level
from exporter.telling.quarantine_text import gpu_text, needed, steps
from exporter.telling.short import counted
from exporter.telling.troubles.trouble import Trouble
from exporter.view import gpu_name


def demanded_resets(node: Node) -> Iterable[Trouble]:
    """GPUs of which an Xid asks for more than MPS can give; without those of a quarantine, or of one that has ended."""
    for gpu, demand in node.xids.demands.items():
        if any(_handles(node, daemon, gpu, demand.at) for daemon in node.daemons.values()):
            continue
        yield Trouble(
            level=Level.GRAVE,
            what=f"{gpu_text(node, gpu)} needs {needed(demand.action)}, as its last Xid says",
            next="take these steps, in this order: to restart MPS does not help",
            steps=steps(node, gpu, demand.action),
            gpu=gpu,
            word=f"needs {needed(demand.action)}",
        )


def _handles(node: Node, daemon: Daemon, gpu: str, at: float) -> bool:
    """Whether a daemon is in quarantine for this GPU, or an operator has ended that since."""
    watch, known = node.watches.get(daemon.name), node.gpus.get(gpu)
    if watch is None:
        return False
    serves = gpu in daemon.devices.values() if known is None else served(daemon, known.reading)
    released = watch.released_at is not None and watch.released_at >= at
    return (watch.quarantine is not None and watch.quarantine.gpu == gpu) or (serves and released)


def processes_beside(node: Node) -> Iterable[Trouble]:
    """Processes that bypass MPS, all as one."""
    on = {uuid: gpu.bypassing for uuid, gpu in node.gpus.items() if gpu.bypassing}
    if on:
        processes = len({pid for pids in on.values() for pid in pids})
        bypass = counted(processes, "process bypasses", "processes bypass")
        where = ", ".join(f"GPU {printable(gpu_name(node, uuid))}" for uuid in on)
        yield Trouble(
            level=Level.CARE,
            what=f"{bypass} MPS on {where}: no limit holds there, and all others wait their turn",
            next="have it started again with CUDA_MPS_PIPE_DIRECTORY set to the daemon's directory",
            fails=False,
        )
