"""What is the matter with GPUs, and with who is on them."""

from collections.abc import Iterable

from exporter.model.node import Node
from exporter.parse.printable import printable
from exporter.telling.level import Level
from exporter.telling.short import counted
from exporter.telling.troubles.trouble import Trouble
from exporter.view import gpu_name


def demanded_resets(node: Node) -> Iterable[Trouble]:
    """GPUs of which an Xid asks for more than MPS can give."""
    for gpu, demand in node.xids.demands.items():
        yield Trouble(
            level=Level.GRAVE,
            what=f"GPU {printable(gpu_name(node, gpu))} needs {printable(demand.action)}, as its last Xid says",
            next="drain it, and do that: restarting MPS does not mend it",
        )


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
