"""Addresses of the loopback device on which programs serve."""

import re
import socket
from pathlib import Path

from tests.eventually import eventually

LOCALHOST = "127.0.0.1"


def free_address() -> str:
    """Return an address whose port was free a moment ago, for a program that is started twice at one address."""
    with socket.create_server((LOCALHOST, 0)) as free:
        return f"{LOCALHOST}:{free.getsockname()[1]}"


def listening_address(log: Path) -> str:
    """Wait until Prometheus or Alertmanager, started with port 0, serves; return the address that its log names."""

    def found() -> str:
        listening = re.search(r'msg="Listening on" address=(\S+)', log.read_text())
        assert listening, log.read_text()
        return listening[1]

    return eventually(found)
