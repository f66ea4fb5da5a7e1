"""Replies of a control daemon to commands."""

from collections.abc import Collection

from exporter.model.daemon import Daemon, with_commands, with_lifecycle, with_runtime
from exporter.model.observation import ControlReply
from exporter.parse import control_reply
from exporter.parse.control_reply import (
    LIST_CLIENTS,
    LIST_SERVERS,
    PINNED_MEMORY,
    QUIT,
    SERVER_STATUS,
    THREADS,
    VERSION_FLAG,
    QueryOutcome,
    servers_queried,
)
from exporter.parse.protocol3 import is_given_as_arguments
from exporter.state import clients, lifecycle, limits, protocol3_replies, servers
from exporter.state.transition import Transition, chain, translate_pid

CONTROL = "control"
"""Name of the collector that queries the daemons."""

JUST_BEFORE_SECONDS = 1.0
"""A daemon that answered this recently was responsive. One command takes 3 ms at most (measured, R580)."""

_ABOUT_A_SERVER = (SERVER_STATUS, LIST_CLIENTS, THREADS, PINNED_MEMORY)


def reply_read(daemon: Daemon, reply: ControlReply, mps_pids: Collection[int] | None = None) -> Transition:
    """Return the daemon after a command of the exporter or, in a recording, of any other program.

    `mps_pids` are the MPS clients that NVML shows; None if that is unknown.
    """
    before = daemon
    daemon = with_commands(daemon, asked_at={**daemon.commands.asked_at, reply.command: reply.at})
    verb = reply.command.partition(" ")[0]
    if verb == VERSION_FLAG:
        return with_runtime(daemon, version=control_reply.parse_version(reply.stdout) or daemon.runtime.version), ()
    match control_reply.query_outcome(reply):
        case QueryOutcome.ANSWERED if verb == QUIT:
            return daemon if reply.stdout.strip() else with_lifecycle(daemon, quit_at=reply.at), ()
        case QueryOutcome.ANSWERED if daemon.ended and reply.asked_at < (daemon.lifecycle.state_since or float("-inf")):
            # An answer to a query from before the end does not restore the daemon.
            return daemon, ()
        case QueryOutcome.ANSWERED:
            return chain(lifecycle.answered(daemon, reply.at), lambda daemon: _answer_read(daemon, reply, mps_pids))
        case QueryOutcome.NO_DAEMON:
            return lifecycle.not_found(daemon, reply.at)
        case QueryOutcome.REFUSED:
            return lifecycle.refused(limits.mark_stale(daemon, reply.command), reply.at)
        case QueryOutcome.TIMED_OUT:
            daemon = limits.mark_stale(with_commands(daemon, waits_for_server=_waits_for(before, reply)), reply.command)
            return lifecycle.unanswered(daemon, reply.at, reply.asked_at), ()
        case QueryOutcome.UNUSABLE:
            return lifecycle.control_unusable(daemon, reply.at)


def _waits_for(daemon: Daemon, reply: ControlReply) -> int | None:
    """Return the server for which a daemon waits that does not answer; None if it is uncertain.

    The first unanswered command queries this server, and the daemon answered another command just before. The log is no
    source, because any user can write a command into it.
    """
    if daemon.commands.unanswered_since is not None:
        return daemon.commands.waits_for_server
    if not daemon.answers or reply.asked_at - last_answer_at(daemon) > JUST_BEFORE_SECONDS:
        return None
    queried = servers_queried(reply.command, daemon.servers)
    return next(iter(queried)) if len(queried) == 1 else None


def last_answer_at(daemon: Daemon) -> float:
    """Return the time of the last reply of the daemon."""
    return max(
        (at for command, at in daemon.commands.asked_at.items() if command != VERSION_FLAG), default=float("-inf")
    )


def _answer_read(daemon: Daemon, reply: ControlReply, mps_pids: Collection[int] | None) -> Transition:
    if is_given_as_arguments(reply.command):
        return protocol3_replies.answer_read(daemon, reply, mps_pids)
    match reply.command.split():
        case [verb, server, *_] if verb in _ABOUT_A_SERVER and _is_missing(reply, server):
            return servers.end(daemon, reply.at, int(server))
        case [verb] if verb == LIST_SERVERS:
            pids = _pids(reply)
            return (daemon, ()) if pids is None or 0 in pids else servers.listed(daemon, reply.at, reply.asked_at, pids)
        case [verb, server] if verb == SERVER_STATUS and server.removeprefix("-").isdecimal():
            state = control_reply.parse_server_state(reply.stdout)
            if state is None:
                return daemon, ()
            return servers.status_read(daemon, reply.at, reply.asked_at, int(server), state)
        case [verb, server] if verb == LIST_CLIENTS and server.removeprefix("-").isdecimal():
            return _clients_listed(daemon, reply, int(server))
        case _:
            return limits.apply_reply(daemon, reply), ()


def _is_missing(reply: ControlReply, server: str) -> bool:
    """Return whether the daemon reports that it does not have the server of the query."""
    missing = control_reply.parse_missing_server(reply.stdout)
    return missing is not None and server == str(translate_pid(missing, reply.pids))


def _pids(reply: ControlReply) -> tuple[int, ...] | None:
    listed = control_reply.parse_pid_list(reply.stdout)
    return None if listed is None else tuple(translate_pid(pid, reply.pids) for pid in listed)


def _clients_listed(daemon: Daemon, reply: ControlReply, server: int) -> Transition:
    pids = _pids(reply)
    if pids is None or server not in daemon.servers:
        return daemon, ()
    visible = tuple(pid for pid in pids if pid != 0)
    whole = visible == pids
    daemon = servers.with_hidden_pids(daemon, server, not whole)
    step = clients.apply_list(daemon, reply.at, reply.asked_at, server, visible, complete=whole)
    return chain(step, lambda daemon: servers.confirm_fault(daemon, reply.at, server)) if pids else step
