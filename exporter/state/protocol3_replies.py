"""Replies of a control daemon with protocol 3 (R615): servers, clients, limits, devices.

A client's command line is in the table of clients and can forge rows of it. So a process counts as a client only if
NVML shows it as one too.
"""

from collections.abc import Collection
from itertools import islice

from exporter.model.daemon import Daemon, with_runtime, with_totals
from exporter.model.observation import ControlReply, GpuUuid
from exporter.model.server import ServerState
from exporter.model.settings import Limits
from exporter.model.values import replace
from exporter.parse import control_reply, protocol3
from exporter.parse.control_reply import CommandRefusal
from exporter.parse.mps_variables import parse_byte_size, parse_percentage
from exporter.state import clients, servers
from exporter.state.transition import Transition, chain, for_each, increment, translate_pid

_STATES = {
    "ready": ServerState.ACTIVE,
    "active": ServerState.ACTIVE,
    "initializing": ServerState.INITIALIZING,
    "fault": ServerState.FAULT,
}
"""The guide's example has `Ready`. The other words are those of protocol 2."""

MOST_NAMESPACES = 256
"""Namespaces of one daemon that are stored."""


def answer_read(daemon: Daemon, reply: ControlReply, mps_pids: Collection[int] | None) -> Transition:
    """Return the daemon after an answer. `mps_pids` are the clients that NVML shows; None if that is unknown."""
    if control_reply.parse_refusal(reply.stdout) is CommandRefusal.UNKNOWN_COMMAND:
        # Only a daemon with protocol 2 answers so. Any user can write the log line from which protocol 3 was known.
        return with_runtime(daemon, protocol=2), ()
    table = protocol3.parse_table(reply.command, reply.stdout)
    if table is None:
        return daemon, ()
    daemon = count_unknown(daemon, columns=table.unknown_columns, rows=table.unknown_rows)
    match reply.command:
        case protocol3.LIST_SERVERS:
            return _servers_listed(daemon, reply, table)
        case protocol3.LIST_CLIENTS:
            return _clients_listed(daemon, reply, table, mps_pids)
        case protocol3.LIST_NAMESPACES:
            return _namespaces_listed(daemon, table), ()
        case protocol3.LIST_DEVICES:
            devices = protocol3.devices_by_ordinal(table) or daemon.runtime.devices
            addresses = control_reply.parse_device_addresses(reply.stdout) or daemon.runtime.addresses
            return with_runtime(daemon, devices=devices, addresses=addresses), ()
        case protocol3.LIST_PARTITIONS:
            # One that is only configured has no partition yet.
            created = any(row.get("status", "").lower() == "created" for row in table.rows)
            return with_runtime(daemon, lists_partitions=created), ()
        case _:
            return daemon, ()


def count_unknown(daemon: Daemon, *, columns: int = 0, rows: int = 0) -> Daemon:
    """Return the daemon after a table with unknown columns or rows."""
    for part, count in (("column", columns), ("row", rows)):
        if count:
            found = increment(daemon.totals.replies_unrecognized, part, count)
            daemon = with_totals(daemon, replies_unrecognized=found)
    return daemon


def _servers_listed(daemon: Daemon, reply: ControlReply, table: protocol3.Table) -> Transition:
    """Return the daemon with the servers that run. A server that is configured but does not run has no PID."""
    rows = {translate_pid(row.pid, reply.pids): row for row in protocol3.server_rows(table) if row.pid is not None}
    if 0 in rows or table.unknown_rows:
        return daemon, ()
    daemon, events = servers.listed(daemon, reply.at, reply.asked_at, tuple(rows))
    for pid, row in rows.items():
        server = daemon.servers.get(pid)
        if server is None:
            continue
        daemon = servers.with_server(daemon, replace(server, name=row.name, uid=row.uid))
        state = _STATES.get(row.status)
        if state is not None:
            daemon, added = servers.status_read(daemon, reply.at, reply.asked_at, pid, state)
            events += added
    return daemon, events


def _clients_listed(
    daemon: Daemon, reply: ControlReply, table: protocol3.Table, mps_pids: Collection[int] | None
) -> Transition:
    rows = tuple(protocol3.client_rows(table))
    return for_each(
        daemon,
        [pid for pid, server in daemon.servers.items() if server.name is not None],
        lambda daemon, pid: _clients_of(daemon, reply, pid, rows, mps_pids, complete=not table.unknown_rows),
    )


def _clients_of(
    daemon: Daemon,
    reply: ControlReply,
    server: int,
    rows: tuple[protocol3.ClientRow, ...],
    mps_pids: Collection[int] | None,
    *,
    complete: bool,
) -> Transition:
    name = daemon.servers[server].name
    listed = {translate_pid(row.pid, reply.pids): row for row in rows if row.server == name}
    hidden = 0 in listed or (bool(listed) and mps_pids is None)
    visible = tuple(pid for pid in listed if pid != 0 and pid in (mps_pids or ()))
    daemon = servers.with_hidden_pids(daemon, server, hidden)
    step = clients.apply_list(
        daemon, reply.at, reply.asked_at, server, visible, complete=complete and not hidden and mps_pids is not None
    )
    daemon, events = chain(step, lambda daemon: _confirm_fault(daemon, reply.at, server, found=bool(visible)))
    for pid in visible:
        client, row = daemon.clients.get(pid), listed[pid]
        if client is not None:
            gpu = _device(daemon, row.device)
            gpus = client.gpus if gpu is None else client.gpus | {gpu}
            client = replace(client, namespace=row.namespace, gpus=gpus)
            daemon = replace(daemon, clients={**daemon.clients, pid: client})
    return daemon, events


def _confirm_fault(daemon: Daemon, at: float, server: int, *, found: bool) -> Transition:
    return servers.confirm_fault(daemon, at, server) if found else (daemon, ())


def _device(daemon: Daemon, text: str) -> GpuUuid | None:
    """Return the device of a client. The guide's example has an ordinal, the program of driver 615 a UUID."""
    if protocol3.is_device_uuid(text):
        return text
    return daemon.runtime.devices.get(int(text)) if text.isascii() and text.isdecimal() and len(text) < 4 else None


def _namespaces_listed(daemon: Daemon, table: protocol3.Table) -> Daemon:
    """Return the daemon with the limits of all namespaces. A limit in unknown words is unknown."""
    rows = tuple(islice(protocol3.namespace_rows(table), MOST_NAMESPACES))
    for server in daemon.servers.values():
        found = {row.name: _limits(daemon, row) for row in rows if row.server == server.name}
        own = found.get(protocol3.DEFAULT_NAMESPACE, Limits())
        changed = replace(
            server,
            namespaces=found,
            active_thread_percentage=own.active_thread_percentage,
            pinned_memory_limits=own.pinned_memory,
            client_priority=own.client_priority,
        )
        daemon = servers.with_server(daemon, changed)
    return daemon


def _limits(daemon: Daemon, row: protocol3.NamespaceRow) -> Limits:
    """Return the limits of a namespace. One memory limit is for each of the daemon's devices."""
    memory = parse_byte_size(row.pinned_memory_limit)
    return Limits(
        active_thread_percentage=parse_percentage(row.active_thread_percentage.removesuffix("%")),
        pinned_memory={} if memory is None else dict.fromkeys(daemon.runtime.devices or (0,), memory),
        client_priority=control_reply.parse_priority(row.client_priority),
    )
