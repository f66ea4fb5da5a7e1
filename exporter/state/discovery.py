"""Daemons as discovered: names, pipe directories, users."""

import posixpath
from collections.abc import Collection, Mapping

from exporter.incidents import fault_log
from exporter.model.daemon import Daemon, DaemonRuntime, Declaration, NamedBy
from exporter.model.node import Node
from exporter.model.observation import DaemonFound, ProcessReading
from exporter.model.server import DisconnectReason
from exporter.model.values import replace
from exporter.model.watchdog import with_stop_remembered
from exporter.state import clients, log_files, servers
from exporter.state.transition import Pids, Transition, chain, for_each, without, without_events


def daemon_found(node: Node, seen: DaemonFound) -> Node:
    """A daemon was found or named: under a new name, or as one that has a name already, which may outweigh this one.

    Whoever named it may also take that back. Nothing is lost thereby, so there is no event.
    """
    by = _teller(seen)
    if seen.expected is False and by is not NamedBy.CONFIGURATION:
        return _withdrawn(node, seen, by)
    there = _at(node, seen)
    known = node.daemons.get(seen.daemon) if there is None else there
    if known is None:
        known = Daemon(name=seen.daemon, pipe_directory="", log_directory="", declared=Declaration(by=by))
        known = with_stop_remembered(known, node.watches.get(seen.daemon))
    elif there is not None and there.name != seen.daemon and _outweighs(by, there):
        node, known = _without(node, there, seen.daemon), replace(there, name=seen.daemon)
    daemon = _told(known, seen, by) if by.precedence >= known.declared.by.precedence else _added(known, seen)
    return _with(node, replace(daemon, declared=replace(daemon.declared, observed_at=node.at)))


def doubled(node: Node, name: str, same_as: str) -> Node:
    """Note that a daemon's pipe directory is another daemon's: only what was told of it is kept, and its counters."""
    daemon = node.daemons.get(name)
    if daemon is None or same_as not in node.daemons:
        return node
    only_named = Daemon(
        name=name,
        pipe_directory=daemon.pipe_directory,
        log_directory=daemon.log_directory,
        declared=Declaration(
            expected=daemon.declared.expected,
            by=daemon.declared.by,
            observed_at=daemon.declared.observed_at,
            unit=daemon.declared.unit,
            clients_limit=daemon.declared.clients_limit,
        ),
        runtime=DaemonRuntime(unit=daemon.runtime.unit, same_as=same_as),
        totals=daemon.totals,
    )
    return _with(node, only_named)


def _without(node: Node, daemon: Daemon, name: str) -> Node:
    """The node without a daemon that gets another name; its faults are of that name from now on."""
    others = {known: each for known, each in node.daemons.items() if known != daemon.name}
    incidents = {
        id_: replace(each, daemon=name) if each.daemon == daemon.name and not each.end_reported else each
        for id_, each in node.incidents.items()
    }
    return replace(node, daemons=others, incidents=incidents)


def _teller(seen: DaemonFound) -> NamedBy:
    """Recordings of earlier versions do not say: only units made a daemon expected there."""
    if seen.by in tuple(NamedBy):
        return NamedBy(seen.by)
    return NamedBy.UNIT if seen.expected else NamedBy.DISCOVERED


def _outweighs(by: NamedBy, daemon: Daemon) -> bool:
    """A name of the same weight is no better, but for the configuration's, where the later one is in force."""
    return by is NamedBy.CONFIGURATION or by.precedence > daemon.declared.by.precedence


def _at(node: Node, seen: DaemonFound) -> Daemon | None:
    """The daemon in the same directory of this host."""
    if _is_foreign(seen.daemon, seen.pipe_directory, _teller(seen)):
        return node.daemons.get(seen.daemon)
    directory = _normal(seen.pipe_directory)
    there = [
        daemon
        for daemon in node.daemons.values()
        if _normal(daemon.pipe_directory) == directory
        and not _is_foreign(daemon.name, daemon.pipe_directory, daemon.declared.by)
    ]
    return next((daemon for daemon in there if daemon.name == seen.daemon), there[0] if there else None)


def _normal(path: str) -> str:
    """Two slashes at the beginning are one on Linux, but not to `posixpath`."""
    return posixpath.normpath(path).replace("//", "/", 1)


def _is_foreign(name: str, pipe_directory: str, by: NamedBy) -> bool:
    """Whether its path is a container's: such a one is named by its path and by where that is."""
    return by is NamedBy.DISCOVERED and "@" in name and name != pipe_directory


def _told(daemon: Daemon, seen: DaemonFound, by: NamedBy) -> Daemon:
    """Its name's giver speaks, or a weightier one. What the configuration does not say, it takes back."""
    daemon = replace(
        daemon,
        pipe_directory=seen.pipe_directory,
        log_directory=seen.log_directory,
        declared=replace(
            daemon.declared, expected=daemon.declared.expected if seen.expected is None else seen.expected, by=by
        ),
    )
    if by is not NamedBy.CONFIGURATION:
        named_unit = seen.unit if by is NamedBy.UNIT else daemon.declared.unit
        return _added(
            replace(
                daemon,
                runtime=replace(daemon.runtime, unit=seen.unit or daemon.runtime.unit),
                declared=replace(daemon.declared, unit=named_unit),
            ),
            seen,
        )
    runs_in = None if daemon.runtime.process is None else daemon.runtime.process.unit
    daemon = replace(
        daemon,
        runtime=replace(daemon.runtime, unit=seen.unit or runs_in),
        declared=replace(
            daemon.declared,
            unit=seen.unit,
            clients_limit=seen.clients_limit,
            owner=seen.owner if seen.owner is not None or seen.unit is None else daemon.declared.owner,
        ),
    )
    return _added(daemon, seen)


def _added(daemon: Daemon, seen: DaemonFound) -> Daemon:
    known = log_files.logs_declared(daemon, foreground=seen.foreground, stdout_in_file=seen.stdout_in_file)
    return replace(
        known,
        runtime=replace(
            known.runtime,
            unit=daemon.runtime.unit or seen.unit,
            visible_devices=seen.visible_devices
            if daemon.runtime.visible_devices is None
            else daemon.runtime.visible_devices,
        ),
        declared=replace(
            known.declared,
            unit=daemon.declared.unit or (seen.unit if _teller(seen) is NamedBy.UNIT else None),
            clients_limit=daemon.declared.clients_limit or seen.clients_limit,
            owner=seen.owner if daemon.declared.owner is None else daemon.declared.owner,
        ),
    )


def _withdrawn(node: Node, seen: DaemonFound, by: NamedBy) -> Node:
    """Its declaration ended, so the daemon is only discovered. A unit or a device plugin ends its own one only."""
    daemon = node.daemons.get(seen.daemon)
    if daemon is None or (by is not NamedBy.DISCOVERED and by is not daemon.declared.by):
        return node
    unit = None if daemon.runtime.process is None else daemon.runtime.process.unit
    only_there = replace(
        daemon,
        declared=replace(
            daemon.declared,
            by=NamedBy.DISCOVERED,
            expected=False,
            unit=None,
            clients_limit=None,
            owner=None,
            observed_at=node.at,
        ),
        runtime=replace(daemon.runtime, unit=unit, foreign_owner=None),
    )
    return _with(node, only_there)


def _with(node: Node, daemon: Daemon) -> Node:
    return replace(node, daemons={**node.daemons, daemon.name: daemon})


def heard(daemon: Daemon, at: float, pids: Pids) -> Transition:
    """The daemon speaks in its own namespace's PIDs, or in this one's, where `pids` is None.

    Whom it named before that was known is somebody else here, or nobody: it is to be asked again.
    """
    if daemon.runtime.in_foreign_namespace is (pids is not None):
        return without_events(daemon)
    if pids is None:
        return without_events(replace(daemon, runtime=replace(daemon.runtime, in_foreign_namespace=False)))
    return servers.end_all(
        replace(
            daemon,
            runtime=replace(daemon.runtime, in_foreign_namespace=True),
            connections=replace(daemon.connections, listed_at=None),
        ),
        at,
        DisconnectReason.EXIT,
    )


def only_user(daemon: Daemon) -> int | None:
    """The UID of the one user that it may serve; None where that is anybody, or not known.

    In a PID namespace of its own it can name nobody outside, and a container's users have several UIDs here.
    """
    uid = None if daemon.runtime.process is None or daemon.runtime.in_foreign_namespace else daemon.runtime.process.uid
    return uid or None


def named(daemon: Daemon) -> set[int]:
    """Whoever the daemon says has to do with it: servers, clients, and whom its faults hit."""
    hit = (pid for server in daemon.servers.values() for pid in fault_log.named_clients(server))
    here = (daemon.servers, daemon.clients, daemon.connections.queued)
    gone = (daemon.connections.disconnected_at, daemon.connections.server_exited_at, daemon.connections.disconnects)
    return set().union(hit, *here, *gone)


def of_others(daemon: Daemon, pids: Collection[int], processes: Mapping[int, ProcessReading]) -> frozenset[int]:
    """Those of these who are known to be somebody else's than the one user's that it may serve."""
    uid = only_user(daemon)
    if uid is None:
        return frozenset()
    return frozenset(pid for pid in pids if pid in processes and processes[pid].uid not in (None, uid))


def served(step: Transition, at: float, processes: Mapping[int, ProcessReading]) -> Transition:
    """The daemon without those who are known to be somebody else's: they leave, and are not remembered as its own."""
    daemon = step[0]
    if only_user(daemon) is None:
        return step
    others = sorted(of_others(daemon, named(daemon), processes))
    return chain(step, lambda daemon: for_each(daemon, others, lambda daemon, pid: _disown(daemon, at, pid)))


def _disown(daemon: Daemon, at: float, pid: int) -> Transition:
    daemon, events = chain(
        servers.end(clients.dequeue(daemon, pid), at, pid),
        lambda daemon: clients.disconnect(daemon, at, pid, DisconnectReason.EXIT),
    )
    daemon = replace(
        daemon,
        connections=replace(
            daemon.connections,
            disconnected_at=without(daemon.connections.disconnected_at, pid),
            server_exited_at=without(daemon.connections.server_exited_at, pid),
            disconnects=without(daemon.connections.disconnects, pid),
            recently_disconnected=without(daemon.connections.recently_disconnected, pid),
        ),
        servers={each: fault_log.without_client(server, pid) for each, server in daemon.servers.items()},
    )
    return daemon, events
