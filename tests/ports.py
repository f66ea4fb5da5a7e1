"""Ports of the loopback device that nobody listens on."""

import socket

LOCALHOST = "127.0.0.1"


def free_address() -> str:
    """An address with a port that was free a moment ago."""
    with socket.create_server((LOCALHOST, 0)) as free:
        return f"{LOCALHOST}:{free.getsockname()[1]}"
