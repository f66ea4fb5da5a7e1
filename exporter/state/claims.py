"""Claims: what a log line says, until a source that no tenant can write to confirms or refutes it."""

from collections.abc import Callable, Mapping
from functools import partial

from exporter.incidents.fault_log import (
    UNCONFIRMED_SECONDS,
    confirm_fault,
    confirm_recovery,
    fault_verdict,
    recovery_verdict,
    shown_at,
)
from exporter.model.daemon import Claim, ClaimKind, Daemon, Verdict, key
from exporter.model.event import Event, EventName
from exporter.model.node import Node
from exporter.model.server import Client, DisconnectReason, Server
from exporter.model.values import replace
from exporter.state import clients, gpus, process_states, servers
from exporter.state.clients import FRESH_SECONDS
from exporter.state.transition import Transition, chain, increment, without, without_events

REFUTED_SECONDS = 2.0
"""A reading this much later than the claim, which still shows what the log called gone, refutes it."""

YOUNG_SECONDS = 5.0
"""How long a client that only the log shows, with a process that lives, is kept though the log says that it has left.

NVML is read within 2 s of a connection or a departure that the log claims.
"""

OPEN_SECONDS = 30.0
"""A connection or a start that no source could confirm by then remains as it is: no source can tell."""

MOST_OF_A_KIND = 256
"""How many claims of one kind are kept for one daemon; the oldest are dropped."""

REPORTED_SECONDS = 60.0
"""How often a contradiction of one daemon's log is an event; all of them are counted."""


def made(daemon: Daemon, at: float, kind: ClaimKind, pid: int) -> Daemon:
    """Return the daemon with a claim of its log; the first of several equal claims counts."""
    claim = Claim(kind=kind, pid=pid, at=at)
    if claim.key in daemon.log.claims:
        return daemon
    same = [name for name, each in daemon.log.claims.items() if each.kind is kind]
    kept = without(daemon.log.claims, *same[: max(0, len(same) - MOST_OF_A_KIND + 1)])
    return replace(daemon, log=replace(daemon.log, claims={**kept, claim.key: claim}))


def dropped(daemon: Daemon, kind: ClaimKind, pid: int) -> Daemon:
    """Return the daemon without this claim."""
    if not daemon.claimed(kind, pid):
        return daemon
    return replace(daemon, log=replace(daemon.log, claims=without(daemon.log.claims, key(kind, pid))))


def are_many(daemon: Daemon, kind: ClaimKind) -> bool:
    """Return whether so many claims of a kind are open that a further one is left to the other sources."""
    return sum(each.kind is kind for each in daemon.log.claims.values()) >= MOST_OF_A_KIND


def resolve_pending(node: Node, daemon: Daemon, *, before: Daemon | None = None, force: bool = False) -> Transition:
    """Decide the claims that can be decided; with `before`, only those that were made since then.

    With `force`, as at the end of a recording, an end or a crash loop that no source contradicts is accepted.
    """
    known: Mapping[str, Claim] = {} if before is None else before.log.claims
    step: Transition = without_events(daemon)
    # More lines of a fault's block may make it plausible.
    due = [each for name, each in daemon.log.claims.items() if name not in known or each.kind is ClaimKind.FAULT]
    for claim in due:
        step = chain(step, partial(_decided, node, claim=claim, force=force))
    after = step[0]
    if before is not None and (
        after.clients is not before.clients or after.connections.failed_starts is not before.connections.failed_starts
    ):
        return chain(step, partial(resolve_pending, node))
    return step


def _decided(node: Node, daemon: Daemon, *, claim: Claim, force: bool) -> Transition:
    judge, apply = _RULES[claim.kind]
    verdict = judge(node, daemon, claim)
    if verdict is Verdict.OPEN and force and claim.kind in _ACCEPTED_LAST:
        verdict = Verdict.CONFIRMED
    if verdict is Verdict.OPEN:
        return without_events(daemon)
    daemon = dropped(daemon, claim.kind, claim.pid)
    match verdict:
        case Verdict.CONFIRMED:
            return apply(node, daemon, claim)
        case Verdict.REFUTED:
            return contradicted(daemon, node.at, claim)
        case _:
            return without_events(daemon)


def contradicted(daemon: Daemon, at: float, claim: Claim) -> Transition:
    """Count a claim that another source refutes; an event, unless there was one a moment ago."""
    totals = replace(daemon.totals, log_contradictions=increment(daemon.totals.log_contradictions, claim.kind))
    last = daemon.log.contradicted_at
    known = _without_fault(daemon, claim)
    daemon = replace(known, totals=totals, log=replace(known.log, contradicted_at=at))
    if last is not None and at - last < REPORTED_SECONDS:
        return without_events(daemon)
    name = EventName.LOG_CONTRADICTED
    return daemon, (Event(at=at, event=name, daemon=daemon.name, pid=claim.pid or None, reason=claim.kind),)


def _without_fault(daemon: Daemon, claim: Claim) -> Daemon:
    """A block that no other source confirms is not kept: its names must not reach a later fault."""
    server = daemon.servers.get(claim.pid)
    if claim.kind is not ClaimKind.FAULT or server is None:
        return daemon
    return servers.with_server(daemon, replace(server, fault_block=None, fatal_error=None, devices_to_reset=None))


# -- the daemon ----------------------------------------------------------------------------------------------------


def _daemon_exit(node: Node, daemon: Daemon, claim: Claim) -> Verdict:
    """Its process, or a command that finds no daemon, ends it; an answer that was asked for later refutes it."""
    if daemon.ended:
        return Verdict.SETTLED
    answered_at = max(daemon.commands.asked_at.values(), default=0.0)
    return Verdict.REFUTED if daemon.answers and answered_at - claim.at > REFUTED_SECONDS else Verdict.OPEN


def _nothing(_node: Node, daemon: Daemon, _claim: Claim) -> Transition:
    return without_events(daemon)


# -- servers -------------------------------------------------------------------------------------------------------


def _server_start(node: Node, daemon: Daemon, claim: Claim) -> Verdict:
    server = daemon.servers.get(claim.pid)
    if server is None:
        ended = claim.pid in node.deaths or daemon.ended
        return Verdict.SETTLED if ended else _withdrawn(node, daemon.connections.server_exited_at.get(claim.pid))
    if server.listed or node.at - claim.at > OPEN_SECONDS:
        return Verdict.SETTLED
    return Verdict.OPEN


def _withdrawn(node: Node, since: float | None) -> Verdict:
    """The daemon does not list what the log showed. The end of its process may be read a moment later than the list."""
    return Verdict.OPEN if since is not None and node.at - since < REFUTED_SECONDS else Verdict.REFUTED


def _server_exit(node: Node, daemon: Daemon, claim: Claim) -> Verdict:
    server = daemon.servers.get(claim.pid)
    if server is None:
        return Verdict.SETTLED
    if server.missing_since is not None:
        return Verdict.CONFIRMED
    if (daemon.connections.listed_at or 0.0) > claim.at + FRESH_SECONDS:
        return Verdict.REFUTED
    return Verdict.OPEN if server.listed or claim.pid in node.processes else Verdict.CONFIRMED


def _server_ended(_node: Node, daemon: Daemon, claim: Claim) -> Transition:
    return servers.end(dropped(daemon, ClaimKind.SERVER_START, claim.pid), claim.at, claim.pid)


def _crash_loop(node: Node, daemon: Daemon, claim: Claim) -> Verdict:
    """The daemon waits for its servers, so the kernel adds their page faults to those of its children (R580).

    If the process cannot be seen, what the log says is accepted: a loop is a hint, and leads to no action. If the
    process was first seen after the loop began, it shows nothing. A loop that goes on makes another claim.
    """
    if daemon.ended or not daemon.connections.failed_starts.started_at:
        return Verdict.SETTLED
    state = process_states.state_of_daemon(node, daemon)
    if state is None or state.children_page_faults is None:
        # A recording without reports of its collectors has no process states at all.
        may_come = bool(node.sources) and node.at - claim.at < REFUTED_SECONDS
        return Verdict.OPEN if may_come else Verdict.CONFIRMED
    if state.child_ended_at is not None and state.child_ended_at >= daemon.connections.failed_starts.started_at[0]:
        return Verdict.CONFIRMED
    if node.at - claim.at <= UNCONFIRMED_SECONDS:
        return Verdict.OPEN
    return Verdict.SETTLED if state.at > daemon.connections.failed_starts.started_at[0] else Verdict.REFUTED


def _looping(_node: Node, daemon: Daemon, _claim: Claim) -> Transition:
    return servers.report_crash_loop(daemon)


# -- clients -------------------------------------------------------------------------------------------------------


def _client_connect(node: Node, daemon: Daemon, claim: Claim) -> Verdict:
    client = daemon.clients.get(claim.pid)
    if client is None:
        was = daemon.connections.recently_disconnected.get(claim.pid)
        with_server = was is not None and was.server not in daemon.servers
        left = claim.pid in node.deaths or claim.pid in daemon.connections.disconnects or daemon.ended or with_server
        return Verdict.SETTLED if left else _withdrawn(node, daemon.connections.disconnected_at.get(claim.pid))
    confirmed = client.listed_at is not None or shown_at(node, claim.pid) is not None
    return Verdict.SETTLED if confirmed or node.at - claim.at > OPEN_SECONDS else Verdict.OPEN


def _client_disconnect(node: Node, daemon: Daemon, claim: Claim) -> Verdict:
    """The end of its process is seen elsewhere; here, NVML or the daemon no longer shows a client, or still does."""
    client = daemon.clients.get(claim.pid)
    if client is None:
        return Verdict.SETTLED
    last_shown = shown_at(node, claim.pid)
    if last_shown is not None:
        return Verdict.REFUTED if last_shown > claim.at + REFUTED_SECONDS else Verdict.OPEN
    if _read_since(node, daemon, claim.at):
        return Verdict.CONFIRMED
    if client.listed_at is not None and client.listed_at > claim.at + FRESH_SECONDS:
        return Verdict.REFUTED
    if any(claim.pid in gpu.mps_left for gpu in node.gpus.values()):
        return Verdict.CONFIRMED
    lives = claim.pid in node.processes and node.at - claim.at < YOUNG_SECONDS
    return Verdict.OPEN if client.listed_at is not None or lives else Verdict.CONFIRMED


def _client_left(_node: Node, daemon: Daemon, claim: Claim) -> Transition:
    return clients.disconnect(daemon, claim.at, claim.pid, DisconnectReason.EXIT)


def _read_since(node: Node, daemon: Daemon, at: float) -> bool:
    """Return whether the lists of all GPUs of the daemon were read since then. Under MIG they do not tell."""
    readings = [gpu.reading for gpu in node.gpus.values() if gpus.served(daemon, gpu.reading)]
    return bool(readings) and all(
        each.at > at and each.mps_processes is not None and not each.mig_mode for each in readings
    )


def _contained_fault(node: Node, daemon: Daemon, claim: Claim) -> Verdict:
    """A client that is still there has not left with an error of its own."""
    if claim.pid not in daemon.clients:
        return Verdict.CONFIRMED
    return Verdict.REFUTED if node.at - claim.at > UNCONFIRMED_SECONDS else Verdict.OPEN


def _fault_contained(_node: Node, daemon: Daemon, claim: Claim) -> Transition:
    client = daemon.connections.recently_disconnected.get(claim.pid)
    if client is not None and _is_hit(daemon.servers.get(client.server), client):
        return without_events(daemon)
    server = None if client is None else client.server
    totals = replace(daemon.totals, faults_contained=daemon.totals.faults_contained + 1)
    name = EventName.CLIENT_FAULT_CONTAINED
    event = Event(at=claim.at, event=name, daemon=daemon.name, server=server, pid=claim.pid)
    return replace(daemon, totals=totals), (event,)


def _is_hit(server: Server | None, client: Client) -> bool:
    block = None if server is None else server.fault_block
    if block is None or not block.confirmed or client.connected_at > block.at:
        return False
    return client.pid in block.clients


_ACCEPTED_LAST = frozenset(
    {
        ClaimKind.SERVER_EXIT,
        ClaimKind.CLIENT_DISCONNECT,
        ClaimKind.RECOVERY,
        ClaimKind.CONTAINED_FAULT,
        ClaimKind.CRASH_LOOP,
    }
)

_RULES: Mapping[
    ClaimKind, tuple[Callable[[Node, Daemon, Claim], Verdict], Callable[[Node, Daemon, Claim], Transition]]
] = {
    ClaimKind.DAEMON_EXIT: (_daemon_exit, _nothing),
    ClaimKind.SERVER_START: (_server_start, _nothing),
    ClaimKind.SERVER_EXIT: (_server_exit, _server_ended),
    ClaimKind.CRASH_LOOP: (_crash_loop, _looping),
    ClaimKind.CLIENT_CONNECT: (_client_connect, _nothing),
    ClaimKind.CLIENT_DISCONNECT: (_client_disconnect, _client_left),
    ClaimKind.CONTAINED_FAULT: (_contained_fault, _fault_contained),
    ClaimKind.FAULT: (fault_verdict, confirm_fault),
    ClaimKind.RECOVERY: (recovery_verdict, confirm_recovery),
}
