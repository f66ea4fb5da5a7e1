"""How the node is, in one table for a person, or as JSON for a program."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from exporter.core.devices import by_its_ordinals
from exporter.core.identity import client_id, used_bytes
from exporter.core.workloads import belonging_of, pod_of, workload_of
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import Node
from exporter.model.observation import ProcessReading
from exporter.model.server import Client, Server, ServerState
from exporter.model.workload import Workload, WorkloadKind
from exporter.view import View, printable

_COLUMNS = ("DAEMON", "SERVER", "STATE", "PID", "USER", "COMMAND", "WORKLOAD", "GPU", "MEMORY")
_MAY_BE_LEFT_OUT = "WORKLOAD"
_RIGHT = {"SERVER", "PID", "MEMORY"}
_SHORT_ID = 12
"""As much of a container's ID as Docker shows."""

_LONGEST_WORKLOAD = 24
MEBIBYTE = 1 << 20

Memory = Mapping[int, Mapping[str, int]]
"""Bytes that a process uses, by PID and GPU."""


def table(node: Node) -> str:
    """One table of daemons, servers and clients, and of the processes beside them; then what could not be seen."""
    memory = _memory(node)
    rows = [row for daemon in View(node).daemons() for row in _daemon_rows(node, daemon, memory)]
    rows.extend(_bypassing_rows(node, memory))
    lines = _aligned(_told([_COLUMNS, *rows])) if rows else ["No MPS control daemon, and none expected."]
    return "\n".join([*lines, *_problems(node)]) + "\n"


def line(node: Node) -> str:
    """One line for the service manager."""
    daemons = list(View(node).daemons())
    up = sum(daemon.state is DaemonState.UP for daemon in daemons)
    clients = sum(len(daemon.clients) for daemon in daemons)
    blind = _blind(node)
    return f"{up} of {len(daemons)} daemons up, {clients} clients" + (f"; blind: {', '.join(blind)}" if blind else "")


def as_json(node: Node) -> dict[str, Any]:
    """The same as one object."""
    memory = _memory(node)
    return {
        "at": node.at,
        "daemons": [_daemon_object(node, daemon, memory) for daemon in View(node).daemons()],
        "gpus": [_gpu_object(node, uuid) for uuid in node.gpus],
        "sources": {name: {"problem": source.last.problem} for name, source in node.sources.items()},
    }


def told(node: Node) -> Mapping[str, Any]:
    """All of it, as the service tells it to whoever asks: the table, the object, and the exit code."""
    return {"table": table(node), "node": as_json(node), "exit_code": exit_code(node)}


def exit_code(node: Node) -> int:
    """0 where every daemon is up, no server is in FAULT, and all could be seen; else 1."""
    daemons = list(View(node).daemons())
    down = any(daemon.state is not DaemonState.UP for daemon in daemons)
    faulted = any(server.state is ServerState.FAULT for daemon in daemons for server in daemon.servers.values())
    return int(down or faulted or bool(_blind(node)))


def _blind(node: Node) -> Sequence[str]:
    return [name for name, source in node.sources.items() if source.last.problem is not None]


def _daemon_rows(node: Node, daemon: Daemon, memory: Memory) -> Iterable[Sequence[str]]:
    state = daemon.state or ("unknown" if daemon.supported else "unsupported")
    servers = list(daemon.servers.values())
    if not servers:
        yield (printable(daemon.name), "-", state, "-", "-", "-", "-", "-", "-")
    for server in servers:
        shown = state if daemon.state is not DaemonState.UP else server.state or "unknown"
        here = (printable(daemon.name), str(server.pid), shown)
        clients = _clients_of(daemon, server)
        if not clients:
            yield (*here, "-", _user_of(node, server), "-", "-", "-", "-")
        for client in clients:
            yield from ((*here, *row) for row in _client_rows(node, client, memory))
    for pid in sorted(daemon.waiting):
        yield (printable(daemon.name), "-", "waiting", str(pid), *_who(node, pid), "-", "-")


def _clients_of(daemon: Daemon, server: Server) -> Sequence[Client]:
    return [client for client in daemon.clients.values() if client.server == server.pid]


def _user_of(node: Node, server: Server) -> str:
    process = node.processes.get(server.pid)
    if process is not None and process.user is not None:
        return printable(process.user)
    return "-" if server.uid is None else str(server.uid)


def _client_rows(node: Node, client: Client, memory: Memory) -> Iterable[Sequence[str]]:
    who = (str(client.pid), *_who(node, client.pid))
    by_gpu = memory.get(client.pid, {})
    if not by_gpu:
        yield (*who, "-", "-")
    for gpu, used in by_gpu.items():
        yield (*who, _gpu_name(node, gpu), f"{used // MEBIBYTE} MiB")


def _bypassing_rows(node: Node, memory: Memory) -> Iterable[Sequence[str]]:
    for uuid, gpu in node.gpus.items():
        for pid in gpu.bypassing:
            used = memory.get(pid, {}).get(uuid)
            shown = "-" if used is None else f"{used // MEBIBYTE} MiB"
            yield ("none", "-", "bypassing", str(pid), *_who(node, pid), _gpu_name(node, uuid), shown)


def _who(node: Node, pid: int) -> tuple[str, str, str]:
    process = node.processes.get(pid)
    if process is None:
        return "-", "-", "-"
    return printable(process.user or "-"), printable(process.command or "-")[:32], _whose(node, process)


def _whose(node: Node, process: ProcessReading) -> str:
    """Its workload in few words; none where that is the user, who has a column of their own."""
    workload, pod = workload_of(process), pod_of(node, process)
    match workload:
        case None | Workload(kind=WorkloadKind.USER):
            return "-"
        case Workload(kind=WorkloadKind.SLURM_JOB, name=name):
            shown = f"job {name}"
        case Workload(kind=WorkloadKind.POD, name=name):
            shown = f"pod {name if pod is None else printable(pod.name)}"
        case Workload(kind=WorkloadKind.CONTAINER, name=name):
            shown = f"container {name[:_SHORT_ID]}"
        case Workload(name=name):
            shown = name
    return shown if len(shown) <= _LONGEST_WORKLOAD else f"{shown[: _LONGEST_WORKLOAD - 1]}…"


def _memory(node: Node) -> Memory:
    memory: dict[int, dict[str, int]] = {}
    for uuid, gpu in node.gpus.items():
        for pid, used in used_bytes(gpu.reading).items():
            memory.setdefault(pid, {})[uuid] = used
    return memory


def _gpu_name(node: Node, uuid: str) -> str:
    index = node.gpus[uuid].reading.index
    return uuid if index is None else str(index)


def _problems(node: Node) -> Iterable[str]:
    for name, source in sorted(node.sources.items()):
        if source.last.problem is not None:
            yield f"{name}: {source.last.problem}"
    for daemon in View(node).daemons():
        if not daemon.supported:
            name = printable(daemon.name)
            yield f"{name}: MPS protocol {daemon.protocol} is not supported yet: only its process is seen"
        if daemon.state is DaemonState.UP:
            yield from (f"log: {problem}" for problem in daemon.log_problems.values() if problem is not None)


def _daemon_object(node: Node, daemon: Daemon, memory: Memory) -> dict[str, Any]:
    return {
        "name": daemon.name,
        "state": daemon.state,
        "expected": daemon.expected,
        "pid": None if daemon.process is None else daemon.process.pid,
        "version": daemon.version,
        "waiting": sorted(daemon.waiting),
        "servers": [_server_object(node, daemon, server, memory) for server in daemon.servers.values()],
    }


def _server_object(node: Node, daemon: Daemon, server: Server, memory: Memory) -> dict[str, Any]:
    share, limits, gpus = server.active_thread_percentage, server.pinned_memory_limits, by_its_ordinals(node, daemon)
    return {
        "pid": server.pid,
        "uid": server.uid,
        "state": server.state,
        "active_thread_ratio": None if share is None else share / 100,
        "pinned_memory_limit_bytes": {gpus[device]: limit for device, limit in limits.items() if device in gpus},
        "clients": [_client_object(node, client, memory) for client in _clients_of(daemon, server)],
    }


def _client_object(node: Node, client: Client, memory: Memory) -> dict[str, Any]:
    process = node.processes.get(client.pid)
    return {
        "client": client_id(client, process),
        "pid": client.pid,
        "user": None if process is None else process.user,
        "command": None if process is None else process.command,
        **_owners_object(node, process),
        "memory_used_bytes": dict(memory.get(client.pid, {})),
    }


def _owners_object(node: Node, process: ProcessReading | None) -> dict[str, Any]:
    owners, pod, workload = belonging_of(process), pod_of(node, process), workload_of(process)
    return {
        "unit": owners.unit,
        "container": owners.container,
        "pod_uid": owners.pod_uid,
        "pod": None if pod is None else pod.name,
        "namespace": None if pod is None else pod.namespace,
        "slurm_job_id": owners.slurm_job_id,
        "slurm_job_sluid": owners.slurm_job_sluid,
        "workload": None if workload is None else {"kind": workload.kind, "name": workload.name},
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


def _told(rows: Sequence[Sequence[str]]) -> Sequence[Sequence[str]]:
    """Without the column that has nothing to tell where nobody but users own anything."""
    index = _COLUMNS.index(_MAY_BE_LEFT_OUT)
    if any(row[index] != "-" for row in rows[1:]):
        return rows
    return [(*row[:index], *row[index + 1 :]) for row in rows]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    right = [name in _RIGHT for name in rows[0]]
    return [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]
