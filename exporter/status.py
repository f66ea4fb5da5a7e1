"""How the node is, in one table for a person, or as JSON for a program."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from exporter.model.node import Client, Daemon, DaemonState, Node, Server
from exporter.view import View, client_id, printable, used_bytes

_COLUMNS = ("DAEMON", "SERVER", "STATE", "PID", "USER", "COMMAND", "GPU", "MEMORY")
_RIGHT = {"SERVER", "PID", "MEMORY"}
MEBIBYTE = 1 << 20


def table(node: Node) -> str:
    """One table of daemons, servers and clients, and of the processes beside them; then what could not be seen."""
    rows = [row for daemon in View(node).daemons() for row in _daemon_rows(node, daemon)]
    rows.extend(_bypassing_rows(node))
    lines = _aligned([_COLUMNS, *rows]) if rows else ["No MPS control daemon, and none expected."]
    return "\n".join([*lines, *_problems(node)]) + "\n"


def line(node: Node) -> str:
    """One line for the service manager."""
    daemons = list(View(node).daemons())
    up = sum(daemon.state is DaemonState.UP for daemon in daemons)
    clients = sum(len(daemon.clients) for daemon in daemons)
    blind = [name for name, source in node.sources.items() if source.last.problem is not None]
    return f"{up} of {len(daemons)} daemons up, {clients} clients" + (f"; blind: {', '.join(blind)}" if blind else "")


def as_json(node: Node) -> dict[str, Any]:
    """The same as one object."""
    return {
        "at": node.at,
        "daemons": [_daemon_object(node, daemon) for daemon in View(node).daemons()],
        "gpus": [_gpu_object(node, uuid) for uuid in node.gpus],
        "sources": {name: {"problem": source.last.problem} for name, source in node.sources.items()},
    }


def exit_code(node: Node) -> int:
    """0 where every daemon is up, no server is in FAULT, and all could be seen; else 1."""
    daemons = list(View(node).daemons())
    down = any(daemon.state is not DaemonState.UP for daemon in daemons)
    faulted = any(server.state == "fault" for daemon in daemons for server in daemon.servers.values())
    blind = any(source.last.problem is not None for source in node.sources.values())
    return int(down or faulted or blind)


def _daemon_rows(node: Node, daemon: Daemon) -> Iterable[Sequence[str]]:
    state = daemon.state or "unknown"
    servers = list(daemon.servers.values())
    if not servers:
        yield (printable(daemon.name), "-", state, "-", "-", "-", "-", "-")
    for server in servers:
        shown = state if daemon.state is not DaemonState.UP else server.state or "unknown"
        here = (printable(daemon.name), str(server.pid), shown)
        clients = [client for client in daemon.clients.values() if client.server == server.pid]
        if not clients:
            yield (*here, "-", _user_of(node, server), "-", "-", "-")
        for client in clients:
            yield from ((*here, *row) for row in _client_rows(node, client))
    for pid in sorted(daemon.waiting):
        yield (printable(daemon.name), "-", "waiting", str(pid), *_who(node, pid), "-", "-")


def _user_of(node: Node, server: Server) -> str:
    process = node.processes.get(server.pid)
    if process is not None and process.user is not None:
        return printable(process.user)
    return "-" if server.uid is None else str(server.uid)


def _client_rows(node: Node, client: Client) -> Iterable[Sequence[str]]:
    who = (str(client.pid), *_who(node, client.pid))
    memory = _memory_by_gpu(node, client.pid)
    if not memory:
        yield (*who, "-", "-")
    for gpu, used in memory.items():
        yield (*who, _gpu_name(node, gpu), f"{used // MEBIBYTE} MiB")


def _bypassing_rows(node: Node) -> Iterable[Sequence[str]]:
    for uuid, gpu in node.gpus.items():
        for pid in gpu.bypassing:
            used = _memory_by_gpu(node, pid).get(uuid)
            memory = "-" if used is None else f"{used // MEBIBYTE} MiB"
            yield ("none", "-", "bypassing", str(pid), *_who(node, pid), _gpu_name(node, uuid), memory)


def _who(node: Node, pid: int) -> tuple[str, str]:
    process = node.processes.get(pid)
    if process is None:
        return "-", "-"
    return printable(process.user or "-"), printable(process.command or "-")[:32]


def _memory_by_gpu(node: Node, pid: int) -> Mapping[str, int]:
    by_gpu = {uuid: used_bytes(gpu.reading) for uuid, gpu in node.gpus.items()}
    return {uuid: by_pid[pid] for uuid, by_pid in by_gpu.items() if pid in by_pid}


def _gpu_name(node: Node, uuid: str) -> str:
    index = node.gpus[uuid].reading.index
    return uuid if index is None else str(index)


def _problems(node: Node) -> Iterable[str]:
    for name, source in sorted(node.sources.items()):
        if source.last.problem is not None:
            yield f"{name}: {source.last.problem}"
    for daemon in View(node).daemons():
        if daemon.state is DaemonState.UP:
            yield from (f"log: {problem}" for problem in daemon.log_problems.values() if problem is not None)


def _daemon_object(node: Node, daemon: Daemon) -> dict[str, Any]:
    return {
        "name": daemon.name,
        "state": daemon.state,
        "expected": daemon.expected,
        "pid": None if daemon.process is None else daemon.process.pid,
        "version": daemon.version,
        "waiting": sorted(daemon.waiting),
        "servers": [_server_object(node, daemon, server) for server in daemon.servers.values()],
    }


def _server_object(node: Node, daemon: Daemon, server: Server) -> dict[str, Any]:
    clients = [client for client in daemon.clients.values() if client.server == server.pid]
    return {
        "pid": server.pid,
        "uid": server.uid,
        "state": server.state,
        "clients": [_client_object(node, client) for client in clients],
    }


def _client_object(node: Node, client: Client) -> dict[str, Any]:
    process = node.processes.get(client.pid)
    return {
        "client": client_id(client, process),
        "pid": client.pid,
        "user": None if process is None else process.user,
        "command": None if process is None else process.command,
        "memory_used_bytes": dict(_memory_by_gpu(node, client.pid)),
    }


def _gpu_object(node: Node, uuid: str) -> dict[str, Any]:
    gpu = node.gpus[uuid]
    return {
        "uuid": uuid,
        "index": gpu.reading.index,
        "name": gpu.reading.name,
        "problem": gpu.reading.problem,
        "memory_used_bytes": gpu.reading.memory_used_bytes,
        "memory_total_bytes": gpu.reading.memory_total_bytes,
        "bypassing": list(gpu.bypassing),
    }


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    right = [name in _RIGHT for name in _COLUMNS]
    return [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]
