"""Faults in server.log: the fault log block, and which of its claims other sources confirm."""

from collections.abc import Iterable, Sequence

from exporter.model.daemon import Claim, ClaimKind, Daemon, Verdict
from exporter.model.gpu import IncidentXid
from exporter.model.incident import Incident
from exporter.model.node import Node
from exporter.model.server import BlockSection, FaultLogBlock, Server, ServerState
from exporter.model.values import replace
from exporter.parse import log_message
from exporter.parse.log_line import LogEntry, Pids, seconds_between, translate_pid
from exporter.parse.log_message import Message
from exporter.state import devices
from exporter.state import xids as state_xids
from exporter.state.clients import FRESH_SECONDS, MOST_CLIENTS, last_known
from exporter.state.devices import MOST_DEVICES

SAME_SECONDS = 60.0
"""A log line that is read again within this time, with the same timestamp, is the same line."""

LONGEST_SECONDS = 10.0
"""How long a server may take to write a block, by its own clock. Later lines belong to another block."""

NAMED_BEFORE_SECONDS = 1.0
"""How long before a block its log may name the client. A client that was named earlier is of another fault."""

TOGETHER_SECONDS = 0.2
"""Blocks that follow each other within this time are of one fault: on two GPUs, 1 to 37 ms (measured, R580)."""


def read_block_line(server: Server, at: float, entry: LogEntry, pids: Pids = None) -> Server:
    """Return the server after one more line of its log.

    A bare number is a PID only in the list of clients, so that it is translated from the daemon's PID namespace here.
    """
    stamp, message, block = entry.stamp, entry.message, server.fault_block
    current = block is not None and abs(at - block.at) <= SAME_SECONDS
    current = current and block is not None and abs(seconds_between(block.stamp, stamp)) <= LONGEST_SECONDS
    match message:
        case log_message.ClientFatalError(pid) if pid != 0:
            return replace(server, fatal_error=(stamp, pid))
        case log_message.HandlingFatalError() if (
            block is not None
            and current
            and (server.state is ServerState.FAULT or not block.confirmed)
            and 0 < seconds_between(block.stamp, stamp) <= TOGETHER_SECONDS
        ):
            # Of the same fault: a client that exits with kernels in flight on two GPUs causes a fault on both.
            named = _named_before(server, stamp) if block.named is None else block.named
            block = replace(block, named=named, section=BlockSection.NOTHING)
            return replace(server, fault_block=block, fatal_error=None)
        case log_message.HandlingFatalError() if block is None or not is_same_block(block, at, stamp):
            return _with_new_block(server, at, stamp)
        case log_message.ClientToBeTornDown(pid) if pid != 0 and not current:
            # The first line of the block was lost.
            server, current = _with_new_block(server, at, stamp), True
        case log_message.ServerContextDestroyed():
            server = replace(server, reset_stamp=stamp)
    block = server.fault_block
    if block is None or not current:
        return server
    extended = _extend(block, message, pids)
    if extended is block:
        return server
    devices = (server.devices_to_reset or frozenset()) | (extended.devices - block.devices)
    return replace(server, fault_block=extended, devices_to_reset=devices or None)


def has_new_block(before: Server, after: Server) -> bool:
    """Return whether a block began between the two."""
    old, new = before.fault_block, after.fault_block
    return new is not None and (old is None or (new.at, new.stamp) != (old.at, old.stamp))


def is_same_block(block: FaultLogBlock, at: float, stamp: str) -> bool:
    """Return whether a block that was read at `at`, with this timestamp, is this one."""
    return block.stamp == stamp and abs(at - block.at) <= SAME_SECONDS


def without_client(server: Server, pid: int) -> Server:
    """Return the server without this process in its faults."""
    if server.fatal_error is not None and server.fatal_error[1] == pid:
        server = replace(server, fatal_error=None)
    block = server.fault_block
    if block is None or pid not in named_clients(server):
        return server
    block = replace(
        block,
        named=None if block.named == pid else block.named,
        torn_down=block.torn_down - {pid},
        sticky_error=tuple(each for each in block.sticky_error if each != pid),
    )
    return replace(server, fault_block=block)


def named_clients(server: Server) -> frozenset[int]:
    """Return all PIDs that the server's log names in connection with a fault."""
    error, block = server.fatal_error, server.fault_block
    clients = frozenset() if block is None else block.clients
    named = (None if error is None else error[1], None if block is None else block.named)
    return clients.union(pid for pid in named if pid is not None)


def _with_new_block(server: Server, at: float, stamp: str) -> Server:
    block = FaultLogBlock(at=at, stamp=stamp, named=_named_before(server, stamp))
    return replace(server, fault_block=block, fatal_error=None)


def _named_before(server: Server, stamp: str) -> int | None:
    """Return the client that the log named just before, as it does for a memory fault."""
    if server.fatal_error is None:
        return None
    named_at, pid = server.fatal_error
    return pid if 0 <= seconds_between(named_at, stamp) <= NAMED_BEFORE_SECONDS else None


def _extend(block: FaultLogBlock, message: Message, pids: Pids) -> FaultLogBlock:
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
            pid = translate_pid(number, pids)
            if pid == 0 or pid in block.sticky_error or len(block.sticky_error) >= MOST_CLIENTS:
                return block
            return replace(block, sticky_error=(*block.sticky_error, pid))
        case log_message.BareNumber() | log_message.Noise():
            return block
        case _ if block.section is BlockSection.NOTHING:
            return block
        case _:
            return replace(block, section=BlockSection.NOTHING)


# -- claims --------------------------------------------------------------------------------------------------------

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

SERVER_END_SECONDS = 0.5
"""An Xid this close to the end of another server may be of that server."""

ENDED_BEFORE_SECONDS, ENDED_AFTER_SECONDS = 1.0, 10.0
"""How long before and after a fault's block its affected clients may exit. NVML is read every 10 s, or sooner."""


def fault_verdict(node: Node, daemon: Daemon, claim: Claim) -> Verdict:
    """Decide whether another source shows the fault of a block."""
    server = daemon.servers.get(claim.pid)
    block = None if server is None else server.fault_block
    if server is None or block is None or block.confirmed:
        return Verdict.SETTLED
    # What other faults of the daemon explain confirms no further fault, which a workload may have forged.
    others = [
        each
        for each in node.incidents.values()
        if each.daemon == daemon.name and (each.server, each.block_timestamp) != (server.pid, block.stamp)
    ]
    confirmed = (
        _is_reported_by_daemon(server, block, others)
        or _is_shown_by_xid(node, daemon, server, block, others)
        or (not state_xids.are_read(node) and _is_shown_by_exits(node, block, others))
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
    return not any(
        each.server == server.pid
        and each.block_timestamp is not None
        and each.detected_at <= reported_at + FRESH_SECONDS
        and (each.ended_at is None or reported_at <= each.ended_at + FRESH_SECONDS)
        for each in others
    )


def _is_shown_by_xid(
    node: Node, daemon: Daemon, server: Server, block: FaultLogBlock, others: Sequence[Incident]
) -> bool:
    """Return whether there is an Xid of this time, on a GPU of the daemon, that no other fault explains."""
    process = node.processes.get(server.pid)
    earliest = max(block.at - XID_EARLY_SECONDS, 0.0 if process is None else process.started - FRESH_SECONDS)
    recent = (each for each in node.xids.recent if earliest <= each.at <= block.at + XID_LATE_SECONDS)
    xids = _one_of_each_fault(each for each in recent if _may_be_of_server(node, daemon, server, each))
    for other in sorted(others, key=lambda each: each.detected_at):
        near = (each for each in xids if -XID_EARLY_SECONDS <= each.at - other.detected_at <= XID_LATE_SECONDS)
        explained = [each for each in near if each.pid in other.affected or each.pid not in block.clients]
        if explained:
            xids.remove(min(explained, key=lambda each: abs(each.at - other.detected_at)))
    return bool(xids)


def _one_of_each_fault(xids: Iterable[IncidentXid]) -> list[IncidentXid]:
    """Return the first Xid of each fault: one fault may cause several Xids in short succession.

    Xids that name different processes are of different faults.
    """
    groups: list[IncidentXid] = []
    last: IncidentXid | None = None
    for each in sorted(xids, key=lambda each: each.at):
        same = last is not None and (each.pid is None or last.pid is None or each.pid == last.pid)
        if last is None or not same or each.at - last.at > ONE_FAULT_SECONDS:
            groups.append(each)
        last = each
    return groups


def _may_be_of_server(node: Node, daemon: Daemon, server: Server, xid: IncidentXid) -> bool:
    """Return whether an Xid names a process of the server, or none, as NVML's events do.

    An Xid without a process proves nothing while a bypassing process runs on that GPU, because it has its own Xids. Nor
    does it at the end of another server, which may have faulted.
    """
    gpu = None if xid.gpu is None else node.gpus.get(xid.gpu)
    if gpu is not None and not devices.uses_gpu(node, daemon, gpu.reading.gpu):
        return False
    if xid.pid is not None:
        of_server = xid.pid == server.pid or _is_client_of(daemon, server, xid.pid)
        return of_server or xid.pid in daemon.connections.disconnects
    exits = (at for pid, at in daemon.connections.server_exited_at.items() if pid != server.pid)
    if any(abs(xid.at - exit_at) <= SERVER_END_SECONDS for exit_at in exits):
        return False
    possible = node.gpus.values() if gpu is None else (gpu,)
    return not any(each.bypassing_processes for each in possible)


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


def recovery_verdict(node: Node, daemon: Daemon, claim: Claim) -> Verdict:
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


def shown_at(node: Node, pid: int) -> float | None:
    """Return when NVML was last read, if its lists contain the process as an MPS client."""
    times = (gpu.reading.at for gpu in node.gpus.values() if pid in gpu.mps_since and gpu.reading.problem is None)
    return max(times, default=None)
