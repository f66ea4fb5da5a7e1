"""Who a daemon is: one pipe directory is one daemon, under the name that the weightiest word gives it."""

import posixpath

from exporter.core import log_files
from exporter.model.daemon import Daemon, DaemonRuntime, Declaration
from exporter.model.named_by import NamedBy
from exporter.model.node import Node
from exporter.model.observation import DaemonFound
from exporter.model.replace import replace
from exporter.model.watch import begun


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
        known = begun(known, node.watches.get(seen.daemon))
    elif there is not None and there.name != seen.daemon and _outweighs(by, there):
        node, known = _without(node, there, seen.daemon), replace(there, name=seen.daemon)
    daemon = _told(known, seen, by) if by.weight >= known.declared.by.weight else _added(known, seen)
    return _with(node, replace(daemon, declared=replace(daemon.declared, heard_at=node.at)))


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
            heard_at=daemon.declared.heard_at,
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
        id_: replace(each, daemon=name) if each.daemon == daemon.name and not each.told else each
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
    return by is NamedBy.CONFIGURATION or by.weight > daemon.declared.by.weight


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
    return replace(
        known := log_files.told(daemon, foreground=seen.foreground, stdout_kept=seen.stdout_kept),
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
            heard_at=node.at,
        ),
        runtime=replace(daemon.runtime, unit=unit, foreign_owner=None),
    )
    return _with(node, only_there)


def _with(node: Node, daemon: Daemon) -> Node:
    return replace(node, daemons={**node.daemons, daemon.name: daemon})
