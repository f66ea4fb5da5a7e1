"""Replies of a control daemon to commands."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from itertools import islice

from exporter.model.daemon import (
    Daemon,
    with_commands,
    with_connections,
    with_declaration,
    with_lifecycle,
    with_log,
    with_runtime,
    with_totals,
)
from exporter.model.dialect import PROTOCOL_2, is_given_as_arguments
from exporter.model.event import Step
from exporter.model.observation import ControlReply
from exporter.model.server import ServerState
from exporter.model.settings import Limits
from exporter.model.values import increment, replace
from exporter.parse import control_reply, protocol3
from exporter.parse.control_reply import VERSION_FLAG, CommandRefusal, QueryOutcome
from exporter.parse.log_line import translate_pid
from exporter.parse.mps_variables import parse_byte_size, parse_percentage
from exporter.state import lifecycle, limits, servers

JUST_BEFORE_SECONDS = 1.0
"""A daemon that answered this recently was responsive. One command takes 3 ms at most (measured, R580)."""

_STATES = {
    "ready": ServerState.ACTIVE,
    "active": ServerState.ACTIVE,
    "initializing": ServerState.INITIALIZING,
    "fault": ServerState.FAULT,
}
"""The guide's example has `Ready`. The other words are those of protocol 2."""

MOST_NAMESPACES = 256  # Namespaces of one daemon that are stored.

_ABOUT_A_SERVER = frozenset(
    {control_reply.SERVER_STATUS, control_reply.LIST_CLIENTS, control_reply.THREADS, control_reply.PINNED_MEMORY}
)


def reply_read(step: Step, reply: ControlReply, mps_pids: Collection[int] | None = None) -> None:
    """Apply the reply to a command of the exporter or, in a recording, of any other program.

    `mps_pids` are the MPS clients that NVML shows; None if that is unknown.
    """
    at, before = reply.at, step.daemon
    step.daemon = with_commands(before, asked_at={**before.commands.asked_at, reply.command: at})
    verb = reply.command.partition(" ")[0]
    if verb == VERSION_FLAG:
        version = control_reply.parse_version(reply.stdout) or before.runtime.version
        step.daemon = with_runtime(step.daemon, version=version)
        return
    match control_reply.query_outcome(reply):
        case QueryOutcome.ANSWERED if verb == control_reply.QUIT:
            if not reply.stdout.strip():
                step.daemon = with_lifecycle(step.daemon, quit_at=at)
        case QueryOutcome.ANSWERED if before.ended and reply.asked_at < (before.lifecycle.state_since or -math.inf):
            pass  # An answer to a query from before the end does not restore the daemon.
        case QueryOutcome.ANSWERED:
            lifecycle.answered(step, at)
            step.daemon = with_commands(step.daemon, asked_at={**step.daemon.commands.asked_at, reply.command: at})
            _answer_read(step, reply, mps_pids)
        case QueryOutcome.NO_DAEMON:
            lifecycle.not_found(step, at)
        case QueryOutcome.REFUSED:
            step.daemon = limits.mark_stale(step.daemon, reply.command)
            lifecycle.refused(step, at)
        case QueryOutcome.TIMED_OUT:
            daemon = step.daemon
            if before.commands.unanswered_since is None:
                # The daemon waits for the server of its first unanswered command, if it answered another one just
                # before. The log is no source, because any user can write a command into it.
                responsive = before.answers and reply.asked_at - last_answer_at(before) <= JUST_BEFORE_SECONDS
                queried = control_reply.servers_queried(reply.command, before.servers) if responsive else ()
                daemon = with_commands(daemon, waits_for_server=next(iter(queried)) if len(queried) == 1 else None)
            step.daemon = lifecycle.unanswered(limits.mark_stale(daemon, reply.command), at, reply.asked_at)
        case QueryOutcome.UNUSABLE:
            lifecycle.control_unusable(step, at)


def last_answer_at(daemon: Daemon) -> float:
    """Return the time of the last reply of the daemon."""
    return max((at for command, at in daemon.commands.asked_at.items() if command != VERSION_FLAG), default=-math.inf)


def is_changed(last: Daemon | None, daemon: Daemon | None) -> bool:
    """Return whether a daemon differs in more than the times of commands and the lines that these add to its log."""
    if last is None or daemon is None:
        return last is not daemon
    own, log = replace(daemon.log.own_commands, blocked_since=last.log.own_commands.blocked_since), daemon.log
    last = with_log(last, own_commands=own, last_command=log.last_command)
    last = with_log(last, commanded_at=log.commanded_at, closed_at=log.closed_at)
    last = with_totals(last, log_lines=daemon.totals.log_lines)
    last = with_declaration(last, observed_at=daemon.declared.observed_at)
    if None not in (last.connections.listed_at, daemon.connections.listed_at):
        last = with_connections(last, listed_at=daemon.connections.listed_at)
    return with_commands(last, asked_at=daemon.commands.asked_at) != daemon


def _answer_read(step: Step, reply: ControlReply, mps_pids: Collection[int] | None) -> None:
    at, asked_at = reply.at, reply.asked_at
    if is_given_as_arguments(reply.command):
        _table_answer_read(step, reply, mps_pids)
        return
    missing = control_reply.parse_missing_server(reply.stdout)
    missing_server = None if missing is None else str(translate_pid(missing, reply.pids))
    match reply.command.split():
        case [verb, server, *_] if verb in _ABOUT_A_SERVER and server == missing_server:
            servers.end(step, at, int(server))
        case [control_reply.LIST_SERVERS]:
            pids = _pids(reply)
            if pids is not None and 0 not in pids:
                servers.listed(step, at, asked_at, pids)
        case [control_reply.SERVER_STATUS, server] if server.removeprefix("-").isdecimal():
            state = control_reply.parse_server_state(reply.stdout)
            if state is not None:
                servers.status_read(step, at, asked_at, int(server), state)
        case [control_reply.LIST_CLIENTS, server] if server.removeprefix("-").isdecimal():
            pid, listed = int(server), _pids(reply)
            if listed is not None and pid in step.daemon.servers:
                visible = tuple(client for client in listed if client != 0)
                step.daemon = servers.with_hidden_pids(step.daemon, pid, visible != listed)
                servers.apply_list(step, at, asked_at, pid, visible, complete=visible == listed)
                if listed:
                    servers.confirm_fault(step, at, pid)
        case _:
            step.daemon = limits.apply_reply(step.daemon, reply)


def _pids(reply: ControlReply) -> tuple[int, ...] | None:
    listed = control_reply.parse_pid_list(reply.stdout)
    return None if listed is None else tuple(translate_pid(pid, reply.pids) for pid in listed)


# -- protocol 3 ------------------------------------------------------------------------------------------------------


def _table_answer_read(step: Step, reply: ControlReply, mps_pids: Collection[int] | None) -> None:
    if control_reply.parse_refusal(reply.stdout) is CommandRefusal.UNKNOWN_COMMAND:
        # Any user can write the log line from which another protocol was known.
        step.daemon = with_runtime(step.daemon, protocol=PROTOCOL_2.number)
        return
    table = protocol3.parse_table(reply.command, reply.stdout)
    if table is None:
        return
    for part, count in (("column", table.unknown_columns), ("row", table.unknown_rows)):
        if count:
            unrecognized = increment(step.daemon.totals.replies_unrecognized, part, count)
            step.daemon = with_totals(step.daemon, replies_unrecognized=unrecognized)
    daemon = step.daemon
    match reply.command:
        case protocol3.LIST_SERVERS:
            _server_table_read(step, reply, table)
        case protocol3.LIST_CLIENTS:
            rows = tuple(protocol3.client_rows(table))
            for pid, server in tuple(daemon.servers.items()):
                if server.name is not None:
                    listed = {translate_pid(row.pid, reply.pids): row for row in rows if row.server == server.name}
                    _client_rows_read(step, reply, pid, listed, mps_pids, complete=not table.unknown_rows)
        case protocol3.LIST_NAMESPACES:
            step.daemon = _with_namespaces(daemon, table)
        case protocol3.LIST_DEVICES:
            devices = protocol3.devices_by_ordinal(table) or daemon.runtime.devices
            step.daemon = with_runtime(daemon, devices=devices)
        case protocol3.LIST_PARTITIONS:
            # One that is only configured has no partition yet.
            created = any(row.get("status", "").lower() == "created" for row in table.rows)
            step.daemon = with_runtime(daemon, lists_partitions=created)


def _server_table_read(step: Step, reply: ControlReply, table: protocol3.Table) -> None:
    """Apply the servers that run. A server that is configured but does not run has no PID."""
    rows = {translate_pid(row.pid, reply.pids): row for row in protocol3.server_rows(table) if row.pid is not None}
    if 0 in rows or table.unknown_rows:
        return
    servers.listed(step, reply.at, reply.asked_at, tuple(rows))
    for pid, row in rows.items():
        server = step.daemon.servers.get(pid)
        if server is not None:
            step.daemon = servers.with_server(step.daemon, replace(server, name=row.name, uid=row.uid))
            state = _STATES.get(row.status)
            if state is not None:
                servers.status_read(step, reply.at, reply.asked_at, pid, state)


def _client_rows_read(
    step: Step,
    reply: ControlReply,
    server: int,
    listed: Mapping[int, protocol3.ClientRow],
    mps_pids: Collection[int] | None,
    *,
    complete: bool,
) -> None:
    """Apply the clients of a server by their PIDs.

    A client's command line is in the table and can forge rows of it. So a process counts as a client only if NVML shows
    it as one too.
    """
    hidden = 0 in listed or (bool(listed) and mps_pids is None)
    visible = tuple(pid for pid in listed if pid != 0 and pid in (mps_pids or ()))
    step.daemon = servers.with_hidden_pids(step.daemon, server, hidden)
    complete = complete and not hidden and mps_pids is not None
    servers.apply_list(step, reply.at, reply.asked_at, server, visible, complete=complete)
    if visible:
        servers.confirm_fault(step, reply.at, server)
    for pid in visible:
        client, row = step.daemon.clients.get(pid), listed[pid]
        if client is not None:
            # The guide's example of a device has an ordinal, the program of driver 615 a UUID.
            gpu = row.device if control_reply.is_device_uuid(row.device) else None
            if row.device.isascii() and row.device.isdecimal() and len(row.device) < 4:
                gpu = step.daemon.runtime.devices.get(int(row.device))
            gpus = client.gpus if gpu is None else client.gpus | {gpu}
            client = replace(client, namespace=row.namespace, gpus=gpus)
            step.daemon = replace(step.daemon, clients={**step.daemon.clients, pid: client})


def _with_namespaces(daemon: Daemon, table: protocol3.Table) -> Daemon:
    """Return the daemon with the limits of all namespaces. A limit in unknown words is unknown."""
    rows = tuple(islice(protocol3.namespace_rows(table), MOST_NAMESPACES))
    found: defaultdict[str, dict[str, Limits]] = defaultdict(dict)
    for row in rows:
        memory = parse_byte_size(row.pinned_memory_limit)
        found[row.server][row.name] = Limits(
            active_thread_percentage=parse_percentage(row.active_thread_percentage.removesuffix("%")),
            # It is for each of the daemon's devices.
            pinned_memory={} if memory is None else dict.fromkeys(daemon.runtime.devices or (0,), memory),
            client_priority=control_reply.parse_priority(row.client_priority),
        )
    for server in daemon.servers.values():
        namespaces = {} if server.name is None else found[server.name]
        own = namespaces.get(protocol3.DEFAULT_NAMESPACE, Limits())
        daemon = servers.with_server(daemon, replace(server, namespaces=namespaces, limits=own))
    return daemon
