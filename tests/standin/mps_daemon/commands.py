"""The commands of the control daemon and their replies."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from .model import Client, Limits, State
from .names import GPU_NAME
from .server import Server
from .sessions import LINE_BREAK, Respond

if TYPE_CHECKING:
    from .control import ControlDaemon

INITIAL_PID_NAMESPACE = 4026531836
PS_COLUMNS = (10, 10, 15, 26, 15, 15)
DEVICE_IN_PS = 22

PRIVILEGED = ("set_", "terminate_client", "shutdown_server", "quit")
"""Prefixes of commands that change something. Only the daemon's user and root may send them."""
DENIED = (
    "Insufficient privileges for UID {}. "
    "Control deamon settings can only be modified by the user who started it or by the root user.\n"
)


class ServerNotFoundError(Exception):
    """A command named a server that does not exist."""


class Commands:
    """The commands of a daemon. A command writes its log lines before its reply."""

    def __init__(self, daemon: "ControlDaemon") -> None:
        self._daemon = daemon

    def execute(self, command: str, uid: int, respond: Respond) -> None:
        """Execute one line of a user's session. Unknown commands get a reply too, and succeed."""
        name, *arguments = command.split() or [""]
        if name.startswith(PRIVILEGED) and uid not in (0, os.geteuid()):
            respond(_denied(name, uid))
        elif name == "quit":
            self._daemon.quit(_number(arguments, 1) if arguments[:1] == ["-t"] else None, respond)
        else:
            try:
                reply = self._answer(name, arguments)
            except ServerNotFoundError as problem:
                reply = str(problem)
            respond(f'Unknown command "{command}"\n' if reply is None else reply)

    def _answer(self, name: str, arguments: list[str]) -> str | None:
        """Return the reply; None for an unknown command."""
        daemon, limits = self._daemon, self._daemon.limits
        match name:
            case "get_server_list":
                return f"{daemon.server.pid}\n" if daemon.server is not None else ""
            case "get_server_status":
                return self._server_status(arguments)
            case "get_client_list":
                return "".join(f"{pid}\n" for pid in self._server(arguments).clients)
            case "get_device_client_list":
                server = self._server(arguments) if arguments else self._present_server()
                devices = reversed(range(len(daemon.settings.gpus)))
                return "" if server is None else "".join(_clients_on_device(server, device) for device in devices)
            case "ps":
                server = self._present_server()
                return "Server not found\n" if server is None else self._table_of_clients(server)
            case "device_query":
                return self._device_query("," if "--csv" in arguments else "    ")
            case "terminate_client":
                return self._terminate_client(arguments)
            case "shutdown_server":
                self._server(arguments)
                daemon.shut_down_server(force="-f" in arguments)
                return ""
            case "get_default_active_thread_percentage":
                return f"{limits.active_thread_percentage}\n"
            case "set_default_active_thread_percentage":
                return self._change_percentage(limits, arguments)
            case "get_active_thread_percentage":
                return f"{self._server(arguments).limits.active_thread_percentage}\n"
            case "set_active_thread_percentage":
                return self._change_percentage(self._server(arguments).limits, arguments[1:])
            case "get_default_device_pinned_mem_limit":
                limit = limits.pinned_memory.get(_number(arguments, 0))
                if limit is None:
                    daemon.write("No default pinned memory limit set for the device!")
                return "" if limit is None else f"{limit}\n"
            case "set_default_device_pinned_mem_limit":
                # The real daemon accepts a limit of a missing device, too.
                device, limit = _number(arguments, 0), _word(arguments, 1)
                limits.pinned_memory[device] = limit
                daemon.write(f"set_default_device_pinned_mem_limit {device} {limit}.")
                return ""
            case "get_device_pinned_mem_limit":
                limit = self._server(arguments).limits.pinned_memory.get(_number(arguments, 1))
                return "" if limit is None else f"{limit}\n"
            case "set_device_pinned_mem_limit":
                self._server(arguments).limit_memory(_number(arguments, 1), _word(arguments, 2))
                return ""
            case "get_default_client_priority":
                return f"{limits.client_priority}\n"
            case "set_default_client_priority":
                # It applies to the running server, too.
                limits.client_priority = _number(arguments, 0)
                server = self._present_server()
                if server is not None:
                    server.prioritize(limits.client_priority)
                return ""
        return None

    def _server(self, arguments: list[str]) -> Server:
        """Return the server in the first argument. It must answer: a stopped one blocks the daemon."""
        pid = _number(arguments, 0)
        server = self._daemon.server
        if server is None or server.pid != pid or server.state is State.LEAVING or not server.process.answers():
            raise ServerNotFoundError(f"Server {pid} not found\n")
        return server

    def _present_server(self) -> Server | None:
        server = self._daemon.server
        return server if server is not None and server.process.answers() else None

    def _server_status(self, arguments: list[str]) -> str:
        try:
            return f"{self._server(arguments).state}\n"
        except ServerNotFoundError:
            server = self._daemon.server
            just_left = server is not None and server.pid == _number(arguments, 0)
            if just_left and self._daemon.exiting_server_reports_fault():
                return f"{State.FAULT}\n"
            raise

    def _table_of_clients(self, server: Server) -> str:
        lines = [_ps_line("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")] if server.clients else []
        for client in server.clients.values():
            gpu = self._daemon.settings.gpus[client.contexts[1]][:DEVICE_IN_PS]
            lines.append(
                _ps_line(client.pid, client.number, server.pid, gpu, _namespace(client.pid), command_of(client))
            )
        return "".join(lines)

    def _terminate_client(self, arguments: list[str]) -> str:
        try:
            server = self._server(arguments)
        except ServerNotFoundError as problem:
            return f"{problem}{str(problem).strip()}!\n1\n"
        pid = _number(arguments, 1)
        if pid not in server.clients:
            return f"Invalid process {pid}!\n1\n"
        self._daemon.depart(pid, Server.terminate)
        return "0\n"

    def _device_query(self, separator: str) -> str:
        rows = [("Device Ordinal", "PCI IDs", "UUID", "Name", "Attributes")]
        gpus, server = enumerate(self._daemon.settings.gpus), self._daemon.server
        rows += [(str(n), f"0000:00.{n:02x}.00", gpu, GPU_NAME, "N/A") for n, gpu in gpus]
        table = "".join(separator.join(row) + "\n" for row in rows)
        headings = ("Default", *(() if server is None else (f"Server {server.pid}",)))
        return "\n".join(f"{heading}\n{table}" for heading in headings)

    def _change_percentage(self, limits: Limits, arguments: list[str]) -> str:
        """Return the limit in force, which is the old one after an invalid value."""
        try:
            percentage = float(_word(arguments, 0))
        except ValueError:
            percentage = 0.0
        if 0 < percentage <= 100:
            limits.active_thread_percentage = percentage
        else:
            self._daemon.write("Invalid percentage, expected between (0.0, 100.0]")
        return f"{limits.active_thread_percentage}\n"


def _denied(name: str, uid: int) -> str:
    if name == "quit":
        return "Not enough privilege to execute quit command\n"
    return DENIED.format(uid) + ("800\n" if name == "terminate_client" else "")


def _number(arguments: list[str], position: int) -> int:
    """Return an argument as a number; 0 for a missing or invalid one, like the real daemon."""
    try:
        return int(_word(arguments, position))
    except ValueError:
        return 0


def _word(arguments: list[str], position: int) -> str:
    return arguments[position] if position < len(arguments) else ""


def _clients_on_device(server: Server, device: int) -> str:
    """Return a device's clients as PID.CONTEXT with the heading of the real reply."""
    rows = [
        f"{client.pid}.{context}\n"
        for client in server.clients.values()
        for context, its_device in client.contexts.items()
        if its_device == device
    ]
    return "".join([f"[{device}] 00:{device:02x}.0, {GPU_NAME}\n", *rows]) if rows else ""


def _ps_line(*cells: object) -> str:
    return "".join(str(cell).ljust(width) for cell, width in zip(cells, PS_COLUMNS, strict=True)) + "\n"


def _namespace(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return INITIAL_PID_NAMESPACE


def command_of(client: Client) -> str:
    """Return argv[0] of the client, line breaks included."""
    try:
        own = os.fsdecode(Path(f"/proc/{client.pid}/cmdline").read_bytes().split(b"\0")[0])
    except OSError:
        own = ""
    return (client.command or own or "client").replace("\n", LINE_BREAK)
