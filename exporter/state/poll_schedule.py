"""The poll schedule: which control queries and readings are due."""

from collections.abc import Iterable
from itertools import chain, islice

from exporter.model.daemon import ClaimKind, Daemon, DaemonState
from exporter.model.node import Node
from exporter.model.observation import DaemonName, Wanted
from exporter.model.server import Server, ServerState
from exporter.model.settings import PollIntervals
from exporter.parse.control_reply import LIST_CLIENTS, LIST_SERVERS, SERVER_STATUS, VERSION_FLAG
from exporter.state import discovery, gpus, limits, log_files, process_states
from exporter.state.control_replies import last_answer_at
from exporter.state.gpus import NVML
from exporter.state.process_states import is_held, is_silent
from exporter.state.staleness import (
    claimed_since,
    clients_doubted_since,
    gpu_doubted_since,
    latest,
    servers_doubted_since,
    struck_since,
)
from exporter.state.transition import Question, overdue, pressing

MOST_WATCHED = 4096
"""How many processes are watched in all."""

MOST_STATES = 1024
"""Of how many of them it is told how they stand with the scheduler."""

BACK_SECONDS = 60.0
"""How long the unit of a daemon that has come back is still looked at."""

LEAVING_SECONDS = 5.0
"""How long a client that has left is watched for the end of its process."""


def commands(node: Node, name: str, intervals: PollIntervals) -> tuple[str, ...]:
    """The commands to give one daemon now, most telling first.

    Any answer is a sign of life. So where nothing is overdue, one question in `liveness` seconds is enough, and those
    that will be due soon take the place of the one that asks for nothing but life.
    """
    daemon = node.daemons[name]
    if not daemon.supported or daemon.runtime.foreign_owner is not None:
        return ()
    suspended_at = _suspended_at(node, daemon)
    doubted = daemon.commands.unanswered_since is not None or daemon.commands.refused_since is not None
    if not daemon.answers or doubted or suspended_at is not None:
        asked = daemon.commands.asked_at.get(LIST_SERVERS, float("-inf"))
        period = (
            intervals.stale
            if daemon.answers and suspended_at is not None
            else _probe_period(node.at, daemon, intervals)
        )
        due = node.at - asked >= period or (suspended_at is not None and asked < suspended_at)
        return (LIST_SERVERS,) if due else ()
    missing_since = log_files.in_doubt_since(daemon)
    if missing_since is not None and daemon.commands.asked_at.get(LIST_SERVERS, 0.0) < missing_since:
        return (LIST_SERVERS,)
    questions = tuple(_questions(node, daemon, intervals))
    due_now = overdue(questions, node.at)
    if due_now or node.at - last_answer_at(daemon) < intervals.liveness:
        return due_now
    return (pressing(questions, node.at, intervals.liveness) or LIST_SERVERS,)


def _probe_period(at: float, daemon: Daemon, intervals: PollIntervals) -> float:
    """A daemon that begins is asked at once, one that does not answer soon, and one that has gone at ease.

    Its return is told by its log and its pid file; where neither can be read, by this.
    """
    if daemon.ended:
        return intervals.liveness / 3
    begins = daemon.state is DaemonState.STARTING and intervals.is_recent(at, daemon.lifecycle.state_since)
    if daemon.discovered and daemon.runtime.process is not None and daemon.runtime.process.uid != 0:
        # Any user can start a program that never answers, so asking it costs no more than asking a daemon that is well.
        silent_since = daemon.commands.unanswered_since or daemon.commands.refused_since or at
        return intervals.stale if begins else min(max(intervals.fault, (at - silent_since) / 2), 2 * intervals.liveness)
    return intervals.starting if begins else intervals.fault


def _suspended_at(node: Node, daemon: Daemon) -> float | None:
    """Since when the daemon's own process has been stopped: it is asked at once, and again soon, to make sure."""
    state = process_states.of_daemon(node, daemon)
    return state.at if state is not None and process_states.is_suspended(state) else None


def _questions(node: Node, daemon: Daemon, intervals: PollIntervals) -> Iterable[Question]:
    if daemon.runtime.version is None and VERSION_FLAG not in daemon.commands.asked_at:
        yield Question(command=VERSION_FLAG, known_at=None, period=intervals.lists)
    yield _which_servers(node, daemon, intervals)
    for command, known_at in gpus.questions(node, daemon) if _all_askable(node, daemon) else ():
        yield Question(command=command, known_at=known_at, period=intervals.limits)
    for server in daemon.servers.values():
        if process_states.askable(node, server.pid):
            yield _its_state(node, daemon, server, intervals)
            yield _its_clients(node, daemon, server, intervals)
    doubted = intervals.changed if limits.wanted(node, daemon) else intervals.stale
    for command, known_at in limits.questions(node, daemon):
        period = doubted if command in daemon.default_limits.stale else intervals.limits
        yield Question(command=command, known_at=known_at, period=period)


def _all_askable(node: Node, daemon: Daemon) -> bool:
    """Whether a question that the daemon passes on to each of its servers would hang at none of them."""
    return all(process_states.askable(node, pid) for pid in daemon.servers)


def _which_servers(node: Node, daemon: Daemon, intervals: PollIntervals) -> Question:
    """Where the log does not tell of a server's start, this alone does."""
    period = intervals.lists if daemon.log_followed else 2 * intervals.liveness
    if intervals.is_recent(node.at, latest(servers_doubted_since(node, daemon))):
        period = intervals.stale
    return Question(command=LIST_SERVERS, known_at=daemon.commands.asked_at.get(LIST_SERVERS), period=period)


def _its_state(node: Node, daemon: Daemon, server: Server, intervals: PollIntervals) -> Question:
    period = intervals.fault if server.state is ServerState.FAULT else intervals.lists
    suspected_at = server.started_at if server.state is None else server.fault_suspected_at
    claimed = claimed_since(daemon, ClaimKind.FAULT, ClaimKind.RECOVERY)
    if intervals.is_recent(node.at, latest((suspected_at, *claimed, *struck_since(node, daemon)))):
        period = intervals.stale
    return _about(daemon, server, SERVER_STATUS, period)


def _its_clients(node: Node, daemon: Daemon, server: Server, intervals: PollIntervals) -> Question:
    doubted = intervals.is_recent(node.at, latest(clients_doubted_since(node, daemon, server)))
    # Of a fault, the log alone has told: whom it has to do with is to be known by the daemon's word too.
    told = server.state is not ServerState.FAULT or _is_asked_since(daemon, server)
    return _about(daemon, server, LIST_CLIENTS, intervals.stale if doubted or not told else intervals.lists)


def _is_asked_since(daemon: Daemon, server: Server) -> bool:
    """Whether it was asked for the server's clients since that is as it is."""
    return daemon.commands.asked_at.get(f"{LIST_CLIENTS} {server.pid}", 0.0) >= (server.state_since or 0.0)


def _about(daemon: Daemon, server: Server, verb: str, period: float) -> Question:
    """One whose start the log told needs no question yet: what came after was told too."""
    command = f"{verb} {server.pid}"
    began = server.started_at if server.uid is not None else None
    return Question(command=command, known_at=daemon.commands.asked_at.get(command, began), period=period)


def nvml_due(node: Node, intervals: PollIntervals) -> bool:
    """Whether to read NVML now: sooner than usual where clients came or went since, or a process may bypass MPS."""
    source = node.sources.get(NVML)
    doubt = latest(since for gpu in node.gpus.values() for since in gpu_doubted_since(node, gpu))
    return source is None or node.at - source.last.at >= (
        intervals.stale if intervals.is_recent(node.at, doubt) else intervals.nvml
    )


def last_words_awaited(node: Node) -> frozenset[DaemonName]:
    """Return the daemons that have gone, and whose logs may yet tell that an operator ended them."""
    return frozenset(name for name, daemon in node.daemons.items() if daemon.lifecycle.unexplained_end_at is not None)


def watched(node: Node) -> frozenset[int]:
    """The processes whose facts are wanted, and whose exit is news: daemons, servers, strangers, and clients.

    At most `MOST_WATCHED`, in this order; of clients those first whose daemon has the fewest, so that one which lists
    half the node's processes does so at its own expense. Last come those who have just left: their process ends after
    their last context, and how it does tells who was killed. Of a daemon that may serve but one user, whoever it
    names may be somebody else's.
    """
    daemons = sorted(node.daemons.values(), key=lambda daemon: len(daemon.clients) + len(daemon.connections.queued))
    pids: Iterable[int] = chain(
        (
            each.runtime.process.pid
            for each in daemons
            if each.runtime.process is not None and each.runtime.process.pid is not None
        ),
        *(each.servers for each in daemons),
        *(gpu.bypassing_processes for gpu in node.gpus.values()),
        *(each.clients for each in daemons),
        *(each.connections.queued for each in daemons),
        *(_just_left(each, node.at) for each in daemons),
        *(sorted(discovery.named(each)) for each in daemons if discovery.only_user(each) is not None),
    )
    return frozenset(islice(dict.fromkeys(pid for pid in pids if pid > 0), MOST_WATCHED))


def states_wanted(node: Node) -> frozenset[int]:
    """The processes of which it matters how they stand with the scheduler: control daemons, and their servers."""
    daemons = sorted((each for each in node.daemons.values() if each.supported), key=lambda daemon: len(daemon.servers))
    pids: Iterable[int] = chain(
        (
            each.runtime.process.pid
            for each in daemons
            if each.runtime.process is not None and each.runtime.process.pid is not None
        ),
        *(each.servers for each in daemons),
    )
    return frozenset(islice(dict.fromkeys(pid for pid in pids if pid > 0), MOST_STATES))


def witnesses_wanted(node: Node) -> Wanted:
    """What to look for, of daemons: who keeps a session where others are refused, who listens where nobody answers."""
    daemons = [each for each in node.daemons.values() if each.supported]
    return Wanted(
        states=states_wanted(node),
        holders=frozenset(each.name for each in daemons if is_held(each)),
        sockets=frozenset(each.name for each in daemons if is_silent(each)),
    )


def units_wanted(node: Node) -> frozenset[str]:
    """The units of expected daemons that do not answer, or have come back lately; and each, once, at first."""
    return frozenset(
        daemon.declared.unit
        for daemon in node.daemons.values()
        if daemon.declared.expected
        and daemon.declared.unit is not None
        and (daemon.declared.unit not in node.units or not daemon.answers or _is_back(node.at, daemon))
    )


def units_pressing(node: Node) -> frozenset[str]:
    """The units that may tell, of a daemon that has just gone, whether it was stopped or lost."""
    gone = (
        daemon
        for daemon in node.daemons.values()
        if daemon.lifecycle.unexplained_end_at is not None and daemon.declared.expected
    )
    return frozenset(daemon.declared.unit for daemon in gone if daemon.declared.unit is not None)


def _is_back(at: float, daemon: Daemon) -> bool:
    return daemon.state is DaemonState.UP and at - (daemon.lifecycle.state_since or 0.0) <= BACK_SECONDS


def _just_left(daemon: Daemon, at: float) -> Iterable[int]:
    return (pid for pid, left_at in daemon.connections.disconnected_at.items() if at - left_at <= LEAVING_SECONDS)
