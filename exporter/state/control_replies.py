"""What a control daemon's reply says about it, its servers and clients."""

from exporter.model.daemon import Daemon
from exporter.model.observation import ControlReply
from exporter.model.values import replace
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
from exporter.state import clients, lifecycle, limits, servers
from exporter.state.transition import Transition, chain, outer, without_events

CONTROL = "control"
"""The source that asks the daemons has this name."""

JUST_BEFORE_SECONDS = 1.0
"""One command costs 3 ms at most (measured, R580), and those of one look follow each other."""

_ABOUT_A_SERVER = (SERVER_STATUS, LIST_CLIENTS, THREADS, PINNED_MEMORY)


def reply_read(daemon: Daemon, reply: ControlReply) -> Transition:
    """A command was given to the daemon, by the exporter or, in a recording, by anybody."""
    before = daemon
    daemon = replace(
        daemon, commands=replace(daemon.commands, asked_at={**daemon.commands.asked_at, reply.command: reply.at})
    )
    verb = reply.command.partition(" ")[0]
    if verb == VERSION_FLAG:
        return without_events(
            replace(
                daemon,
                runtime=replace(
                    daemon.runtime, version=control_reply.parse_version(reply.stdout) or daemon.runtime.version
                ),
            )
        )
    match control_reply.query_outcome(reply.exit_code, reply.stderr):
        case QueryOutcome.ANSWERED if verb == QUIT:
            return without_events(daemon if reply.stdout.strip() else lifecycle.quit_told(daemon, reply.at))
        case QueryOutcome.ANSWERED if _overtaken(daemon, reply):
            return without_events(daemon)
        case QueryOutcome.ANSWERED:
            return chain(lifecycle.answered(daemon, reply.at), lambda daemon: _answer_read(daemon, reply))
        case QueryOutcome.NO_DAEMON:
            return lifecycle.not_found(daemon, reply.at)
        case QueryOutcome.REFUSED:
            return lifecycle.refused(limits.unanswered(daemon, reply.command), reply.at)
        case QueryOutcome.TIMED_OUT:
            daemon = replace(daemon, commands=replace(daemon.commands, waits_for_server=_waits_for(before, reply)))
            return without_events(
                lifecycle.unanswered(limits.unanswered(daemon, reply.command), reply.at, reply.asked_at)
            )
        case QueryOutcome.UNUSABLE:
            return lifecycle.unaskable(daemon, reply.at)


def _waits_for(daemon: Daemon, reply: ControlReply) -> int | None:
    """Return the server that a daemon waits for which gave no answer; None if that is not sure.

    The first command that gets no answer asks this server, and the daemon had answered another one just before: what
    happened in between is this command. The log could say the same of any other command, and anyone can write there.
    """
    if daemon.commands.unanswered_since is not None:
        return daemon.commands.waits_for_server
    asked = servers_queried(reply.command, daemon.servers)
    alive = daemon.answers and reply.asked_at - last_answer_at(daemon) <= JUST_BEFORE_SECONDS
    return next(iter(asked)) if alive and len(asked) == 1 else None


def last_answer_at(daemon: Daemon) -> float:
    """When the daemon last answered, whatever it was asked."""
    return max(
        (at for command, at in daemon.commands.asked_at.items() if command != VERSION_FLAG), default=float("-inf")
    )


def _overtaken(daemon: Daemon, reply: ControlReply) -> bool:
    """Whether the daemon was seen to go after it had been asked: an answer on its way does not bring it back."""
    return daemon.ended and daemon.lifecycle.state_since is not None and reply.asked_at < daemon.lifecycle.state_since


def _answer_read(daemon: Daemon, reply: ControlReply) -> Transition:
    match reply.command.split():
        case [verb, server, *_] if verb in _ABOUT_A_SERVER and _denied(reply, server):
            return servers.end(daemon, reply.at, int(server))
        case [verb] if verb == LIST_SERVERS:
            return _servers_listed(daemon, reply)
        case [verb, server] if verb == SERVER_STATUS and _is_number(server):
            state = control_reply.parse_server_state(reply.stdout)
            return (
                without_events(daemon)
                if state is None
                else servers.status_told(daemon, reply.at, reply.asked_at, int(server), state)
            )
        case [verb, server] if verb == LIST_CLIENTS and _is_number(server):
            return _clients_listed(daemon, reply, int(server))
        case _:
            return without_events(limits.answer_read(daemon, reply))


def _denied(reply: ControlReply, server: str) -> bool:
    """Whether the daemon says that it does not have the server that it was asked about."""
    missing = control_reply.parse_missing_server(reply.stdout)
    return missing is not None and server == str(outer(missing, reply.pids))


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _pids(reply: ControlReply) -> tuple[int, ...] | None:
    listed = control_reply.parse_pid_list(reply.stdout)
    return None if listed is None else tuple(outer(pid, reply.pids) for pid in listed)


def _servers_listed(daemon: Daemon, reply: ControlReply) -> Transition:
    pids = _pids(reply)
    return (
        without_events(daemon) if pids is None or 0 in pids else servers.listed(daemon, reply.at, reply.asked_at, pids)
    )


def _clients_listed(daemon: Daemon, reply: ControlReply, server: int) -> Transition:
    pids = _pids(reply)
    if pids is None or server not in daemon.servers:
        return without_events(daemon)
    named = tuple(pid for pid in pids if pid != 0)
    whole = named == pids
    return chain(
        clients.listed(
            servers.hidden_pids_listed(daemon, server, not whole), reply.at, reply.asked_at, server, named, whole=whole
        ),
        lambda daemon: servers.clients_listed(daemon, reply.at, server, pids),
    )
