"""Limits in force: clients of a server; thread percentage and pinned memory of each client."""

from collections.abc import Iterable, Mapping
from typing import Any

from exporter.model.daemon import Daemon, with_runtime
from exporter.model.node import Node
from exporter.model.observation import ControlReply, GpuReading, GpuUuid
from exporter.model.server import Server
from exporter.model.settings import MAX_CONNECTIONS, Limits
from exporter.model.values import replace
from exporter.parse import control_reply
from exporter.parse.mps_variables import parse_byte_size, parse_percentage
from exporter.state import processes
from exporter.state.devices import (
    MOST_DEVICES,
    device_count,
    gpus_in_order,
    is_from_volta,
    serves_gpu,
    version_number,
)
from exporter.state.servers import with_server

BEFORE_VOLTA = 16

FROM_VOLTA = ((13000, 48), (13040, 60))
"""Client contexts per device up to each version of MPS. The last version is that of release 615 of the guide."""

STARTING_SECONDS = 2.0  # A server that the log showed starting logs its limits in this time (measured: 0.3 s).


def clients_limit(node: Node, daemon: Daemon, server: Server) -> int | None:
    """Return how many clients a server accepts; None if unknown. Of several devices, each has a limit of its own."""
    return device_limit(node, daemon, server) if device_count(node, daemon) <= 1 else None


def device_limit(node: Node, daemon: Daemon, server: Server) -> int | None:
    """Return how many clients a server accepts on each of its devices (NVIDIA's guide; measured with two, R580).

    The configuration has precedence over the server's own statement, and that over the number of NVIDIA's guide for the
    daemon's GPUs. None: the GPUs or the version are unknown, or the guide has no single number for all of them. It has
    none either if a client requests more work queues than by default, or if its environment is unknown.
    """
    stated = daemon.declared.clients_limit or server.clients_limit
    if stated is not None:
        return stated
    # By default, a client has 2 work queues, of which all clients share a pool (guide).
    clients = (node.processes.get(pid) for pid, client in daemon.clients.items() if client.server == server.pid)
    variables = (process.environment for process in clients if process is not None)
    if any(each is None or each.get(MAX_CONNECTIONS, "2") not in ("1", "2") for each in variables):
        return None
    gpus = (gpu.reading for gpu in node.gpus.values() if serves_gpu(node, daemon, gpu.reading) is not False)
    documented = {_documented(daemon, gpu) for gpu in gpus}
    return documented.pop() if len(documented) == 1 else None


def _documented(daemon: Daemon, gpu: GpuReading) -> int | None:
    from_volta = is_from_volta(gpu)
    if not from_volta:
        return None if from_volta is None else BEFORE_VOLTA
    # The version of MPS as its programs print it, 13010 for CUDA 13.1; else that of the driver's CUDA.
    version = None if daemon.runtime.version is None else int(daemon.runtime.version)
    parts = (gpu.cuda_version or "").partition(".")
    major, minor = version_number(parts[0]), version_number(parts[2])
    if version is None and major is not None and minor is not None:
        version = 1000 * major + 10 * minor
    return None if version is None else next((limit for newest, limit in FROM_VOLTA if version <= newest), None)


def wanted_limits(node: Node, daemon: Daemon) -> Limits:
    """Return the limits that the watchdog enforces."""
    watch = node.watches.get(daemon.name)
    return Limits() if watch is None or watch.wanted_limits is None else watch.wanted_limits


def queries(node: Node, daemon: Daemon) -> Iterable[tuple[str, float | None]]:
    """Yield the queries for limits on each device, and since when the answer is known.

    A limit may be wanted for a device of which nothing else is known.
    """
    asked_at, devices = daemon.commands.asked_at, wanted_limits(node, daemon).pinned_memory
    number = min(max((device_count(node, daemon), *(device + 1 for device in devices))), MOST_DEVICES)
    yield from ((command, asked_at.get(command)) for command in _default_queries(number))
    readable = daemon.log.problems.get("server.log") is None and daemon.log.own_commands.blocked_since is None
    log_followed = readable or daemon.in_journal
    for server in daemon.servers.values():
        # In a log that is followed, a server that starts will log its limits.
        starting = server.uid is not None and node.at - server.started_at < STARTING_SECONDS
        will_log = log_followed and starting and server.limits_logged_at is None
        if not will_log and processes.can_query(node, server.pid):
            for command in _server_queries(server.pid, number):
                yield command, asked_at.get(command, server.limits_logged_at)


def _default_queries(devices: int) -> Iterable[str]:
    yield control_reply.DEFAULT_THREADS
    yield control_reply.DEFAULT_PRIORITY
    yield from (f"{control_reply.DEFAULT_PINNED_MEMORY} {device}" for device in range(devices))


def _server_queries(pid: int, devices: int) -> Iterable[str]:
    yield f"{control_reply.THREADS} {pid}"
    yield from (f"{control_reply.PINNED_MEMORY} {pid} {device}" for device in range(devices))


def mark_stale(daemon: Daemon, query: str) -> Daemon:
    """Send a query for limits again soon."""
    of_servers = (each for pid in daemon.servers for each in _server_queries(pid, MOST_DEVICES))
    every = {*_default_queries(MOST_DEVICES), *of_servers}
    stale = (daemon.default_limits.stale | {query}) & every
    return replace(daemon, default_limits=replace(daemon.default_limits, stale=stale))


def apply_reply(daemon: Daemon, reply: ControlReply) -> Daemon:
    """Apply the reply to a query for limits, or to a command that sets a percentage.

    An empty reply may be no answer at all (R580), and so changes nothing.
    """
    if query := control_reply.query_changed_by(reply.command):
        daemon = before_change(daemon, query)
    query = query or reply.command
    limits = replace(daemon.default_limits, stale=daemon.default_limits.stale - {reply.command})
    match query.split():
        case [verb, *device] if verb in (control_reply.DEFAULT_THREADS, control_reply.DEFAULT_PINNED_MEMORY):
            limits = replace(limits, **_answered(limits, device, reply.stdout))
        case [verb] if verb == control_reply.DEFAULT_PRIORITY:
            priority = control_reply.parse_priority(reply.stdout)
            limits = replace(limits, client_priority=limits.client_priority if priority is None else priority)
        case [verb, pid, *device] if verb in (control_reply.THREADS, control_reply.PINNED_MEMORY):
            server = daemon.servers.get(_number(pid) or 0)
            if server is not None:
                daemon = with_server_limits(daemon, server, **_answered(server.limits, device, reply.stdout))
        case _ if query == control_reply.DEVICE_QUERY:
            devices = control_reply.parse_devices(reply.stdout) or daemon.runtime.devices
            daemon = with_runtime(daemon, devices=devices)
    return replace(daemon, default_limits=limits)


def _answered(limits: Limits, device: list[str], stdout: str) -> dict[str, Any]:
    """Return the limit that changes by a reply: that of a device's memory, or else the thread percentage."""
    if not device:
        return {"active_thread_percentage": parse_percentage(stdout) or limits.active_thread_percentage}
    return {"pinned_memory": with_limit(limits.pinned_memory, _number(" ".join(device)), parse_byte_size(stdout))}


def with_server_limits(daemon: Daemon, server: Server, **changes: Any) -> Daemon:
    """Return the daemon with changed limits of a server.

    If no command for it was seen, it is unknown which clients connected before a change: they have at most the larger
    limit.
    """
    old, new = server.limits, replace(server.limits, **changes)
    memory = {device: max(old.pinned_memory.get(device, 0), limit) for device, limit in new.pinned_memory.items()}
    threads, most = old.active_thread_percentage, new.active_thread_percentage
    replaced = any(new.pinned_memory.get(device) != limit for device, limit in old.pinned_memory.items())
    if replaced or threads not in (None, most):
        most = None if threads is None or most is None else max(threads, most)
        daemon = _with_client_limits(
            daemon, server.pid, replace(new, active_thread_percentage=most, pinned_memory=memory)
        )
    return with_server(daemon, replace(server, limits=new))


def before_change(daemon: Daemon, query: str) -> Daemon:
    """Return the daemon before a command that may change what a query returns: its present clients keep their limits.

    A limit of a server is for clients that connect later (measured, R580).
    """
    match query.split():
        case [control_reply.THREADS | control_reply.PINNED_MEMORY, pid, *_] if server := daemon.servers.get(int(pid)):
            return _with_client_limits(daemon, server.pid, server.limits)
    return daemon


def _with_client_limits(daemon: Daemon, server: int, limits: Limits) -> Daemon:
    """Return the daemon with these limits of a server's clients, unless they have kept earlier ones."""
    clients = daemon.clients.items()
    kept = {pid: replace(each, limits=limits) for pid, each in clients if each.server == server and each.limits is None}
    return replace(daemon, clients={**daemon.clients, **kept}) if kept else daemon


def memory_limits_by_gpu(node: Node, daemon: Daemon, limits: Mapping[int, int]) -> Iterable[tuple[GpuUuid, int]]:
    """Return the memory limits of a client that sees all GPUs, without those of devices that are not there."""
    return [(uuid, limits[device]) for device, uuid in enumerate(gpus_in_order(node, daemon)) if device in limits]


def _number(word: str) -> int | None:
    return int(word) if word.isdecimal() and len(word) < 10 else None


def with_limit(limits: Mapping[int, int], device: int | None, limit: int | None) -> Mapping[int, int]:
    """Return the limits with that of one device, if both are known."""
    if device is None or limit is None or device >= MOST_DEVICES:
        return limits
    return {**limits, device: limit}
