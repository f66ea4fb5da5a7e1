"""A quarantine in words: which Xid of which GPU asks for what, and what to do about it, step by step."""

import re
from collections.abc import Iterable

from exporter.core.watchdog.orders import Orders
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import GpuUuid
from exporter.model.watch import Quarantine
from exporter.parse.printable import printable
from exporter.parse.xid_catalogue import RESET, xid_meaning
from exporter.telling.remedy import ManualStep, address_of, command_to_resume, commands_to_stop, start_of
from exporter.telling.short import short_gpu
from exporter.view import gpu_name

_UUID = re.compile(r"GPU-[0-9a-f-]{8,64}")


def gpu_text(node: Node, gpu: GpuUuid) -> str:
    """Name a GPU by its index, if that is known, and by its UUID."""
    index, uuid = printable(gpu_name(node, gpu)), short_gpu(gpu)
    return f"GPU {index}" if index == printable(gpu) else f"GPU {index} ({uuid})"


def needed(action: str) -> str:
    """Return what a GPU needs, by NVIDIA's word for it."""
    return "a reset" if action == RESET else "a reboot of the machine"


def cause(node: Node, quarantine: Quarantine) -> str:
    """Return which Xid asks for what."""
    known = xid_meaning(quarantine.xid)
    told = f"Xid {quarantine.xid}" if known is None else f"Xid {quarantine.xid} ({known.meaning})"
    return f"{told}: {gpu_text(node, quarantine.gpu)} needs {needed(quarantine.action)}"


def steps(
    node: Node, gpu: GpuUuid, action: str, daemon: Daemon | None = None, orders: Orders | None = None
) -> tuple[ManualStep, ...]:
    """Return all that is to be done, in order. Without a `daemon`, what ends its quarantine is left out."""
    return tuple(_steps(node, gpu, action, daemon, orders))


def _steps(node: Node, gpu: GpuUuid, action: str, daemon: Daemon | None, orders: Orders | None) -> Iterable[ManualStep]:
    yield ManualStep(text="Take the node out of scheduling, and let the work on its other GPUs end.")
    if action == RESET:
        if daemon is None or not daemon.gone:
            text = "Stop the daemon, which ends its clients, and every other process on that GPU."
            yield ManualStep(text=text, commands=() if daemon is None else _stop(node, daemon, orders))
        yield ManualStep(text="Have the exporter release the driver.", commands=("cuda-mps-exporter pause",))
        reset = (f"nvidia-smi --gpu-reset -i {gpu}",) if _UUID.fullmatch(gpu) else ()
        yield ManualStep(text=f"Reset {gpu_text(node, gpu)}. If that fails, reboot the machine.", commands=reset)
        yield ManualStep(text="Have the exporter open the driver again.", commands=("cuda-mps-exporter resume",))
    else:
        yield ManualStep(text="Reboot the machine.", commands=("systemctl reboot",))
    if daemon is not None:
        yield ManualStep(text="Start the daemon, unless it runs again.", commands=start_of(node, daemon, orders))
        resume = command_to_resume(daemon.name)
        text = "End the quarantine: then the watchdog may restart the daemon again."
        yield ManualStep(text=text, commands=() if resume is None else (resume,))


def _stop(node: Node, daemon: Daemon, orders: Orders | None) -> tuple[str, ...]:
    mandate = None if orders is None else orders.mandate_of(daemon)
    return commands_to_stop(daemon, mandate, address_of(node, daemon.name, orders))
