"""Daemons as discovered: names, pipe directories, users."""

import posixpath
from collections.abc import Collection, Mapping
from typing import Any

from exporter.model.daemon import (
    Daemon,
    DaemonRuntime,
    Declaration,
    NamedBy,
    with_connections,
    with_declaration,
    with_lifecycle,
    with_runtime,
    with_stdout,
)
from exporter.model.event import Step
from exporter.model.identity import identity_of
from exporter.model.node import Node
from exporter.model.observation import DaemonFound, ProcessReading
from exporter.model.server import DisconnectReason
from exporter.model.values import replace, without
from exporter.model.watchdog import with_stop_remembered
from exporter.parse.log_line import Pids
from exporter.parse.proc import mps_program
from exporter.state import log_lines, servers


def daemon_found(node: Node, found: DaemonFound) -> Node:
    """Return the node with a daemon that was found or declared, or whose declaration ended.

    If the daemon has another name already, the name from the source of higher precedence remains.
    """
    by = _source(found)
    if found.expected is False and by is not NamedBy.CONFIGURATION:
        return _withdrawn(node, found, by)
    in_directory = _in_directory(node, found)
    known = node.daemons.get(found.daemon) if in_directory is None else in_directory
    if known is None:
        known = Daemon(name=found.daemon, pipe_directory="", log_directory="", declared=Declaration(by=by))
        known = with_stop_remembered(known, node.watches.get(found.daemon))
    elif known.name != found.daemon and (by is NamedBy.CONFIGURATION or by.precedence > known.declared.by.precedence):
        # Its unreported incidents get the new name, too.
        old, new = known.name, found.daemon
        incidents = {
            id_: replace(each, daemon=new) if each.daemon == old and not each.end_reported else each
            for id_, each in node.incidents.items()
        }
        node = replace(node, daemons=without(node.daemons, old), incidents=incidents)
        known = replace(known, name=new)
    if by.precedence >= known.declared.by.precedence:
        known = _declared(known, found, by)
    return with_daemon(node, with_declaration(_completed(known, found, by), observed_at=node.at))


def with_daemon(node: Node, daemon: Daemon) -> Node:
    """Return the node with this daemon."""
    return replace(node, daemons={**node.daemons, daemon.name: daemon})


def mark_duplicate(node: Node, name: str, same_as: str) -> Node:
    """Return the node with a daemon reduced to its declaration and counters, because its directory is another's."""
    daemon = node.daemons.get(name)
    if daemon is None or same_as not in node.daemons:
        return node
    duplicate = Daemon(
        name=name,
        pipe_directory=daemon.pipe_directory,
        log_directory=daemon.log_directory,
        declared=replace(daemon.declared, owner=None),
        runtime=DaemonRuntime(unit=daemon.runtime.unit, same_as=same_as),
        totals=daemon.totals,
    )
    return with_daemon(node, duplicate)


def _source(found: DaemonFound) -> NamedBy:
    """Return the source of an observation. In recordings of earlier versions, only units make a daemon expected."""
    if found.by in tuple(NamedBy):
        return NamedBy(found.by)
    return NamedBy.UNIT if found.expected else NamedBy.DISCOVERED


def _in_directory(node: Node, found: DaemonFound) -> Daemon | None:
    if _source(found) is NamedBy.DISCOVERED and "@" in found.daemon and found.daemon != found.pipe_directory:
        return node.daemons.get(found.daemon)
    directory, on_host = _normal(found.pipe_directory), (each for each in node.daemons.values() if not each.is_apart)
    there = {each.name: each for each in on_host if _normal(each.pipe_directory) == directory}
    return there.get(found.daemon) or next(iter(there.values()), None)


def _normal(path: str) -> str:
    """Return a normal path. On Linux, two slashes at the beginning are one, but not for `posixpath`."""
    return posixpath.normpath(path).replace("//", "/", 1)


def _declared(daemon: Daemon, found: DaemonFound, by: NamedBy) -> Daemon:
    """Return the daemon with the data of the source that names it. The configuration also removes what it lacks."""
    daemon = with_declaration(
        replace(daemon, pipe_directory=found.pipe_directory, log_directory=found.log_directory),
        expected=daemon.declared.expected if found.expected is None else found.expected,
        by=by,
    )
    if by is not NamedBy.CONFIGURATION:
        daemon = with_runtime(daemon, unit=found.unit or daemon.runtime.unit)
        return with_declaration(daemon, unit=found.unit if by is NamedBy.UNIT else daemon.declared.unit)
    runs_in = None if daemon.runtime.process is None else daemon.runtime.process.unit
    return with_declaration(
        with_runtime(daemon, unit=found.unit or runs_in),
        unit=found.unit,
        clients_limit=found.clients_limit,
        owner=found.owner if found.owner is not None or found.unit is None else daemon.declared.owner,
    )


def _completed(daemon: Daemon, found: DaemonFound, by: NamedBy) -> Daemon:
    runtime, declared = daemon.runtime, daemon.declared
    daemon = with_runtime(
        daemon,
        unit=runtime.unit or found.unit,
        visible_devices=found.visible_devices if runtime.visible_devices is None else runtime.visible_devices,
    )
    daemon = with_stdout(daemon, foreground=found.foreground, in_file=found.stdout_in_file)
    return with_declaration(
        daemon,
        unit=declared.unit or (found.unit if by is NamedBy.UNIT else None),
        clients_limit=declared.clients_limit or found.clients_limit,
        owner=found.owner if declared.owner is None else declared.owner,
    )


def _withdrawn(node: Node, found: DaemonFound, by: NamedBy) -> Node:
    """Return the node with a daemon that is no longer declared. A source only ends its own declaration."""
    daemon = node.daemons.get(found.daemon)
    if daemon is None or (by is not NamedBy.DISCOVERED and by is not daemon.declared.by):
        return node
    unit = None if daemon.runtime.process is None else daemon.runtime.process.unit
    discovered = Declaration(by=NamedBy.DISCOVERED, observed_at=node.at)
    daemon = with_runtime(replace(daemon, declared=discovered), unit=unit, foreign_owner=None)
    if by is NamedBy.DRA:
        # The driver removes the directory of a claim that no pod uses any more. The pod of the daemon ends after that.
        daemon = with_lifecycle(daemon, quit_at=node.at)
    return with_daemon(node, daemon)


def pids_read(step: Step, at: float, pids: Pids) -> None:
    """Apply that the daemon reports PIDs of its own namespace, or of this one if `pids` is None.

    If the namespace was unknown, the PIDs so far were those of other processes here, so the daemon is queried again.
    """
    if step.daemon.runtime.in_foreign_namespace is (pids is not None):
        return
    step.daemon = with_runtime(step.daemon, in_foreign_namespace=pids is not None, seen_on=frozenset())
    if pids is not None:
        step.daemon = with_connections(step.daemon, listed_at=None)
        servers.end_all(step, at, DisconnectReason.EXIT)


def only_user(daemon: Daemon) -> int | None:
    """Return the UID of the only user that a daemon may serve; None if it may serve several, or if it is unknown.

    In another PID namespace, a daemon can only report its own processes. There one user may have several UIDs here.
    """
    uid = None if daemon.runtime.process is None or daemon.runtime.in_foreign_namespace else daemon.runtime.process.uid
    return uid or None


def named_pids(daemon: Daemon) -> set[int]:
    """Return the PIDs that the daemon reports: servers, clients, and processes that its faults affected."""
    connections = daemon.connections
    return set().union(
        *(log_lines.named_clients(server) for server in daemon.servers.values()),
        *(daemon.servers, daemon.clients, connections.queued),
        *(connections.disconnected_at, connections.server_exited_at, connections.disconnects),
    )


def of_other_users(daemon: Daemon, pids: Collection[int], processes: Mapping[int, ProcessReading]) -> frozenset[int]:
    """Return the PIDs that are known to belong to other users than the only one that the daemon may serve."""
    uid = only_user(daemon)
    if uid is None:
        return frozenset()
    return frozenset(pid for pid in pids if pid in processes and processes[pid].uid not in (None, uid))


def end_member(step: Step, at: float, pid: int) -> None:
    """End a server or a client of the daemon."""
    step.daemon = servers.dequeue(step.daemon, pid)
    servers.end(step, at, pid)
    servers.disconnect(step, at, pid, DisconnectReason.EXIT)


_BY_PID = ("disconnected_at", "server_exited_at", "disconnects", "recently_disconnected")


def _no_servers(daemon: Daemon, processes: Mapping[int, ProcessReading]) -> list[int]:
    """Return the PIDs of servers that the daemon does not list, and that are known to run another program than MPS.

    Any user can write the start of a server into the log (measured, R580), and so hide a process that bypasses MPS. A
    site may have renamed the program, but a server is a child of the daemon. The PID of a server that exited may be
    that of another process now.
    """
    parent, runtime = identity_of(daemon.runtime.last_process), daemon.runtime
    if parent is None or runtime.hidden:
        return []
    listed = {server.pid for server in daemon.servers.values() if server.listed}
    pids = {*daemon.servers, *daemon.connections.server_exited_at} - listed
    read = ((pid, process) for pid in sorted(pids) if (process := processes.get(pid)) and not process.ended)
    others = ((pid, process.executable or process.command) for pid, process in read if process.parent != parent)
    return [pid for pid, program in others if program and not mps_program(program)]


def remove_others(step: Step, at: float, processes: Mapping[int, ProcessReading]) -> None:
    """Remove servers that are none, and processes of other users than the only one that the daemon may serve."""
    for pid in _no_servers(step.daemon, processes):
        servers.end(step, at, pid, DisconnectReason.EXIT)
        exited_at = without(step.daemon.connections.server_exited_at, pid)
        step.daemon = with_connections(step.daemon, server_exited_at=exited_at)
    if only_user(step.daemon) is None:
        return
    for pid in sorted(of_other_users(step.daemon, named_pids(step.daemon), processes)):
        end_member(step, at, pid)
        others: dict[str, Any] = {name: without(getattr(step.daemon.connections, name), pid) for name in _BY_PID}
        daemon = with_connections(step.daemon, **others)
        servers_of = {other: log_lines.without_client(server, pid) for other, server in daemon.servers.items()}
        step.daemon = replace(daemon, servers=servers_of)
