"""Claims: statements of log lines, until a source that no workload can write confirms or refutes them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from exporter.model.daemon import Claim, ClaimKind, Daemon, Verdict, key, with_commands, with_log, with_totals
from exporter.model.event import EventName, Step
from exporter.model.incident import Incident, IncidentXid
from exporter.model.node import Node
from exporter.model.server import DisconnectReason, FaultLogBlock, Server, ServerState
from exporter.model.values import increment, replace, without
from exporter.parse.log_line import LogEntry
from exporter.state import devices, processes, servers, xids
from exporter.state.processes import shown_at
from exporter.state.servers import FRESH_SECONDS, last_known

REFUTED_SECONDS = 2.0
"""A reading this much later than the claim, which still shows what the log reports as ended, refutes it."""

YOUNG_SECONDS = 5.0
"""How long a client that only the log shows stays although the log reports its disconnect, if its process runs.

NVML is read within 2 s of a connection or a disconnect that the log claims.
"""

OPEN_SECONDS = 30.0
"""A connection or a start that no source has confirmed after this time is accepted: no source can show it."""

MAX_OF_A_KIND = 256  # How many claims of one kind are remembered for one daemon; the oldest are removed.

REPORTED_SECONDS = 60.0
"""The least time between two events about contradictions of one daemon's log. All contradictions are counted."""

UNCONFIRMED_SECONDS = 10.0
"""A claim of a fault is refuted if no source confirms it in this time. All do so within 0.2 s (measured, R580)."""

NAMED_SECONDS = 0.1
"""How long a block may take to name the affected clients: a server does so within 1 ms (R580, 16 faults)."""

ONE_FAULT_SECONDS = 0.2
"""Xids of one fault follow each other within this time. A server recovers from a fault, and its next clients connect,
no sooner (measured, R580)."""

XID_EARLY_SECONDS, XID_LATE_SECONDS = 1.0, 0.35
"""How much earlier and later than a fault's log block its Xid may be read. On an idle node it was read 15 to 25 ms
earlier (51 trials, H200, 580.159.04, 2026-11-22). A log that is flooded is read later."""

SERVER_END_SECONDS = 0.5  # An Xid this close to the end of another server may be of that server.

ENDED_BEFORE_SECONDS, ENDED_AFTER_SECONDS = 1.0, 10.0
"""How long before and after a fault's block its affected clients may exit. NVML is read every 10 s, or sooner."""

ASKED_SECONDS = 10.0  # Least time between two lists of servers that such a line causes.
SHARED_SECONDS = 600.0  # After a line of another daemon, lines of unknown servers may be of its servers for so long.


def is_of_another_daemon(step: Step, at: float, entry: LogEntry) -> bool:
    """Return whether another daemon with the same log, perhaps of another node, or a server of it wrote a line."""
    daemon, process = step.daemon, step.daemon.runtime.process
    if process is None or daemon.runtime.in_foreign_namespace or entry.pid == process.pid:
        return False
    if daemon.lifecycle.unexplained_end_at is not None:
        return False  # The daemon before this one may have written it, such as its quit.
    # The process that becomes a server writes that it starts (R580).
    if not entry.by_daemon or getattr(entry.message, "server", None) == entry.pid:
        others_at, asked_at = daemon.log.others_at, daemon.commands.asked_at
        unknown = entry.pid not in daemon.servers and others_at is not None and at - others_at <= SHARED_SECONDS
        query = daemon.dialect.list_servers
        if unknown and at - asked_at.get(query, 0.0) >= ASKED_SECONDS:
            # Every user can write a line of another daemon (R580). The daemon itself shows whether it has this server.
            step.daemon = with_commands(daemon, asked_at=without(asked_at, query))
        return unknown
    step.daemon = with_log(daemon, others_at=at)
    return True


def add(daemon: Daemon, at: float, kind: ClaimKind, pid: int) -> Daemon:
    """Return the daemon with a claim of its log; the first of several equal claims counts."""
    claim = Claim(kind=kind, pid=pid, at=at)
    if claim.key in daemon.log.claims:
        return daemon
    same = [name for name, each in daemon.log.claims.items() if each.kind is kind]
    others = without(daemon.log.claims, *same[: max(0, len(same) - MAX_OF_A_KIND + 1)])
    return with_log(daemon, claims={**others, claim.key: claim})


def remove(daemon: Daemon, kind: ClaimKind, pid: int) -> Daemon:
    """Return the daemon without this claim."""
    if not daemon.claimed(kind, pid):
        return daemon
    return with_log(daemon, claims=without(daemon.log.claims, key(kind, pid)))


def is_full(daemon: Daemon, kind: ClaimKind) -> bool:
    """Return whether there are so many claims of a kind that only the other sources can report another one."""
    return sum(each.kind is kind for each in daemon.log.claims.values()) >= MAX_OF_A_KIND


def may_be_unread(daemon: Daemon, at: float) -> bool:
    """Return whether lines about what happened at this time may be lost, or are read late."""
    log = daemon.log
    is_incomplete = log.incomplete_at is not None and at - log.incomplete_at <= OPEN_SECONDS
    return is_incomplete or log.stuck is not None or any(log.unread.values())


def contradict(step: Step, at: float, claim: Claim) -> None:
    """Count a claim that another source refutes, and report it unless another one was reported recently.

    If lines are missing or not read yet, they may report what another source shows. Then it is no contradiction, but
    such a log proves nothing against a client.
    """
    step.daemon = daemon = with_log(step.daemon, doubted_at=at)
    if claim.kind in _NEEDS_ALL_LINES and may_be_unread(daemon, claim.at):
        return
    server = daemon.servers.get(claim.pid)
    if claim.kind is ClaimKind.FAULT and server is not None:
        # The clients that the block names must not be taken for those of a later fault.
        server = replace(server, fault_block=None, fatal_error=None, devices_to_reset=None)
        daemon = servers.with_server(daemon, server)
    last = daemon.log.contradicted_at
    daemon = with_totals(daemon, log_contradictions=increment(daemon.totals.log_contradictions, claim.kind))
    step.daemon = with_log(daemon, contradicted_at=at)
    if last is None or at - last >= REPORTED_SECONDS:
        step.report(at, EventName.LOG_CONTRADICTED, pid=claim.pid or None, reason=claim.kind)


def resolve_pending(step: Step, node: Node, *, before: Daemon | None = None, force: bool = False) -> None:
    """Decide the claims that can be decided; with `before`, only those that were made since then.

    With `force`, as at the end of a recording, an end or a crash loop that no source contradicts is accepted.
    """
    known: Mapping[str, Claim] = {} if before is None else before.log.claims
    # Further lines of a fault's block may make it plausible.
    claims = step.daemon.log.claims.items()
    for claim in [claim for name, claim in claims if name not in known or claim.kind is ClaimKind.FAULT]:
        verdict = _VERDICTS[claim.kind](node, step.daemon, claim)
        if verdict is Verdict.OPEN and force and claim.kind not in _OPEN_AT_END:
            verdict = Verdict.CONFIRMED
        if verdict is not Verdict.OPEN:
            step.daemon = remove(step.daemon, claim.kind, claim.pid)
        if verdict is Verdict.REFUTED:
            contradict(step, node.at, claim)
        elif verdict is Verdict.CONFIRMED:
            _apply(step, claim)
    after = step.daemon
    if before is not None and (
        after.clients is not before.clients or after.connections.failed_starts is not before.connections.failed_starts
    ):
        resolve_pending(step, node)


def _apply(step: Step, claim: Claim) -> None:
    """Apply a confirmed claim. Those of starts and connections, and of the daemon's exit, need nothing more."""
    match claim.kind:
        case ClaimKind.SERVER_EXIT:
            step.daemon = remove(step.daemon, ClaimKind.SERVER_START, claim.pid)
            servers.end(step, claim.at, claim.pid)
        case ClaimKind.CRASH_LOOP:
            servers.report_crash_loop(step)
        case ClaimKind.CLIENT_DISCONNECT:
            servers.disconnect(step, claim.at, claim.pid, DisconnectReason.EXIT)
        case ClaimKind.CONTAINED_FAULT:
            _report_contained_fault(step, claim)
        case ClaimKind.FAULT:
            server = step.daemon.servers[claim.pid]
            if server.fault_block is not None:
                # The server has been in FAULT since the block.
                block = replace(server.fault_block, confirmed=True)
                step.daemon = servers.with_server(step.daemon, replace(server, fault_block=block))
                servers.enter_state(step, block.at, claim.pid, ServerState.FAULT)
        case ClaimKind.RECOVERY:
            since = step.daemon.servers[claim.pid].state_since or 0.0
            servers.enter_state(step, max(claim.at, since), claim.pid, ServerState.ACTIVE)


# -- daemon and servers --------------------------------------------------------------------------------------------


def _daemon_exit(_node: Node, daemon: Daemon, claim: Claim) -> Verdict:
    """Its process, or a command that finds no daemon, confirms it. The answer to a later query refutes it."""
    if daemon.ended:
        return Verdict.SETTLED
    answered_at = max(daemon.commands.asked_at.values(), default=0.0)
    return Verdict.REFUTED if daemon.answers and answered_at - claim.at > REFUTED_SECONDS else Verdict.OPEN


def _server_start(node: Node, daemon: Daemon, claim: Claim) -> Verdict:
    server = daemon.servers.get(claim.pid)
    if server is not None:
        return Verdict.SETTLED if server.listed or node.at - claim.at > OPEN_SECONDS else Verdict.OPEN
    if claim.pid in node.deaths or daemon.ended:
        return Verdict.SETTLED
    return _unlisted(node, daemon.connections.server_exited_at.get(claim.pid))


def _unlisted(node: Node, removed_at: float | None) -> Verdict:
    """Decide a claim that the daemon's list refutes. The exit of the process may be read a moment after the list."""
    recent = removed_at is not None and node.at - removed_at < REFUTED_SECONDS
    return Verdict.OPEN if recent else Verdict.REFUTED


def _server_exit(node: Node, daemon: Daemon, claim: Claim) -> Verdict:
    server = daemon.servers.get(claim.pid)
    if server is None:
        return Verdict.SETTLED
    if server.missing_since is not None:
        return Verdict.CONFIRMED
    if (daemon.connections.listed_at or 0.0) > claim.at + FRESH_SECONDS:
        return Verdict.REFUTED
    return Verdict.OPEN if server.listed or claim.pid in node.processes else Verdict.CONFIRMED


def _crash_loop(node: Node, daemon: Daemon, claim: Claim) -> Verdict:
    """The daemon waits for its servers, so the kernel adds their page faults to those of its children (R580).

    If the process cannot be read, the log is accepted: a crash loop is a hint and leads to no action. If the process
    was first read after the loop began, it proves nothing. A loop that continues makes another claim.
    """
    started_at = daemon.connections.failed_starts.started_at
    if daemon.ended or not started_at:
        return Verdict.SETTLED
    state = processes.state_of_daemon(node, daemon)
    if state is None or state.children_page_faults is None:
        # A recording without reports of its collectors has no process states at all.
        may_come = bool(node.sources) and node.at - claim.at < REFUTED_SECONDS
        return Verdict.OPEN if may_come else Verdict.CONFIRMED
    if state.child_ended_at is not None and state.child_ended_at >= started_at[0]:
        return Verdict.CONFIRMED
    if node.at - claim.at <= UNCONFIRMED_SECONDS:
        return Verdict.OPEN
    return Verdict.SETTLED if state.at > started_at[0] else Verdict.REFUTED


# -- clients -------------------------------------------------------------------------------------------------------


def _client_connect(node: Node, daemon: Daemon, claim: Claim) -> Verdict:
    client, pid, connections = daemon.clients.get(claim.pid), claim.pid, daemon.connections
    if client is not None:
        confirmed = client.listed_at is not None or shown_at(node, pid) is not None
        return Verdict.SETTLED if confirmed or node.at - claim.at > OPEN_SECONDS else Verdict.OPEN
    was = connections.recently_disconnected.get(pid)
    server_ended = was is not None and was.server not in daemon.servers
    if pid in node.deaths or pid in connections.disconnects or daemon.ended or server_ended:
        return Verdict.SETTLED
    return _unlisted(node, connections.disconnected_at.get(pid))


def _client_disconnect(node: Node, daemon: Daemon, claim: Claim) -> Verdict:
    """Decide by the lists of NVML and of the daemon. The exit of the process removes the client elsewhere."""
    client = daemon.clients.get(claim.pid)
    if client is None:
        return Verdict.SETTLED
    last_shown = shown_at(node, claim.pid)
    if last_shown is not None:
        return Verdict.REFUTED if last_shown > claim.at + REFUTED_SECONDS else Verdict.OPEN
    # NVML's lists show all clients, except those of a GPU in MIG mode.
    usable = devices.usable_gpus(node).values()
    readings = [each for each in usable if devices.serves_gpu(node, daemon, each) is not False]
    complete = (each.at > claim.at and each.mps_processes is not None and not each.mig_mode for each in readings)
    if readings and all(complete):
        return Verdict.CONFIRMED
    if client.listed_at is not None and client.listed_at > claim.at + FRESH_SECONDS:
        return Verdict.REFUTED
    if any(claim.pid in gpu.mps_left for gpu in node.gpus.values()):
        return Verdict.CONFIRMED
    runs = claim.pid in node.processes and node.at - claim.at < YOUNG_SECONDS
    return Verdict.OPEN if client.listed_at is not None or runs else Verdict.CONFIRMED


def _contained_fault(node: Node, daemon: Daemon, claim: Claim) -> Verdict:
    """A client with an error of its own disconnects."""
    if claim.pid not in daemon.clients:
        return Verdict.CONFIRMED
    return Verdict.REFUTED if node.at - claim.at > UNCONFIRMED_SECONDS else Verdict.OPEN


def _report_contained_fault(step: Step, claim: Claim) -> None:
    client = step.daemon.connections.recently_disconnected.get(claim.pid)
    server = None if client is None else step.daemon.servers.get(client.server)
    block = None if server is None else server.fault_block
    in_fault = block is not None and block.confirmed and claim.pid in block.clients
    if client is not None and block is not None and in_fault and client.connected_at <= block.at:
        return
    step.daemon = with_totals(step.daemon, faults_contained=step.daemon.totals.faults_contained + 1)
    of_server = None if client is None else client.server
    step.report(claim.at, EventName.CLIENT_FAULT_CONTAINED, server=of_server, pid=claim.pid)


# -- faults ---------------------------------------------------------------------------------------------------------


def _fault_verdict(node: Node, daemon: Daemon, claim: Claim) -> Verdict:
    """Decide whether another source shows the fault of a block."""
    server = daemon.servers.get(claim.pid)
    block = None if server is None else server.fault_block
    if server is None or block is None or block.confirmed:
        return Verdict.SETTLED
    # What other faults of the daemon explain confirms no further fault, which a workload may have forged.
    of_block = (server.pid, block.stamp)
    incidents = [each for each in node.incidents.values() if each.is_fault and each.daemon == daemon.name]
    others = [each for each in incidents if (each.server, each.block_timestamp) != of_block]
    confirmed = (
        _is_reported_by_daemon(server, block, others)
        or _is_shown_by_xid(node, daemon, server, block, others)
        or (not xids.are_read(node) and _is_shown_by_exits(node, block, others))
    )
    # The block must name a client of this server. If it names none in time, the daemon must have listed the server.
    plausible = any(_is_client_of(daemon, server, pid) for pid in block.clients)
    if not block.clients:
        plausible = server.listed and node.at - block.at >= NAMED_SECONDS
    if confirmed and plausible:
        return Verdict.CONFIRMED
    return Verdict.REFUTED if node.at - claim.at > UNCONFIRMED_SECONDS else Verdict.OPEN


def _is_client_of(daemon: Daemon, server: Server, pid: int) -> bool:
    client = last_known(daemon, pid)
    return client is not None and client.server == server.pid


def _is_reported_by_daemon(server: Server, block: FaultLogBlock, others: Sequence[Incident]) -> bool:
    """Return whether the daemon reports FAULT and no other fault explains that."""
    reported_at = server.fault_reported_at
    if reported_at is None or abs(reported_at - block.at) > UNCONFIRMED_SECONDS:
        return False
    logged = (each for each in others if each.server == server.pid and each.block_timestamp is not None)
    earlier = (each for each in logged if each.detected_at <= reported_at + FRESH_SECONDS)
    return not any(each.ended_at is None or reported_at <= each.ended_at + FRESH_SECONDS for each in earlier)


def _is_shown_by_xid(
    node: Node, daemon: Daemon, server: Server, block: FaultLogBlock, others: Sequence[Incident]
) -> bool:
    """Return whether there is an Xid of this time, on a GPU of the daemon, that no other fault explains."""
    process = node.processes.get(server.pid)
    earliest = max(block.at - XID_EARLY_SECONDS, 0.0 if process is None else process.started - FRESH_SECONDS)
    recent = (each for each in node.xids.recent if earliest <= each.at <= block.at + XID_LATE_SECONDS)
    candidates = _one_of_each_fault(each for each in recent if _may_be_of_server(node, daemon, server, each))
    for other in sorted(others, key=lambda each: each.detected_at):
        near = (each for each in candidates if -XID_EARLY_SECONDS <= each.at - other.detected_at <= XID_LATE_SECONDS)
        explained = [each for each in near if each.pid in other.affected or each.pid not in block.clients]
        if explained:
            candidates.remove(min(explained, key=lambda each: abs(each.at - other.detected_at)))
    return bool(candidates)


def _one_of_each_fault(candidates: Iterable[IncidentXid]) -> list[IncidentXid]:
    """Return the first Xid of each fault: one fault may cause several Xids in short succession.

    Xids that name different processes are of different faults.
    """
    ordered = sorted(candidates, key=lambda each: each.at)
    return ordered[:1] + [
        each
        for last, each in pairwise(ordered)
        if each.at - last.at > ONE_FAULT_SECONDS or (None not in (each.pid, last.pid) and each.pid != last.pid)
    ]


def _may_be_of_server(node: Node, daemon: Daemon, server: Server, xid: IncidentXid) -> bool:
    """Return whether an Xid names a process of the server, or none, as NVML's events do.

    The log may name any process as a client, also one that NVML shows outside MPS. An Xid without a process proves
    nothing while such a process runs on that GPU, because it has its own Xids. Nor does it at the end of another
    server, which may have faulted.
    """
    gpu = None if xid.gpu is None else node.gpus.get(xid.gpu)
    if gpu is not None and devices.uses_gpu(node, daemon, gpu.reading.gpu) is False:
        return False
    shown = (each.bypassing_processes for each in (node.gpus.values() if gpu is None else (gpu,)))
    # A client that exits after its fault may be shown so for a moment.
    outside = {pid for processes in shown for pid, each in processes.items() if each.first_seen <= xid.at}
    if xid.pid is not None:
        of_server = xid.pid == server.pid or _is_client_of(daemon, server, xid.pid)
        return xid.pid not in outside and (of_server or xid.pid in daemon.connections.disconnects)
    exits = (at for pid, at in daemon.connections.server_exited_at.items() if pid != server.pid)
    return not outside and not any(abs(xid.at - exit_at) <= SERVER_END_SECONDS for exit_at in exits)


def _is_shown_by_exits(node: Node, block: FaultLogBlock, others: Iterable[Incident]) -> bool:
    """Return whether several affected clients have exited and none is known to run.

    If Xids are read, this proves nothing. Each fault has one (51 of 51 trials, H200, 580.159.04), and a workload may
    name clients that exit by themselves at that time.
    """
    affected = block.clients.difference(*(each.affected for each in others))
    exits = [(pid, at) for gpu in node.gpus.values() for pid, at in gpu.mps_left.items()]
    exits += [(pid, node.deaths[pid].at) for pid in affected & node.deaths.keys()]
    near = {pid for pid, at in exits if -ENDED_BEFORE_SECONDS <= at - block.at <= ENDED_AFTER_SECONDS}
    exited = affected & near
    run = (pid in node.processes or shown_at(node, pid) is not None for pid in affected - exited)
    return len(exited) > 1 and not any(run)


def _recovery_verdict(node: Node, daemon: Daemon, claim: Claim) -> Verdict:
    """Decide by the daemon's reply, or by the exit of all affected clients.

    Only affected clients keep a server in FAULT (measured, R580).
    """
    server = daemon.servers.get(claim.pid)
    if server is None:
        return Verdict.SETTLED
    # A fault that this very observation confirms must be reported before its recovery.
    if node.daemons[daemon.name].claimed(ClaimKind.FAULT, claim.pid):
        return Verdict.OPEN
    if server.state is not ServerState.FAULT:
        return Verdict.SETTLED
    if server.fault_reported_at is not None and server.fault_reported_at > claim.at + FRESH_SECONDS:
        return Verdict.REFUTED
    affected = frozenset[int]() if server.fault_block is None else server.fault_block.clients
    clients = (daemon.clients.get(pid) for pid in affected)
    any_left = any(each is not None and each.server == claim.pid and each.connected_at <= claim.at for each in clients)
    return Verdict.CONFIRMED if affected and not any_left else Verdict.OPEN


_NEEDS_ALL_LINES = (
    *(ClaimKind.SERVER_START, ClaimKind.CONTAINED_FAULT),
    *(ClaimKind.CLIENT_CONNECT, ClaimKind.CLIENT_DISCONNECT, ClaimKind.CLIENT_REFUSED),
)
"""Claims that the absence of a line refutes: of an end, or of another connection with the same PID."""

_OPEN_AT_END = (ClaimKind.DAEMON_EXIT, ClaimKind.SERVER_START, ClaimKind.CLIENT_CONNECT, ClaimKind.FAULT)

_VERDICTS: Mapping[ClaimKind, Callable[[Node, Daemon, Claim], Verdict]] = {
    ClaimKind.DAEMON_EXIT: _daemon_exit,
    ClaimKind.SERVER_START: _server_start,
    ClaimKind.SERVER_EXIT: _server_exit,
    ClaimKind.CRASH_LOOP: _crash_loop,
    ClaimKind.CLIENT_CONNECT: _client_connect,
    ClaimKind.CLIENT_DISCONNECT: _client_disconnect,
    ClaimKind.CONTAINED_FAULT: _contained_fault,
    ClaimKind.FAULT: _fault_verdict,
    ClaimKind.RECOVERY: _recovery_verdict,
}
