"""How many clients an MPS server accepts.

NVIDIA's MPS guide ("Client-Server Connection Limits") and nvidia-cuda-mps-control(1) count client contexts per device:
16 before Volta; from Volta on 48 up to CUDA 13.0 (release 550), and 60 from CUDA 13.1 on (releases 590 and 615). A
client that raises CUDA_DEVICE_MAX_CONNECTIONS may reduce the number.
"""

from exporter.core.devices import served
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import GpuReading
from exporter.model.server import Server

VOLTA = 7
"""The major compute capability of Volta."""

BEFORE_VOLTA = 16

FROM_VOLTA = ((13000, 48), (13040, 60))
"""Client contexts per device up to each version of MPS. The last version is that of release 615 of the guide."""


def clients_limit(node: Node, daemon: Daemon, server: Server) -> int | None:
    """Return how many clients a server accepts.

    The configuration outweighs the server's own statement, and that the guide's number for the daemon's GPUs. None: the
    GPUs or the version are not known, or the guide has no number for them, or not the same for all GPUs.
    """
    stated = daemon.declared.clients_limit or server.clients_limit
    if stated is not None:
        return stated
    gpus = (gpu.reading for gpu in node.gpus.values() if served(daemon, gpu.reading))
    documented = {_documented(daemon, gpu) for gpu in gpus}
    return documented.pop() if len(documented) == 1 else None


def _documented(daemon: Daemon, gpu: GpuReading) -> int | None:
    major, _, _ = (gpu.compute_capability or "").partition(".")
    if not _is_number(major):
        return None
    if int(major) < VOLTA:
        return BEFORE_VOLTA
    version = _version(daemon, gpu)
    if version is None:
        return None
    return next((places for newest, places in FROM_VOLTA if version <= newest), None)


def _version(daemon: Daemon, gpu: GpuReading) -> int | None:
    """Return the version of MPS as its programs print it, 13010 for CUDA 13.1; else that of the driver's CUDA."""
    if daemon.runtime.version is not None:
        return int(daemon.runtime.version)
    major, _, minor = (gpu.cuda_version or "").partition(".")
    return 1000 * int(major) + 10 * int(minor) if _is_number(major) and _is_number(minor) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 4
