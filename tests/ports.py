"""Addresses of the loopback device on which programs serve."""

import os
import random
import re
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.eventually import eventually

LOCALHOST = "127.0.0.1"
FIXED_PORTS = range(20_000, 32_000)
"""Linux gives outgoing connections none of these by default, so that a port which was free stays free (ip(7))."""


@cache
def _ports() -> Iterator[int]:
    """Return the ports of this process of pytest in random order, each once: a program may bind its port much later."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = FIXED_PORTS[worker :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    return iter(random.SystemRandom().sample(own, len(own)))


def free_address() -> str:
    """Return a new address each time, for a program that is started twice there. Its port was free a moment ago."""
    for port in _ports():
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
