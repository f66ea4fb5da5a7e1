"""Ports of the loopback device on which no process listens, and ports that a program chose by itself."""

import random
import re
import socket
from pathlib import Path

LOCALHOST = "127.0.0.1"
FIXED_PORTS = range(20_000, 32_000)
"""Linux gives outgoing connections none of these by default, so that one which was free stays free (ip(7))."""

LISTENS = re.compile(r'msg="Listening on" address=(\S+)')


def free_address() -> str:
    """Return an address for a program that cannot choose a port by itself, or must listen on it again."""
    for port in random.SystemRandom().sample(FIXED_PORTS, 100):
        try:
            with socket.create_server((LOCALHOST, port)):
                return f"{LOCALHOST}:{port}"
        except OSError:
            continue
    raise OSError("no free port")


def logged_address(log: Path) -> str:
    """Return the address on which Prometheus or Alertmanager says that it listens; AssertionError until then."""
    found = LISTENS.search(log.read_text())
    assert found is not None, f"does not listen yet: {log.read_text()}"
    return found[1]
