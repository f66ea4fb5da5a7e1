"""A server that stays in FAULT without clients, and the commands that end this."""

import subprocess
import time
from collections.abc import Iterator
from typing import Any

import psutil

from lab.gpu.mps import ControlDaemon

PATIENCE_SECONDS = 3.0

Attempt = dict[str, Any]


def remedies(daemon: ControlDaemon, server: int) -> list[Attempt]:
    """Try the commands. Return each with its reply and the state afterwards; none if the server is active."""
    if _state_after(daemon, server) != "FAULT":
        return []
    clients = _ask(daemon, f"get_client_list {server}")
    return [{"at": time.time(), "clients": clients}, *_attempts(daemon, server, clients.split())]


def _attempts(daemon: ControlDaemon, server: int, clients: list[str]) -> Iterator[Attempt]:
    commands = [f"terminate_client {server} {pid}" for pid in clients]
    for command in (*commands, f"shutdown_server {server}", f"shutdown_server {server} -f", "SIGKILL"):
        at = time.time()
        if command == "SIGKILL":
            psutil.Process(server).kill()
            reply = ""
        else:
            reply = _ask(daemon, command)
        state = _state_after(daemon, server)
        yield {"at": at, "command": command, "reply": reply, "state": state, "seconds": time.time() - at}
        if state != "FAULT":
            return


def _state_after(daemon: ControlDaemon, server: int) -> str:
    """Wait, and return the state of the server."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        state = _ask(daemon, f"get_server_status {server}") if server in daemon.servers() else "gone"
        if state != "FAULT" or time.monotonic() > deadline:
            return state
        time.sleep(0.2)


def _ask(daemon: ControlDaemon, command: str) -> str:
    try:
        return daemon.command(command, within=3).strip()
    except (AssertionError, subprocess.SubprocessError) as problem:
        return f"failed: {problem}"
