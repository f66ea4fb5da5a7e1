"""Addresses of the loopback device on which programs serve."""

import random
import re
import socket
from pathlib import Path

from tests.eventually import eventually

LOCALHOST = "127.0.0.1"
FIXED_PORTS = range(20_000, 32_000)
"""Linux gives outgoing connections none of these by default, so that a port which was free stays free (ip(7))."""


def free_address() -> str:
    """Return an address whose port was free a moment ago, for a program that is started twice at one address."""
    for port in random.SystemRandom().sample(FIXED_PORTS, 100):
        try:
            with socket.create_server((LOCALHOST, port)):
                return f"{LOCALHOST}:{port}"
        except OSError:
            continue
    raise OSError("no free port")


def listening_address(log: Path) -> str:
    """Wait until Prometheus or Alertmanager, started with port 0, serves; return the address that its log names."""

    def found() -> str:
        listening = re.search(r'msg="Listening on" address=(\S+)', log.read_text())
        assert listening, log.read_text()
        return listening[1]

    return eventually(found)
