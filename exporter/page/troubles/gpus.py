"""What is the matter with GPUs, and with who is on them."""

from collections.abc import Iterable

from exporter.page.level import Level
from exporter.page.sight import Sight
from exporter.page.troubles.trouble import Trouble
from exporter.parse.printable import printable
from exporter.view import gpu_name


def demanded_resets(sight: Sight) -> Iterable[Trouble]:
    """GPUs of which an Xid asks for more than MPS can give."""
    for gpu, demand in sight.node.xids.demands.items():
        yield Trouble(
            level=Level.GRAVE,
            what=f"GPU {printable(gpu_name(sight.node, gpu))} needs {printable(demand.action)}, as its last Xid says",
            next="drain it, and do that: restarting MPS does not mend it",
        )


def processes_beside(sight: Sight) -> Iterable[Trouble]:
    """Processes that bypass MPS, all as one."""
    on = {uuid: gpu.bypassing for uuid, gpu in sight.node.gpus.items() if gpu.bypassing}
    if on:
        processes = len({pid for pids in on.values() for pid in pids})
        runs = "process runs" if processes == 1 else "processes run"
        where = ", ".join(f"GPU {printable(gpu_name(sight.node, uuid))}" for uuid in on)
        yield Trouble(
            level=Level.CARE,
            what=f"{processes} {runs} beside MPS on {where}: without limits, and taking turns with all others",
            next="have it started again with CUDA_MPS_PIPE_DIRECTORY set to the daemon's directory",
        )
