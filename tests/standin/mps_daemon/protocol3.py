"""The commands of protocol 3 (R615), after NVIDIA's MPS guide, release 615. No real daemon was at hand.

The daemon has at most one server, `uid_UID`, with the namespace `default`. Replies are tables in CSV, with an optional
header. The texts of errors are not documented.
"""

import csv
import io
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from .commands import DENIED, command_of
from .model import State
from .names import GPU_NAME
from .server import Server
from .sessions import Respond

if TYPE_CHECKING:
    from .control import ControlDaemon

CHANGING = frozenset(("create", "delete", "set", "terminate", "-q"))
SMS, CHUNKS = 132, 16
STATUS = {State.INITIALIZING: "Initializing", State.ACTIVE: "Ready", State.FAULT: "Fault", State.LEAVING: "Stopping"}

Rows = Iterable[tuple[object, ...]]


def server_name(uid: int) -> str:
    """Return the name of the server that a daemon starts for a user."""
    return f"uid_{uid}"


class Commands3:
    """The commands of a daemon. `extra_columns` appends unknown columns, as a later release may have."""

    def __init__(self, daemon: "ControlDaemon") -> None:
        self._daemon = daemon
        self._lists: dict[str, tuple[tuple[str, ...], Callable[[], Rows]]] = {
            "server": (
                ("NAME", "UID", "PID", "STATUS", "PIPE-DIRECTORY", "ALLOWED-DEVICES", "CONTEXT-IDS"),
                self._servers,
            ),
            "client": (("PID", "SERVER", "DEVICE", "MAWS NS", "CMD"), self._clients),
            "namespace": (
                (
                    *("NAME", "SERVER", "SERVER-STATUS", "PINNED-MEMORY-LIMIT", "ACTIVE-THREAD-PERCENTAGE"),
                    *("CLIENT-PRIORITY", "PIPE-DIRECTORY"),
                ),
                self._namespaces,
            ),
            "device": (
                ("Ordinal", "Server", "PCI ID", "Device UUID", "Name", "Total SMs", "Total Chunks", "Attributes"),
                self._devices,
            ),
            "sm-partition": (
                ("SERVER", "DEVICE", "NAME", "CHUNKS", "SM-COUNT", "INCLUDE-REMAINDER", "STATUS", "VISIBLE-UUID"),
                self._partitions,
            ),
        }

    def execute(self, command: str, uid: int, respond: Respond) -> None:
        """Execute one command of a user's session."""
        words = command.split()
        module, verb = [*words, "", ""][:2]
        if CHANGING & {module, verb} and uid not in (0, os.geteuid()):
            respond(DENIED.format(uid))
        elif module == "-q":
            self._daemon.quit(3, respond)
        elif verb == "list" and module in self._lists:
            respond(self._list(module, words[2:]))
        elif (module, verb) == ("client", "terminate"):
            respond(self._terminate(int(words[2])))
        elif (module, verb) == ("server", "delete"):
            self._daemon.shut_down_server(force="--force" in words)
            respond("")
        elif (module, verb) in (("server", "set"), ("namespace", "set")):
            respond(self._set(words[3 if module == "namespace" else 2 :]))
        else:
            respond(f"Invalid command: {command}\n")

    def _list(self, module: str, options: list[str]) -> str:
        header, rows = self._lists[module]
        names = [option.partition("=")[2] for option in options if option.startswith("--format=")]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if names != ["csv,noheader"]:
            writer.writerow(header)
        if names:
            writer.writerows(rows())
        else:
            text.writelines(" ".join(map(str, row)) + "\n" for row in rows())
        # The real program does not quote: a command with commas, or with line breaks, is written as it is.
        return text.getvalue().replace('"', "")

    @property
    def _server(self) -> Server | None:
        server = self._daemon.server
        return server if server is not None and server.process.answers() else None

    def _servers(self) -> Rows:
        server = self._daemon.server
        if server is not None:
            name = server_name(server.uid)
            path = self._daemon.settings.pipe_directory / name
            yield name, server.uid, server.pid, STATUS[server.state], path, ",".join(self._daemon.settings.gpus), "-"

    def _clients(self) -> Rows:
        server = self._server
        for client in () if server is None else server.clients.values():
            name = server_name(server.uid) if server is not None else ""
            for device in sorted(client.devices):
                yield client.pid, name, self._daemon.settings.gpus[device], f"{name}/default (0)", command_of(client)

    def _namespaces(self) -> Rows:
        server = self._server
        if server is not None:
            name, limits = server_name(server.uid), server.limits
            memory = next(iter(limits.pinned_memory.values()), "-")
            path = self._daemon.settings.pipe_directory / name / "default"
            status = STATUS[server.state]
            yield "default", name, status, memory, f"{limits.active_thread_percentage:g}", limits.client_priority, path

    def _devices(self) -> Rows:
        server = self._server
        name = "-" if server is None else server_name(server.uid)
        for number, gpu in enumerate(self._daemon.settings.gpus):
            yield number, name, f"0000:00:{number:02x}.0", gpu, GPU_NAME, SMS, CHUNKS, "N/A"

    def _partitions(self) -> Rows:
        return self._daemon.settings.partitions

    def _terminate(self, pid: int) -> str:
        if self._server is None or pid not in self._server.clients:
            return f"No client with PID {pid}\n"
        self._daemon.depart(pid, Server.terminate)
        return ""

    def _set(self, options: list[str]) -> str:
        server = self._server
        if server is None:
            return "No such server\n"
        if server.clients:
            return "The namespace has active clients\n"
        for option in options:
            key, _, value = option.partition("=")
            match key:
                case "--active-thread-percentage":
                    server.limits.active_thread_percentage = float(value)
                case "--pinned-memory-limit":
                    server.limits.pinned_memory = dict.fromkeys(range(len(self._daemon.settings.gpus)), value)
                case "--client-priority":
                    server.limits.client_priority = int(value)
        return ""
