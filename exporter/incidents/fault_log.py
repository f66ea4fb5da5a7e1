"""Faults in server.log: the fault log block, and which of its claims other sources confirm."""

from collections.abc import Iterable, Sequence

from exporter.model.daemon import Claim, ClaimKind, Daemon, Verdict
from exporter.model.gpu import IncidentXid
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.server import BlockSection, FaultLogBlock, Server, ServerState
from exporter.model.values import replace
from exporter.parse import log_message
from exporter.parse.log_line import LogEntry, seconds_between
from exporter.parse.log_message import Message
from exporter.state import gpus, servers
from exporter.state import xids as state_xids
from exporter.state.clients import FRESH_SECONDS, MOST_CLIENTS
from exporter.state.gpus import MOST_DEVICES
from exporter.state.transition import Pids, Transition, outer, without_events

SAME_SECONDS = 60.0
"""A line of the log that is read twice has one stamp, and is read again within this time."""

LONGEST_SECONDS = 10.0
"""How long a server may take to write a block, by its own clock; what reads like a part of it later is of another."""

NAMED_BEFORE_SECONDS = 1.0
"""How long before a fault its client is named, at most; one who was named earlier has nothing to do with it."""

TOGETHER_SECONDS = 0.2
"""Blocks that follow one another so soon tell of one fault: measured on two GPUs, 1 to 37 ms (R580)."""


def block_line_read(server: Server, at: float, entry: LogEntry, pids: Pids = None) -> Server:
    """One more line of this server was written; the server as it is if that tells nothing of a fault.

    A bare number of a daemon in another PID namespace is not translated yet: only here it is known to be a PID.
    """
    stamp, message = entry.stamp, entry.message
    match message:
        case log_message.ClientFatalError(pid) if pid != 0:
            return replace(server, fatal_error=(stamp, pid))
        case log_message.HandlingFatalError() if _goes_on(server, at, stamp):
            return _named_too(server, stamp)
        case log_message.HandlingFatalError() if server.fault_block is None or not is_same(
            server.fault_block, at, stamp
        ):
            return _begun(server, at, stamp)
        case log_message.ClientToBeTornDown(pid) if pid != 0 and not _is_current(server.fault_block, at, stamp):
            server = _begun(server, at, stamp)
        case log_message.ServerContextDestroyed():
            server = replace(server, reset_stamp=stamp)
    if server.fault_block is None or not _is_current(server.fault_block, at, stamp):
        return server
    block = _extended(server.fault_block, message, pids)
    if block is server.fault_block:
        return server
    added = block.devices - server.fault_block.devices
    return replace(server, fault_block=block, devices_to_reset=(server.devices_to_reset or frozenset()) | added or None)


def has_begun(before: Server, after: Server) -> bool:
    """Whether a line that was read between the two began a block."""
    return after.fault_block is not None and (
        before.fault_block is None or after.fault_block.begin != before.fault_block.begin
    )


def is_same(block: FaultLogBlock, at: float, stamp: str) -> bool:
    """Whether a block that was seen then, with this stamp, is this one."""
    return block.stamp == stamp and abs(at - block.at) <= SAME_SECONDS


def without(server: Server, pid: int) -> Server:
    """The server, of whose fault nothing is told of this process."""
    if server.fatal_error is not None and server.fatal_error[1] == pid:
        server = replace(server, fatal_error=None)
    block = server.fault_block
    if block is None or pid not in named(server):
        return server
    block = replace(
        block,
        named=None if block.named == pid else block.named,
        torn_down=block.torn_down - {pid},
        sticky_error=tuple(each for each in block.sticky_error if each != pid),
    )
    return replace(server, fault_block=block)


def named(server: Server) -> frozenset[int]:
    """All processes of which a server's log told in connection with a fault."""
    pids = set() if server.fatal_error is None else {server.fatal_error[1]}
    if server.fault_block is not None:
        pids |= server.fault_block.clients
        pids |= set() if server.fault_block.named is None else {server.fault_block.named}
    return frozenset(pids)


def _goes_on(server: Server, at: float, stamp: str) -> bool:
    """Whether another block is of the same fault: a client that goes with kernels in flight on two GPUs faults both."""
    block = server.fault_block
    if block is None or not _is_current(block, at, stamp):
        return False
    if server.state is not ServerState.FAULT and block.confirmed:
        return False
    return 0 < seconds_between(block.stamp, stamp) <= TOGETHER_SECONDS


def _named_too(server: Server, stamp: str) -> Server:
    """It goes on with whom the log named just before, unless it has named somebody already."""
    block = server.fault_block
    if block is None:
        return server
    culprit = block.named if block.named is not None else _named_before(server, stamp)
    return replace(server, fault_block=replace(block, named=culprit, section=BlockSection.NOTHING), fatal_error=None)


def _is_current(block: FaultLogBlock | None, at: float, stamp: str) -> bool:
    if block is None or abs(at - block.at) > SAME_SECONDS:
        return False
    return abs(seconds_between(block.stamp, stamp)) <= LONGEST_SECONDS


def _begun(server: Server, at: float, stamp: str) -> Server:
    """Of the first lines, either may be lost."""
    return replace(
        server, fault_block=FaultLogBlock(at=at, stamp=stamp, named=_named_before(server, stamp)), fatal_error=None
    )


def _named_before(server: Server, stamp: str) -> int | None:
    """Whom the log named just before, as it does of a memory fault."""
    if server.fatal_error is None:
        return None
    named_at, pid = server.fatal_error
    return pid if 0 <= seconds_between(named_at, stamp) <= NAMED_BEFORE_SECONDS else None


def _extended(block: FaultLogBlock, message: Message, pids: Pids) -> FaultLogBlock:
    match message:
        case log_message.ClientToBeTornDown(pid) if pid != 0 and len(block.torn_down) < MOST_CLIENTS:
            return replace(block, torn_down=block.torn_down | {pid}, section=BlockSection.NOTHING)
        case log_message.ResetDevicesFollow():
            return replace(block, section=BlockSection.DEVICES)
        case log_message.StickyErrorClientsFollow():
            return replace(block, section=BlockSection.STICKY_ERROR)
        case log_message.BareNumber(device) if block.section is BlockSection.DEVICES and device < MOST_DEVICES:
            return replace(block, devices=block.devices | {device})
        case log_message.BareNumber(number) if block.section is BlockSection.STICKY_ERROR:
            return _with_victim(block, outer(number, pids))
        case log_message.BareNumber() | log_message.Noise():
            return block
        case _ if block.section is BlockSection.NOTHING:
            return block
        case _:
            return replace(block, section=BlockSection.NOTHING)


def _with_victim(block: FaultLogBlock, pid: int) -> FaultLogBlock:
    if pid == 0 or pid in block.sticky_error or len(block.sticky_error) >= MOST_CLIENTS:
        return block
    return replace(block, sticky_error=(*block.sticky_error, pid))


UNCONFIRMED_SECONDS = 10.0
"""A fault that no other source has confirmed by then was none. All sources report one within 0.2 s (measured, R580)."""

NAMED_SECONDS = 0.1
"""How long a block may take to name the clients that the fault hit: a server does so within 1 ms (R580, 16 faults)."""

ONE_FAULT_SECONDS = 0.2
"""Xids of one fault follow each other within this time. A server recovers from a fault, and its next clients come, no
sooner (measured, R580)."""

XID_EARLY_SECONDS, XID_LATE_SECONDS = 1.0, 0.35
"""How much earlier and later than a fault's log block its Xid may be read. On an idle node it was read 15 to 25 ms
earlier (51 trials, H200, 580.159.04, 2026-11-22). A log that is flooded is read later."""

SERVER_END_SECONDS = 0.5
"""An Xid this close to the end of another server may be of that server."""

ENDED_BEFORE_SECONDS, ENDED_AFTER_SECONDS = 1.0, 10.0
"""How long before and after a fault's log block its victims may end: NVML is read every 10 s, and sooner in doubt."""


def fault(node: Node, daemon: Daemon, claim: Claim) -> Verdict:
    """Decide whether another source shows the fault of which a block tells."""
    server = daemon.servers.get(claim.pid)
    block = None if server is None else server.fault_block
    if server is None or block is None or block.confirmed:
        return Verdict.SETTLED
    others = _others(node, daemon, server, block)
    confirmed = (
        _said_by_daemon(server, block, others)
        or _struck(node, daemon, server, block, others)
        or (not state_xids.are_read(node) and _ended(node, block, others))
    )
    if confirmed and _is_plausible(node.at, daemon, server, block):
        return Verdict.CONFIRMED
    return Verdict.REFUTED if node.at - claim.at > UNCONFIRMED_SECONDS else Verdict.OPEN


def _is_plausible(at: float, daemon: Daemon, server: Server, block: FaultLogBlock) -> bool:
    """Return whether one of the clients that the block names is this server's.

    If it names none in time, the daemon must have listed the server.
    """
    victims = block.clients
    if not victims:
        return server.listed and at - block.at >= NAMED_SECONDS
    known = (daemon.clients.get(pid) or daemon.connections.recently_disconnected.get(pid) for pid in victims)
    return any(each is not None and each.server == server.pid for each in known)


def _others(node: Node, daemon: Daemon, server: Server, block: FaultLogBlock) -> list[Incident]:
    """The daemon's other faults: what they explain confirms no further one, which a tenant may have forged."""
    of_daemon = (each for each in node.incidents.values() if each.daemon == daemon.name)
    return [each for each in of_daemon if (each.server, each.block_timestamp) != (server.pid, block.stamp)]


def _said_by_daemon(server: Server, block: FaultLogBlock, others: Sequence[Incident]) -> bool:
    """Return whether the daemon says FAULT, and no other fault explains that."""
    told_at = server.fault_reported_at
    if told_at is None or abs(told_at - block.at) > UNCONFIRMED_SECONDS:
        return False
    return not any(
        each.server == server.pid
        and each.block_timestamp is not None
        and each.detected_at <= told_at + FRESH_SECONDS
        and (each.ended_at is None or told_at <= each.ended_at + FRESH_SECONDS)
        for each in others
    )


def _struck(node: Node, daemon: Daemon, server: Server, block: FaultLogBlock, others: Sequence[Incident]) -> bool:
    """Return whether an Xid of this time and of a GPU of the daemon is left that no other fault explains."""
    started = node.processes.get(server.pid)
    earliest = max(block.at - XID_EARLY_SECONDS, 0.0 if started is None else started.started - FRESH_SECONDS)
    recent = (each for each in node.xids.recent if earliest <= each.at <= block.at + XID_LATE_SECONDS)
    left = _as_of_one_fault(each for each in recent if _may_be_its(node, daemon, server, each))
    for other in sorted(others, key=lambda each: each.detected_at):
        near = (each for each in left if -XID_EARLY_SECONDS <= each.at - other.detected_at <= XID_LATE_SECONDS)
        explained = [each for each in near if each.pid in other.affected or each.pid not in block.clients]
        if explained:
            left.remove(min(explained, key=lambda each: abs(each.at - other.detected_at)))
    return bool(left)


def _as_of_one_fault(xids: Iterable[IncidentXid]) -> list[IncidentXid]:
    """Return the first of each group of Xids that follow each other at once: a fault may raise several.

    Those that name different processes are of different faults.
    """
    groups: list[IncidentXid] = []
    last: IncidentXid | None = None
    for each in sorted(xids, key=lambda each: each.at):
        same = last is not None and (each.pid is None or last.pid is None or each.pid == last.pid)
        if last is None or not same or each.at - last.at > ONE_FAULT_SECONDS:
            groups.append(each)
        last = each
    return groups


def _may_be_its(node: Node, daemon: Daemon, server: Server, xid: IncidentXid) -> bool:
    """An Xid names a process of the server's, or none: NVML's events name none.

    A process beside MPS has Xids of its own. While one is on that GPU, an Xid without a process proves nothing. At the
    end of another server it proves nothing either: that server may have faulted.
    """
    gpu = None if xid.gpu is None else node.gpus.get(xid.gpu)
    if gpu is not None and not gpus.served(daemon, gpu.reading):
        return False
    if xid.pid is not None:
        client = daemon.clients.get(xid.pid) or daemon.connections.recently_disconnected.get(xid.pid)
        of_client = client is not None and client.server == server.pid
        return of_client or xid.pid == server.pid or xid.pid in daemon.connections.disconnects
    ends = (at for pid, at in daemon.connections.server_exited_at.items() if pid != server.pid)
    if any(abs(xid.at - end) <= SERVER_END_SECONDS for end in ends):
        return False
    beside = node.gpus.values() if gpu is None else (gpu,)
    return not any(each.bypassing_processes for each in beside)


def _ended(node: Node, block: FaultLogBlock, others: Iterable[Incident]) -> bool:
    """Return whether several victims are seen to have ended, and no victim is known to live on.

    Where Xids are read this proves nothing. Each fault has one (51 of 51 trials, H200, 580.159.04), and a tenant may
    name clients that end by themselves at that time.
    """
    victims = block.clients.difference(*(each.affected for each in others))
    ended = {pid for pid in victims if any(_is_near(at, block.at) for at in _ends(node, pid))}
    stay = (pid in node.processes or shown_at(node, pid) is not None for pid in victims - ended)
    return len(ended) > 1 and not any(stay)


def _ends(node: Node, pid: int) -> Iterable[float]:
    """When the process ended, or left NVML's lists, as far as that was seen."""
    if pid in node.deaths:
        yield node.deaths[pid].at
    yield from (gpu.mps_left[pid] for gpu in node.gpus.values() if pid in gpu.mps_left)


def _is_near(end_at: float, block_at: float) -> bool:
    return -ENDED_BEFORE_SECONDS <= end_at - block_at <= ENDED_AFTER_SECONDS


def faulted(_node: Node, daemon: Daemon, claim: Claim) -> Transition:
    """Confirm the fault, and put its server into FAULT since the block."""
    server = daemon.servers[claim.pid]
    block = server.fault_block
    if block is None:
        return without_events(daemon)
    daemon = servers.with_server(daemon, replace(server, fault_block=replace(block, confirmed=True)))
    return servers.enter(daemon, block.at, claim.pid, ServerState.FAULT)


def recovery(node: Node, daemon: Daemon, claim: Claim) -> Verdict:
    """The daemon's answer decides; so does the end of all victims, since only they keep a server in FAULT (R580)."""
    server = daemon.servers.get(claim.pid)
    if server is None:
        return Verdict.SETTLED
    # A fault that is confirmed by this very observation must be known before it is over.
    if node.daemons[daemon.name].claimed(ClaimKind.FAULT, claim.pid):
        return Verdict.OPEN
    if server.state is not ServerState.FAULT:
        return Verdict.SETTLED
    if server.fault_reported_at is not None and server.fault_reported_at > claim.at + FRESH_SECONDS:
        return Verdict.REFUTED
    block = server.fault_block
    victims = frozenset[int]() if block is None else block.clients
    here = (daemon.clients.get(pid) for pid in victims)
    stay = any(each is not None and each.server == claim.pid and each.connected_at <= claim.at for each in here)
    return Verdict.CONFIRMED if victims and not stay else Verdict.OPEN


def recovered(_node: Node, daemon: Daemon, claim: Claim) -> Transition:
    """Make the server active again."""
    since = daemon.servers[claim.pid].state_since or 0.0
    return servers.enter(daemon, max(claim.at, since), claim.pid, ServerState.ACTIVE)


def shown_at(node: Node, pid: int) -> float | None:
    """When NVML was last read, if it lists the process as a client then."""
    times = (gpu.reading.at for gpu in node.gpus.values() if pid in gpu.mps_since and gpu.reading.problem is None)
    return max(times, default=None)
