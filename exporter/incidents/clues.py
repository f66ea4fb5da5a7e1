"""Clues to the root cause: clients that disconnected before the fault, and work in flight."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from exporter.incidents.fault_address import find_owner
from exporter.model.daemon import ClaimKind, Daemon
from exporter.model.incident import INSTRUCTIONS, AddressClue, Clues, EarlyDisconnect, Incident, InFlightWork
from exporter.model.launches import ProcessWork, WorkReading, began_ns
from exporter.model.node import Node
from exporter.model.observation import AddressRanges, GpuUuid, ProcessReading
from exporter.model.server import Client, Disconnect, FaultLogBlock
from exporter.model.values import replace
from exporter.parse.log_line import seconds_between
from exporter.state.devices import is_same_or_parent, usable_gpus
from exporter.state.servers import MOST_CLIENTS
from exporter.usage.last_minute import may_belong_to

SECOND_NS = 1_000_000_000

MIN_PROBED_NS = 3 * SECOND_NS
"""How long before the fault the probes must have been attached: they miss kernels that were launched earlier."""

FAILED_NS = 1 * SECOND_NS
"""A synchronisation that failed longer before the fault had another cause. The probes report no spans after it."""

MIN_COVERAGE = 0.9
"""The least part of the time between two readings for which the probes were attached."""

RECENT_NS = 2 * SECOND_NS
"""A reading that is older than this before the fault does not show the work in flight at the fault."""

EARLY_DISCONNECT_SECONDS = 0.5
"""A client that disconnected longer before the fault did not cause it."""

MOST_ACCESSES = 4
"""Failed accesses of one fault that are compared with the address ranges."""

LOG_UNRELIABLE_SECONDS = 600.0
"""For this time after another source contradicted the log, its lines are not enough to suspect a client."""


def gather_clues(node: Node, daemon: Daemon, incident: Incident, block: FaultLogBlock | None) -> Clues:
    """Return the clues that are known now. Only `named` and `in_reset` still change after the incident has settled."""
    clues = incident.clues
    disconnects = [
        disconnect
        for disconnect in daemon.connections.disconnects.values()
        if disconnect.server == incident.server
        and not disconnect.logged_twice
        and _existed(node, daemon, disconnect.pid)
    ]
    in_reset = [client.pid for client in disconnects if client.in_reset and client.at >= incident.detected_at]
    clues = replace(
        clues,
        named=clues.named if block is None or block.named is None else block.named,
        in_reset=tuple(dict.fromkeys((*clues.in_reset, *in_reset)))[:MOST_CLIENTS],
    )
    if incident.settled:
        return clues
    early = {client.pid: client for client in clues.early_disconnects}
    for disconnect in disconnects:
        seconds = _seconds_before(disconnect, incident)
        if disconnect.pid not in incident.affected and 0 <= seconds <= EARLY_DISCONNECT_SECONDS:
            early[disconnect.pid] = _early_disconnect(node, disconnect, seconds)
    # The reason why an earlier run of the exporter did not trust the log is not known to this run.
    restored = node.began_at is not None and incident.detected_at < node.began_at
    return replace(
        clues,
        early_disconnects=tuple(client for pid, client in early.items() if pid not in daemon.clients),
        in_flight_work=_in_flight_work(node, daemon, incident),
        address=_address(node, daemon, incident, early) or clues.address,
        log_unreliable=_log_unreliable(node, daemon, incident) or (clues.log_unreliable and restored),
    )


def _address(node: Node, daemon: Daemon, incident: Incident, early: Collection[int]) -> AddressClue | None:
    """Return what the address of the first failed access of data shows, if the kernel log reports one.

    If the addresses of several accesses do not show the same client, they show none.
    """
    found: list[AddressClue] = []
    candidates = dict.fromkeys((*incident.affected, *early))
    for xid in incident.xids:
        access = xid.access
        if access is None or access.unit == INSTRUCTIONS or _is_foreign(daemon, xid.pid, candidates):
            continue
        on_gpu = [pid for pid in candidates if not _is_elsewhere(node, xid.gpu, pid)]
        readings = {pid: _readings_of(node, pid) for pid in on_gpu}
        readings = {pid: each for pid, each in readings.items() if each}
        known = incident.clues.address if not found else None
        found.append(find_owner(access, xid.at, on_gpu, readings, known))
        if len(found) == MOST_ACCESSES:
            break
    best = {clue.matches[0].pid if clue.matches else None for clue in found}
    alike = {other for clue in found for match in clue.matches[:1] for other in match.alike}
    if len(best - alike) > 1:
        return replace(found[0], matches=())
    return found[0] if found else None


def _is_foreign(daemon: Daemon, pid: int | None, candidates: Collection[int]) -> bool:
    """Return whether the process that an Xid names is none of the daemon. MPS names a client or the server."""
    if pid is None or daemon.runtime.in_foreign_namespace:
        return False
    own = (daemon.servers, daemon.clients, daemon.connections.disconnects, daemon.connections.server_exited_at)
    return pid not in candidates and not any(pid in each for each in own)


def _is_elsewhere(node: Node, gpu: GpuUuid | None, pid: int) -> bool:
    """Return whether NVML has shown a client on other GPUs only."""
    on = {uuid for uuid, each in node.gpus.items() if pid in each.mps_since or pid in each.mps_left}
    return (
        gpu is not None
        and bool(on)
        and not any(is_same_or_parent(node, gpu, (uuid,)) or is_same_or_parent(node, uuid, (gpu,)) for uuid in on)
    )


def _readings_of(node: Node, pid: int) -> tuple[AddressRanges, ...]:
    """Return the readings of the process that has the PID, or had it until it exited."""
    death = node.deaths.get(pid)
    process = node.processes.get(pid) or (None if death is None else death.process)
    readings = node.address_ranges.get(pid, ())
    return tuple(each for each in readings if process is None or each.start_ticks == process.start_ticks)


def suspected_pids(clues: Clues) -> frozenset[int]:
    """Return all PIDs that the clues point at."""
    named = () if clues.named is None else (clues.named,)
    return frozenset((*named, *clues.in_reset, *(client.pid for client in clues.early_disconnects)))


def without(clues: Clues, pids: Collection[int]) -> Clues:
    """Return the clues without those about these processes."""
    return replace(
        clues,
        named=None if clues.named in pids else clues.named,
        in_reset=tuple(pid for pid in clues.in_reset if pid not in pids),
        early_disconnects=tuple(client for client in clues.early_disconnects if client.pid not in pids),
        in_flight_work=tuple(work for work in clues.in_flight_work if work.pid not in pids),
        address=None if clues.address is None else _without_matches(clues.address, pids),
    )


def _without_matches(clue: AddressClue, pids: Collection[int]) -> AddressClue:
    return replace(clue, matches=tuple(match for match in clue.matches if match.pid not in pids))


def _existed(node: Node, daemon: Daemon, pid: int) -> bool:
    """Return whether a source other than the log, which any user can write, showed the client or its end."""
    client = _client(daemon, pid)
    listed = client is not None and client.listed_at is not None
    return (
        listed or pid in node.deaths or any(pid in gpu.mps_since or pid in gpu.mps_left for gpu in node.gpus.values())
    )


def _client(daemon: Daemon, pid: int) -> Client | None:
    return daemon.clients.get(pid) or daemon.connections.recently_disconnected.get(pid)


def _seconds_before(disconnect: Disconnect, incident: Incident) -> float:
    """Return how long before the fault a client disconnected: by the log's timestamps, else by the exporter's."""
    if incident.block_timestamp is None or not disconnect.stamp:
        return incident.detected_at - disconnect.at
    return seconds_between(disconnect.stamp, incident.block_timestamp)


def _early_disconnect(node: Node, disconnect: Disconnect, seconds: float) -> EarlyDisconnect:
    death = node.deaths.get(disconnect.pid)
    return EarlyDisconnect(
        pid=disconnect.pid,
        seconds_before=seconds,
        terminated=disconnect.terminated,
        wait_status=None if death is None else death.wait_status,
        out_of_memory=death is not None and death.out_of_memory,
    )


def _log_unreliable(node: Node, daemon: Daemon, incident: Incident) -> bool:
    """Return whether other sources contradict the log, or lines about clients that disconnected are missing.

    Any user can add lines to it and remove lines from it (measured, R580).
    """
    # A second block that no evidence confirms: one of the two may be forged.
    if _has_unaffected_clients(node, daemon, incident) or daemon.claimed(ClaimKind.FAULT, incident.server):
        return True
    last = daemon.log.contradicted_at
    if last is not None and incident.detected_at - last <= LOG_UNRELIABLE_SECONDS:
        return True
    disconnects = daemon.connections.disconnects
    if any(client.logged_twice and client.server == incident.server for client in disconnects.values()):
        return True
    gone = [pid for pid in incident.affected if pid not in daemon.clients]
    return 0 < sum(pid in disconnects for pid in gone) < len(gone)


def _has_unaffected_clients(node: Node, daemon: Daemon, incident: Incident) -> bool:
    """Return whether a client of the server still runs on the fault's GPUs although the log does not name it.

    A fault affects all clients on its GPU (measured, R580). NVML shows which clients those are.
    """
    lists = (node.gpus[uuid].mps_since for uuid in incident.gpus if uuid in node.gpus)
    before = {pid for listed in lists for pid, since in listed.items() if since < incident.detected_at}
    others = (daemon.clients.get(pid) for pid in before.difference(incident.affected))
    return any(client is not None and client.server == incident.server for client in others)


# -- work in flight ------------------------------------------------------------------------------------------------


class Unknown(Enum):
    """Why it is unknown whether a client had work in flight at the fault."""

    PROBED_TOO_SHORTLY = "The probes were attached less than MIN_PROBED_NS before the fault."
    PROBES_DETACHED = "The probes were detached for a part of the time around the fault."
    OTHER_PROCESS = "The counts are of another process that has or had the PID."
    EARLIER_ERROR = "A synchronisation failed long before the fault. Since then, the probes count no work."
    NO_COUNTS = "The probes counted nothing of the client."
    EARLIER_WORK = "A kernel may still run that the client launched while it was not probed."
    LAUNCHED_AFTERWARDS = "The client launched after the fault, and nothing is open."
    CONTEXT_CLOSED = "A synchronisation failed. Then the client may have closed its context with the open spans."
    NOT_READ_AGAIN = "The client was not read after the fault, and may have launched since the reading before it."


class _Counts(NamedTuple):
    """What the libcuda probes counted before and after a fault, by PID.

    `before` is of the last reading before the fault and `after` of the first one after it. `healthy` has the last
    counts without a failed synchronisation. The probes covered `probed` in all readings but the last two.
    """

    fault_ns: int
    probed: frozenset[int]
    probed_before: frozenset[int]
    before: Mapping[int, ProcessWork]
    before_is_recent: bool
    after: Mapping[int, ProcessWork]
    healthy: Mapping[int, ProcessWork]


def _in_flight_work(node: Node, daemon: Daemon, incident: Incident) -> tuple[InFlightWork, ...]:
    """Return what is known of each affected client. What was known before stays if nothing newer is known."""
    readings, affected = node.launch_history.readings, set(incident.affected)
    known = {work.pid: work for work in incident.clues.in_flight_work if work.pid in affected}
    if not readings:
        return tuple(known.values())
    fault_ns = readings[-1].boot_ns - round((readings[-1].at - incident.detected_at) * SECOND_NS)
    counts = _counts(readings, fault_ns)
    if isinstance(counts, _Counts):
        for process, alive in _affected_processes(node, incident, fault_ns):
            client = _client(daemon, process.pid)
            one_context = len(usable_gpus(node)) == 1 and (client is None or len(client.contexts) <= 1)
            work = _work_of(counts, process, one_context=one_context, alive=alive)
            if isinstance(work, InFlightWork):
                known[work.pid] = work
    return tuple(known.values())


def _affected_processes(node: Node, incident: Incident, fault_ns: int) -> Iterable[tuple[ProcessReading, bool]]:
    """Yield each affected process, and whether it runs. A process that began after the fault only has the same PID."""
    for pid in incident.affected:
        death, process = node.deaths.get(pid), node.processes.get(pid)
        if process is not None and began_ns(process.start_ticks) < fault_ns:
            yield process, True
        elif death is not None and death.process is not None and began_ns(death.process.start_ticks) < fault_ns:
            yield death.process, False


def _counts(readings: Sequence[WorkReading], fault_ns: int) -> _Counts | Unknown:
    """Return the counts around a fault, if the probes were attached all the time."""
    number = sum(reading.boot_ns < fault_ns for reading in readings)
    after = readings[number : number + 1]
    enough = [index for index in range(number) if readings[index].boot_ns <= fault_ns - MIN_PROBED_NS]
    if not enough:
        return Unknown.PROBED_TOO_SHORTLY
    before = readings[enough[-1] : number]
    if any(
        new.seconds * SECOND_NS < MIN_COVERAGE * (new.boot_ns - old.boot_ns) for old, new in pairwise((*before, *after))
    ):
        return Unknown.PROBES_DETACHED
    return _Counts(
        fault_ns=fault_ns,
        probed=frozenset(before[0].watched).intersection(*(reading.watched for reading in before[:-1])),
        probed_before=frozenset(before[-1].watched),
        before={work.pid: work for work in before[-1].processes},
        before_is_recent=fault_ns - before[-1].boot_ns <= RECENT_NS,
        after={work.pid: work for reading in after for work in reading.processes},
        healthy={work.pid: work for reading in before for work in reading.processes if not work.failed_ns},
    )


def _work_of(counts: _Counts, process: ProcessReading, *, one_context: bool, alive: bool) -> InFlightWork | Unknown:
    """Return whether a client had work in flight.

    It is idle only if the probes know of all its work: an unknown kernel may run since before they were attached. They
    saw its first CUDA call, or a successful synchronisation of its only context.
    """
    pid, fault_ns = process.pid, counts.fault_ns
    before, after = counts.before.get(pid), counts.after.get(pid)
    for work in (before, after):
        if work is not None and not may_belong_to(work.first_ns, process):
            return Unknown.OTHER_PROCESS
        if work is not None and 0 < work.failed_ns < fault_ns - FAILED_NS:
            return Unknown.EARLIER_ERROR
    after = after if after is not None and after.first_ns < fault_ns else None
    last = after or before
    if last is None:
        return Unknown.NO_COUNTS
    complete = last.initialized_ns > 0 or (one_context and last.synced_ns > 0)
    if not complete and (pid not in counts.probed or (alive and pid not in counts.probed_before)):
        return Unknown.EARLIER_WORK
    if after is not None or last.failed_ns:
        result = _work_by_reading_after(counts.healthy.get(pid), last, fault_ns)
        idle = isinstance(result, InFlightWork) and not result.in_flight
        return Unknown.EARLIER_WORK if idle and not complete else result
    # A client that has exited may have launched since this reading, but it cannot have synchronised.
    if last.open_ns and counts.before_is_recent:
        return _result(last, fault_ns, in_flight=True)
    return Unknown.NOT_READ_AGAIN


def _work_by_reading_after(healthy: ProcessWork | None, after: ProcessWork, fault_ns: int) -> InFlightWork | Unknown:
    """Return the result by the first reading after the fault.

    The fault may precede even the last reading before its detection, which then is `after`. `healthy` is from before
    the fault in any case.
    """
    if after.open_ns:
        return _result(after, fault_ns, in_flight=after.open_since_ns <= fault_ns)
    if after.launched_ns > fault_ns:
        return Unknown.LAUNCHED_AFTERWARDS
    if after.failed_ns and after.launched_ns:
        idle = healthy is not None and not healthy.open_ns
        if healthy is None or not idle or (after.kernels, after.graphs) != (healthy.kernels, healthy.graphs):
            return Unknown.CONTEXT_CLOSED
    return _result(after, fault_ns, in_flight=False)


def _result(work: ProcessWork, fault_ns: int, *, in_flight: bool) -> InFlightWork:
    launched = 0 < work.launched_ns <= fault_ns
    seconds = (fault_ns - work.launched_ns) / SECOND_NS if launched else None
    return InFlightWork(pid=work.pid, in_flight=in_flight, seconds_since_launch=seconds)
