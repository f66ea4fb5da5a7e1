"""The commands of the control daemon and their replies."""

import os
from collections.abc import Callable
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
        self._commands: dict[str, Callable[[list[str]], str]] = {
            "get_server_list": self._get_server_list,
            "get_server_status": self._get_server_status,
            "get_client_list": self._get_client_list,
            "get_device_client_list": self._get_device_client_list,
            "ps": self._ps,
            "device_query": self._device_query,
            "get_default_active_thread_percentage": self._get_default_percentage,
            "set_default_active_thread_percentage": self._set_default_percentage,
            "get_active_thread_percentage": self._get_percentage,
            "set_active_thread_percentage": self._set_percentage,
            "get_default_device_pinned_mem_limit": self._get_default_memory,
            "set_default_device_pinned_mem_limit": self._set_default_memory,
            "get_device_pinned_mem_limit": self._get_memory,
            "set_device_pinned_mem_limit": self._set_memory,
            "get_default_client_priority": self._get_default_priority,
            "set_default_client_priority": self._set_default_priority,
            "terminate_client": self._terminate_client,
            "shutdown_server": self._shut_down_server,
        }

    def execute(self, command: str, uid: int, respond: Respond) -> None:
        """Execute one line of a user's session. Unknown commands get a reply too, and succeed."""
        words = command.split()
        name, arguments = (words[0], words[1:]) if words else ("", [])
        if name.startswith(PRIVILEGED) and uid not in (0, os.geteuid()):
            respond(_denied(name, uid))
        elif name == "quit":
            self._daemon.quit(_number(arguments, 1) if arguments[:1] == ["-t"] else None, respond)
        elif name in self._commands:
            respond(self._answer(self._commands[name], arguments))
        else:
            respond(f'Unknown command "{command}"\n')

    def _answer(self, run: Callable[[list[str]], str], arguments: list[str]) -> str:
        try:
            return run(arguments)
        except ServerNotFoundError as problem:
            return str(problem)

    # -- servers ---------------------------------------------------------------------------------------------------

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

    def _get_server_list(self, _: list[str]) -> str:
        return f"{self._daemon.server.pid}\n" if self._daemon.server is not None else ""

    def _get_server_status(self, arguments: list[str]) -> str:
        try:
            return f"{self._server(arguments).state}\n"
        except ServerNotFoundError:
            server = self._daemon.server
            just_left = server is not None and server.pid == _number(arguments, 0)
            if just_left and self._daemon.exiting_server_reports_fault():
                return f"{State.FAULT}\n"
            raise

    def _shut_down_server(self, arguments: list[str]) -> str:
        self._server(arguments)
        self._daemon.shut_down_server(force="-f" in arguments)
        return ""

    # -- clients ---------------------------------------------------------------------------------------------------

    def _get_client_list(self, arguments: list[str]) -> str:
        return "".join(f"{pid}\n" for pid in self._server(arguments).clients)

    def _get_device_client_list(self, arguments: list[str]) -> str:
        server = self._server(arguments) if arguments else self._present_server()
        if server is None:
            return ""
        devices = range(len(self._daemon.settings.gpus))
        return "".join(_clients_on_device(server, device) for device in reversed(devices))

    def _ps(self, _: list[str]) -> str:
        server = self._present_server()
        return "Server not found\n" if server is None else self._table_of_clients(server)

    def _table_of_clients(self, server: Server) -> str:
        rows = [self._ps_row(server, client) for client in server.clients.values()]
        return "".join([_ps_line("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"), *rows]) if rows else ""

    def _ps_row(self, server: Server, client: Client) -> str:
        gpu = self._daemon.settings.gpus[client.contexts[1]][:DEVICE_IN_PS]
        return _ps_line(client.pid, client.number, server.pid, gpu, _namespace(client.pid), command_of(client))

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

    # -- devices and limits ----------------------------------------------------------------------------------------

    def _device_query(self, arguments: list[str]) -> str:
        separator = "," if "--csv" in arguments else "    "
        rows = [("Device Ordinal", "PCI IDs", "UUID", "Name", "Attributes")]
        gpus, server = enumerate(self._daemon.settings.gpus), self._daemon.server
        rows += [(str(n), f"0000:00.{n:02x}.00", gpu, GPU_NAME, "N/A") for n, gpu in gpus]
        table = "".join(separator.join(row) + "\n" for row in rows)
        headings = ("Default", *(() if server is None else (f"Server {server.pid}",)))
        return "\n".join(f"{heading}\n{table}" for heading in headings)

    def _get_default_percentage(self, _: list[str]) -> str:
        return f"{self._daemon.limits.active_thread_percentage}\n"

    def _set_default_percentage(self, arguments: list[str]) -> str:
        return self._change_percentage(self._daemon.limits, arguments)

    def _get_percentage(self, arguments: list[str]) -> str:
        return f"{self._server(arguments).limits.active_thread_percentage}\n"

    def _set_percentage(self, arguments: list[str]) -> str:
        return self._change_percentage(self._server(arguments).limits, arguments[1:])

    def _change_percentage(self, limits: Limits, arguments: list[str]) -> str:
        """Return the limit in force, which is the old one after an invalid value."""
        percentage = _percentage(arguments)
        if percentage is None:
            self._daemon.write("Invalid percentage, expected between (0.0, 100.0]")
        else:
            limits.active_thread_percentage = percentage
        return f"{limits.active_thread_percentage}\n"

    def _get_default_memory(self, arguments: list[str]) -> str:
        limit = self._daemon.limits.pinned_memory.get(_number(arguments, 0))
        if limit is None:
            self._daemon.write("No default pinned memory limit set for the device!")
            return ""
        return f"{limit}\n"

    def _set_default_memory(self, arguments: list[str]) -> str:
        """Set a limit, also of a missing device, which the real daemon accepts."""
        device, limit = _number(arguments, 0), _word(arguments, 1)
        self._daemon.limits.pinned_memory[device] = limit
        self._daemon.write(f"set_default_device_pinned_mem_limit {device} {limit}.")
        return ""

    def _get_memory(self, arguments: list[str]) -> str:
        limit = self._server(arguments).limits.pinned_memory.get(_number(arguments, 1))
        return "" if limit is None else f"{limit}\n"

    def _set_memory(self, arguments: list[str]) -> str:
        self._server(arguments).limit_memory(_number(arguments, 1), _word(arguments, 2))
        return ""

    def _get_default_priority(self, _: list[str]) -> str:
        return f"{self._daemon.limits.client_priority}\n"

    def _set_default_priority(self, arguments: list[str]) -> str:
        """Set the priority, also of the running server."""
        priority = self._daemon.limits.client_priority = _number(arguments, 0)
        server = self._present_server()
        if server is not None:
            server.prioritize(priority)
        return ""


def _denied(name: str, uid: int) -> str:
    if name == "quit":
        return "Not enough privilege to execute quit command\n"
    return DENIED.format(uid) + ("800\n" if name == "terminate_client" else "")


def _number(arguments: list[str], position: int) -> int:
    """Return an argument as a number; 0 for a missing or invalid one, like the real daemon."""
    try:
        return int(arguments[position])
    except (IndexError, ValueError):
        return 0


def _word(arguments: list[str], position: int) -> str:
    return arguments[position] if position < len(arguments) else ""


def _percentage(arguments: list[str]) -> float | None:
    try:
        percentage = float(arguments[0])
    except (IndexError, ValueError):
        return None
    return percentage if 0 < percentage <= 100 else None


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
    return (client.command or _first_argument(client.pid) or "client").replace("\n", LINE_BREAK)


def _first_argument(pid: int) -> str:
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0])
    except OSError:
        return ""
