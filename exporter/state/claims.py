"""Claims: statements of log lines, until a source that no workload can write confirms or refutes them."""

from collections.abc import Callable, Mapping

from exporter.model.daemon import Claim, ClaimKind, Daemon, Verdict, key, with_log, with_totals
from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.server import DisconnectReason, ServerState
from exporter.model.values import replace
from exporter.state import clients, devices, processes, servers
from exporter.state.clients import FRESH_SECONDS
from exporter.state.fault_log import UNCONFIRMED_SECONDS, fault_verdict, recovery_verdict, shown_at
from exporter.state.step import Step, increment, without

REFUTED_SECONDS = 2.0
"""A reading this much later than the claim, which still shows what the log reports as ended, refutes it."""

YOUNG_SECONDS = 5.0
"""How long a client that only the log shows stays although the log reports its disconnect, if its process runs.

NVML is read within 2 s of a connection or a disconnect that the log claims.
"""

OPEN_SECONDS = 30.0
"""A connection or a start that no source has confirmed after this time is accepted: no source can show it."""

MAX_OF_A_KIND = 256
"""How many claims of one kind are remembered for one daemon; the oldest are removed."""

REPORTED_SECONDS = 60.0
"""The least time between two events about contradictions of one daemon's log. All contradictions are counted."""


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


def contradict(step: Step, at: float, claim: Claim) -> None:
    """Count a claim that another source refutes, and report it unless another one was reported recently."""
    daemon = step.daemon
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
        if verdict is Verdict.OPEN and force and claim.kind in _ACCEPTED_AT_END:
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
            clients.disconnect(step, claim.at, claim.pid, DisconnectReason.EXIT)
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
    readings = [reading for reading in devices.usable_gpus(node).values() if devices.serves_gpu(node, daemon, reading)]
    if readings and all(
        each.at > claim.at and each.mps_processes is not None and not each.mig_mode for each in readings
    ):
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


_ACCEPTED_AT_END = frozenset(
    {
        ClaimKind.SERVER_EXIT,
        ClaimKind.CLIENT_DISCONNECT,
        ClaimKind.RECOVERY,
        ClaimKind.CONTAINED_FAULT,
        ClaimKind.CRASH_LOOP,
    }
)

_VERDICTS: Mapping[ClaimKind, Callable[[Node, Daemon, Claim], Verdict]] = {
    ClaimKind.DAEMON_EXIT: _daemon_exit,
    ClaimKind.SERVER_START: _server_start,
    ClaimKind.SERVER_EXIT: _server_exit,
    ClaimKind.CRASH_LOOP: _crash_loop,
    ClaimKind.CLIENT_CONNECT: _client_connect,
    ClaimKind.CLIENT_DISCONNECT: _client_disconnect,
    ClaimKind.CONTAINED_FAULT: _contained_fault,
    ClaimKind.FAULT: fault_verdict,
    ClaimKind.RECOVERY: recovery_verdict,
}
