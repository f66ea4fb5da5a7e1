"""How many clients an MPS server takes."""

from exporter.model.daemon import Daemon
from exporter.model.server import Server

MOST_CLIENTS = 48
"""Clients a server takes on Volta and later, up to CUDA 13.0 (measured on R580)."""

MOST_CLIENTS_FROM_13_1 = 60
"""Client contexts a device takes from CUDA 13.1 on (NVIDIA's MPS guide)."""


def clients_limit(daemon: Daemon, server: Server) -> int | None:
    """How many clients a server takes: as configured, as it said itself, or as its version does; None: not known."""
    told = daemon.clients_limit or server.clients_limit
    if told is not None or daemon.version is None:
        return told
    return MOST_CLIENTS_FROM_13_1 if int(daemon.version) >= 13010 else MOST_CLIENTS
