"""Evidence of an incident: affected clients, GPUs and Xids, and the clues to its cause."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count, pairwise
from typing import NamedTuple

from exporter.incidents.fault_address import address_clue, is_elsewhere
from exporter.incidents.fault_kernels import (
    SECOND_NS,
    SeenKernels,
    fault_kernels,
    first_sign_ns,
    processes_at,
    seen_kernels,
)
from exporter.incidents.log_reliability import existed, is_log_unreliable
from exporter.model.daemon import Daemon
from exporter.model.incident import ClientDetails, Clues, EarlyDisconnect, Incident, IncidentXid, InFlightWork
from exporter.model.launches import ProcessWork, WorkReading
from exporter.model.node import Node
from exporter.model.observation import GpuUuid, ProcessReading
from exporter.model.server import Client, FaultLogBlock, Server
from exporter.model.values import made_of, replace
from exporter.parse.log_line import seconds_between
from exporter.parse.mps_variables import core_dumps
from exporter.state import devices, known_daemons
from exporter.state.gpus import used_bytes
from exporter.state.processes import cgroup_of, client_id, pod_of, workload_of
from exporter.state.servers import MOST_CLIENTS, last_known
from exporter.state.xids import CLAIM_SECONDS
from exporter.usage.last_minute import may_belong_to

INFER_AFTER_SECONDS = 0.5  # If the log lists no affected clients in this time, they are inferred.

MOST_XIDS = 64


def new_incident(node: Node, daemon: Daemon, server: Server) -> Incident:
    """Return the incident of a fault that was just found. It began with its block, which may have been read earlier."""
    process, block = node.processes.get(server.pid), server.fault_block
    at = node.at if block is None else block.at
    return Incident(
        id=new_id(node, server.pid),
        daemon=daemon.name,
        server=server.pid,
        server_start_ticks=None if process is None else process.start_ticks,
        block_timestamp=None if block is None else block.stamp,
        started_at=at,
        detected_at=at,
    )


def new_id(node: Node, pid: int) -> str:
    """Return the id of an incident that is found now. Two faults of one server can be found at the same time."""
    first = f"{abs(pid)}-{int(node.at * 1000):x}"
    ids = chain((first,), (f"{first}-{number}" for number in count(2)))
    return next(each for each in ids if each not in node.incidents)


def add_details(before: Node, node: Node, incident: Incident) -> Incident:
    """Return the incident with all that is known now. `before` may still know processes that have exited."""
    daemon = node.daemons.get(incident.daemon)
    if daemon is None:
        return incident
    server = daemon.servers.get(incident.server)
    block = None if server is None else server.fault_block
    if block is not None and block.stamp != incident.block_timestamp:
        block = None  # Of a later fault of the same server.
    incident = _add_affected(node, daemon, incident, block)
    incident = replace(incident, gpus=_gpus(node, daemon, incident, block))
    incident = _add_xids(node, daemon, incident)
    if not incident.gpus and (block is None or node.at - incident.detected_at >= INFER_AFTER_SECONDS):
        gpus = _gpus_of_xids(incident, daemon) or _gpus_of_xids(incident)
        incident = replace(incident, gpus=_sorted(node, gpus))
    incident = replace(incident, clues=gather_clues(node, daemon, incident, block))
    incident = _remove_other_users(node, daemon, incident)
    named = (incident.clues.named, *(xid.pid for xid in incident.xids))
    clients = (pid for pid in named if pid is not None and pid in daemon.clients)
    early = (each.pid for each in incident.clues.early_disconnects)
    pids = (*incident.affected, *early, *clients, *incident.clues.unlisted)
    return replace(incident, client_details=client_details(before, node, daemon, pids, incident.client_details))


def _add_affected(node: Node, daemon: Daemon, incident: Incident, block: FaultLogBlock | None) -> Incident:
    """Add the clients that got the sticky error: those in the log, else all that share a GPU with an Xid."""
    logged = () if block is None else (*block.sticky_error, *sorted(block.torn_down.difference(block.sticky_error)))
    if logged:
        known = tuple(pid for pid in incident.affected if pid not in logged) if incident.affected_confirmed else ()
        return _limit_to_affected(replace(incident, affected=(*known, *logged)[:MOST_CLIENTS], affected_confirmed=True))
    if incident.affected_confirmed or incident.settled:
        return incident
    if block is not None and node.at - incident.detected_at < INFER_AFTER_SECONDS:
        return incident
    # All clients in the failure domain of the GPUs with an Xid; without an Xid, those of the only domain. An Xid that
    # names no process of this daemon may be of a process without MPS. So such Xids show one domain or none.
    own, affected = _gpus_of_xids(incident, daemon), frozenset(incident.affected)
    gpus = own or _gpus_of_xids(incident)
    found = devices.failure_domains(node, daemon).get(incident.server, ())
    domains = [each for each in found if not each.upper_bound and (not gpus or each.gpus & gpus)]
    if own or len(domains) <= 1:
        inferred = {pid for each in domains for pid in each.clients}
        return replace(incident, affected=(*incident.affected, *sorted(inferred - affected)))
    # A client that joined the domains of affected clients may have exited.
    is_same = all(each.clients & affected for each in domains)
    return incident if is_same else _limit_to_affected(replace(incident, affected=()))


def _limit_to_affected(incident: Incident) -> Incident:
    blocking = {pid: delay for pid, delay in incident.blocking.items() if pid in incident.affected}
    disconnected = tuple(pid for pid in incident.disconnected if pid in incident.affected)
    return replace(incident, blocking=blocking, disconnected=disconnected)


def _gpus_of_xids(incident: Incident, named: Daemon | None = None) -> set[GpuUuid]:
    """Return the GPUs of the Xids, or of those that name a process of this daemon."""
    xids = (each for each in incident.xids if named is None or (each.pid is not None and is_of(named, each.pid)))
    return {each.gpu for each in xids if each.gpu is not None}


def _add_xids(node: Node, daemon: Daemon, incident: Incident) -> Incident:
    """Add the recent Xids of the incident's GPUs and time that belong to no other process or fault."""
    recent = {(each.number, each.at) for each in node.xids.recent}
    known = [each for each in incident.xids if (each.number, each.at) not in recent]
    others = [each for each in node.incidents.values() if each.id != incident.id]
    others = [each for each in others if abs(each.detected_at - incident.detected_at) <= 2 * CLAIM_SECONDS]
    found = [
        each
        for each in node.xids.recent
        if _may_belong(node, daemon, incident, each)
        # Another fault of its GPU may be closer in time.
        and not any(
            (each.gpu is None or devices.is_same_or_parent(node, each.gpu, other.gpus))
            and abs(each.at - other.detected_at) < abs(each.at - incident.detected_at)
            for other in others
        )
    ]
    xids = (*known, *found)[:MOST_XIDS]
    # By the kernel's clock, which is known from the Xid that was read soonest. The driver logs the first sign at once.
    clock = min((each.at - each.kernel_seconds for each in xids if each.kernel_seconds is not None), default=0.0)
    times = (each.at if each.kernel_seconds is None else clock + each.kernel_seconds for each in xids)
    started_at = max(incident.detected_at - CLAIM_SECONDS, min((incident.detected_at, *times)))
    return replace(incident, xids=xids, started_at=started_at)


def _may_belong(node: Node, daemon: Daemon, incident: Incident, xid: IncidentXid) -> bool:
    if abs(xid.at - incident.detected_at) > CLAIM_SECONDS:
        return False
    if xid.gpu is not None and incident.gpus and not devices.is_same_or_parent(node, xid.gpu, incident.gpus):
        return False
    if xid.gpu in node.gpus and devices.uses_gpu(node, daemon, xid.gpu or "") is False:
        return False
    return xid.pid is None or not _is_of_others(node, daemon, xid.pid)


def _is_of_others(node: Node, daemon: Daemon, pid: int) -> bool:
    """Return whether a process bypasses MPS or belongs to another daemon, as far as that is known."""
    if is_of(daemon, pid) or pid in daemon.connections.disconnects:
        return False
    bypasses = any(pid in gpu.bypassing_processes for gpu in node.gpus.values())
    return bypasses or any(is_of(each, pid) for each in node.daemons.values())


def is_of(daemon: Daemon, pid: int) -> bool:
    """Return whether a process is a server or a client of the daemon, or was one recently."""
    return pid in daemon.servers or pid in daemon.clients or pid in daemon.connections.disconnected_at


def _gpus(node: Node, daemon: Daemon, incident: Incident, block: FaultLogBlock | None) -> tuple[GpuUuid, ...]:
    """Return the affected GPUs: those in the log if its ordinals are known, and those of the affected clients.

    The GPUs of the Xids are the last resort, because an Xid may be of another fault at the same time.
    """
    ordinals = devices.gpus_by_ordinal(node, daemon)
    found = set(incident.gpus)
    if block is not None and block.devices and block.devices <= ordinals.keys():
        found = {ordinals[device] for device in block.devices}
    found.update(*devices.gpus_of_clients(node, daemon, incident.affected).values())
    if not found and len(ordinals) == 1:
        found = set(ordinals.values())
    return _sorted(node, found)


def _sorted(node: Node, gpus: Iterable[GpuUuid]) -> tuple[GpuUuid, ...]:
    indices = {uuid: gpu.reading.index or 0 for uuid, gpu in node.gpus.items()}
    return tuple(sorted(gpus, key=lambda uuid: (indices.get(uuid, 0), uuid)))


def _remove_other_users(node: Node, daemon: Daemon, incident: Incident) -> Incident:
    """Remove processes of other users. An ordinary user's daemon may name any PID, but serves only its own user."""
    clues, address = incident.clues, incident.clues.address
    named = {*incident.affected, *clues.in_reset, *clues.unlisted, *(each.pid for each in clues.early_disconnects)}
    named |= set() if clues.named is None else {clues.named}
    others = known_daemons.of_other_users(daemon, named, node.processes)
    if not others:
        return incident
    if address is not None:
        address = replace(address, matches=tuple(match for match in address.matches if match.pid not in others))
    clues = replace(
        clues,
        named=None if clues.named in others else clues.named,
        in_reset=tuple(pid for pid in clues.in_reset if pid not in others),
        early_disconnects=tuple(client for client in clues.early_disconnects if client.pid not in others),
        in_flight_work=tuple(work for work in clues.in_flight_work if work.pid not in others),
        kernels=tuple(each for each in clues.kernels if each.pid not in others),
        unlisted=tuple(pid for pid in clues.unlisted if pid not in others),
        address=address,
    )
    affected = tuple(pid for pid in incident.affected if pid not in others)
    client_details = {pid: each for pid, each in incident.client_details.items() if pid not in others}
    return _limit_to_affected(replace(incident, clues=clues, affected=affected, client_details=client_details))


def client_details(
    before: Node, node: Node, daemon: Daemon, pids: Iterable[int], details: Mapping[int, ClientDetails]
) -> Mapping[int, ClientDetails]:
    """Return the `details` with those of these clients. Once its user is known, an entry does not change."""
    found: dict[int, ClientDetails] = {}
    used: Mapping[GpuUuid, Mapping[int, int]] | None = None
    for pid in pids:
        known, death = details.get(pid), node.deaths.get(pid)
        process = node.processes.get(pid) or before.processes.get(pid) or (None if death is None else death.process)
        if known is not None and (known.uid is not None or process is None):
            continue
        used = used or {uuid: used_bytes(gpu.reading) for uuid, gpu in node.gpus.items()}
        memory = {uuid: amounts[pid] for uuid, amounts in used.items() if pid in amounts}
        client = daemon.clients.get(pid) or Client(pid=pid, server=0, connected_at=node.at)
        cgroup, pod = cgroup_of(process), pod_of(node, process)
        found[pid] = made_of(
            ClientDetails,
            process,
            cgroup,
            pid=pid,
            client=client_id(client, process),
            workload=workload_of(process),
            pod=None if pod is None else pod.name,
            namespace=None if pod is None else pod.namespace,
            core_dumps=None if process is None else core_dumps(process.environment),
            memory_bytes=memory,
        )
    return {**details, **found} if found else details


# -- clues -------------------------------------------------------------------------------------------------------------


MIN_PROBED_NS = 3 * SECOND_NS
"""How long before the fault the probes must have been attached: they miss kernels that were launched earlier."""

FAILED_NS = 1 * SECOND_NS
"""A synchronisation that failed longer before the fault had another cause. The probes report no spans after it."""

MIN_COVERAGE = 0.9  # The least part of the time between two readings for which the probes were attached.

RECENT_NS = 2 * SECOND_NS
"""A reading that is older than this before the fault does not show the work in flight at the fault."""

EARLY_DISCONNECT_SECONDS = 0.5  # A client that disconnected longer before the fault did not cause it.


def gather_clues(node: Node, daemon: Daemon, incident: Incident, block: FaultLogBlock | None) -> Clues:
    """Return the clues that are known now. Only `named` and `in_reset` still change after the incident has settled."""
    clues = incident.clues
    of_server = (each for each in daemon.connections.disconnects.values() if each.server == incident.server)
    disconnects = [each for each in of_server if not each.logged_twice and existed(node, daemon, each.pid)]
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
        # By the log's timestamps, else by the exporter's.
        seconds = incident.detected_at - disconnect.at
        if incident.block_timestamp is not None and disconnect.stamp:
            seconds = seconds_between(disconnect.stamp, incident.block_timestamp)
        if disconnect.pid not in incident.affected and 0 <= seconds <= EARLY_DISCONNECT_SECONDS:
            death = node.deaths.get(disconnect.pid)
            early[disconnect.pid] = made_of(EarlyDisconnect, disconnect, death, seconds_before=seconds)
    # A client that was on other GPUs only has not caused the fault. It may have been killed with its job.
    gpus = incident.gpus
    others = {pid for pid in early if gpus and all(is_elsewhere(node, gpu, pid) for gpu in gpus)}
    left = tuple(client for pid, client in early.items() if pid not in daemon.clients and pid not in others)
    clues = replace(clues, unlisted=_unlisted(node, daemon, incident), early_disconnects=left)
    incident = replace(incident, clues=clues)
    seen = seen_kernels(node, incident)
    return replace(
        clues,
        in_flight_work=_in_flight_work(node, daemon, incident, seen),
        kernels=fault_kernels(node, incident, seen),
        address=address_clue(node, daemon, incident, early) or clues.address,
        log_unreliable=is_log_unreliable(node, daemon, incident),
    )


def _unlisted(node: Node, daemon: Daemon, incident: Incident) -> tuple[int, ...]:
    """Return the other clients that may have caused a fault with core dumps, also those that only the log shows.

    The cause may have got success, and not be affected, or exit at once.
    """
    if not incident.core_dumps:
        return ()
    earliest, server, gpus = incident.started_at - EARLY_DISCONNECT_SECONDS, incident.server, {*incident.gpus}
    gone = (each for each in daemon.connections.disconnects.values() if each.at >= earliest and not each.terminated)
    here = (each for each in daemon.clients.values() if each.connected_at <= incident.detected_at)
    pids = [each.pid for each in here if each.server == server]
    pids += [each.pid for each in gone if each.server == server]
    known = devices.gpus_of_clients(node, daemon, pids) if gpus else {}
    found = (*incident.clues.unlisted, *(pid for pid in pids if pid not in known or known[pid] & gpus))
    return tuple(pid for pid in dict.fromkeys(found) if pid not in incident.affected)[:MOST_CLIENTS]


# -- work in flight ------------------------------------------------------------------------------------------------


class _Counts(NamedTuple):
    """What the libcuda probes counted before and after a fault, by PID.

    `before` is of the last reading before the fault and `after` of the first one after it. `healthy` has the last
    counts without a failed synchronisation; with core dumps, those at least `MIN_PROBED_NS` before the fault. The
    probes covered `probed` in all readings but the last two.
    """

    fault_ns: int
    core_dumps: bool
    probed: frozenset[int]
    probed_before: frozenset[int]
    before: Mapping[int, ProcessWork]
    before_is_recent: bool
    after: Mapping[int, ProcessWork]
    healthy: Mapping[int, ProcessWork]


def _in_flight_work(
    node: Node, daemon: Daemon, incident: Incident, seen: Mapping[int, SeenKernels]
) -> tuple[InFlightWork, ...]:
    """Return what is known of each affected client. What was known before stays if nothing newer is known."""
    dumps, counts = incident.core_dumps, _counts(node.launch_history.readings, incident)
    known = {work.pid: work for work in incident.clues.in_flight_work if work.pid in incident.affected and not dumps}
    if counts is None:
        return tuple(known.values())
    for process, alive in processes_at(node, (*incident.affected, *incident.clues.unlisted), counts.fault_ns):
        client = last_known(daemon, process.pid)
        one_context = len(devices.usable_gpus(node)) == 1 and (client is None or len(client.contexts) <= 1)
        work = _work_of(counts, process, seen.get(process.pid), one_context=one_context, alive=alive)
        if work is not None:
            known[work.pid] = work
    flights = {pid for pid, each in seen.items() if each.was_in_flight}
    # If the counts and the kernels of a client contradict each other, nothing is certain.
    return tuple(work for pid, work in known.items() if work.in_flight or pid not in flights)


def _counts(readings: Sequence[WorkReading], incident: Incident) -> _Counts | None:
    """Return the counts around a fault, if the probes were attached all the time, and long enough before it."""
    if not readings:
        return None
    fault_ns = first_sign_ns(readings[-1], incident)
    number = sum(reading.boot_ns < fault_ns for reading in readings)
    after = readings[number : number + 1]
    enough = [index for index in range(number) if readings[index].boot_ns <= fault_ns - MIN_PROBED_NS]
    before = readings[enough[-1] : number] if enough else ()
    pairs = pairwise((*before, *after))
    if not before or any(new.seconds * SECOND_NS < MIN_COVERAGE * (new.boot_ns - old.boot_ns) for old, new in pairs):
        return None
    healthy = before[:1] if incident.core_dumps else before
    return _Counts(
        fault_ns=fault_ns,
        core_dumps=incident.core_dumps,
        probed=frozenset(before[0].watched).intersection(*(reading.watched for reading in before[:-1])),
        probed_before=frozenset(before[-1].watched),
        before={work.pid: work for work in before[-1].processes},
        before_is_recent=fault_ns - before[-1].boot_ns <= RECENT_NS,
        after={work.pid: work for reading in after for work in reading.processes},
        healthy={work.pid: work for reading in healthy for work in reading.processes if not work.failed_ns},
    )


def _work_of(
    counts: _Counts, process: ProcessReading, seen: SeenKernels | None, *, one_context: bool, alive: bool
) -> InFlightWork | None:
    """Return whether a client had work in flight; None if that is unknown.

    It is idle only if the probes know of all its work: an unknown kernel may run since before they were attached. They
    saw its first CUDA call, or a successful synchronisation of its only context. What may have ended while they were
    detached, or ended by a query whose answer may have been an error, is no evidence.
    """
    pid, fault_ns = process.pid, counts.fault_ns
    before, after = counts.before.get(pid), counts.after.get(pid)
    for work in (before, after):
        # Since a synchronisation has failed, the probes count no work.
        failed = work is not None and 0 < work.failed_ns < fault_ns - FAILED_NS
        if failed or (work is not None and not may_belong_to(work.first_ns, process)):
            return None
    after = after if after is not None and after.first_ns < fault_ns else None
    last = after or before
    if last is None:
        return None
    # With core dumps, a synchronisation of work from before the probes may succeed at the fault.
    synced = counts.healthy.get(pid) if counts.core_dumps else last
    complete = last.initialized_ns > 0 or (one_context and synced is not None and synced.synced_ns > 0)
    complete = complete and last.hidden_ns <= last.synced_ns
    if not complete and (pid not in counts.probed or (alive and pid not in counts.probed_before)):
        return None
    in_flight = _was_in_flight(counts, last, read_after=after is not None)
    if in_flight is None and seen is not None:
        in_flight = _was_kernel_in_flight(counts, last, seen, read_after=after is not None)
    unsure = last.open_unsure_ns if in_flight else last.answered_ns
    if in_flight is None or unsure or not (in_flight or complete):
        return None
    launched = 0 < last.launched_ns <= fault_ns
    seconds = (fault_ns - last.launched_ns) / SECOND_NS if launched else None
    return InFlightWork(pid=pid, in_flight=in_flight, seconds_since_launch=seconds)


def _was_kernel_in_flight(counts: _Counts, last: ProcessWork, seen: SeenKernels, *, read_after: bool) -> bool | None:
    """Return whether a client had a kernel in flight that its counts do not show; None if this is unknown.

    It was idle if all its launches are recorded and had completed, and if it has copied nothing since it was idle:
    copies have no kernel. With core dumps, a kernel can complete at the fault, the exact time of which is unknown.
    """
    healthy = counts.healthy.get(last.pid)
    copied = healthy is None or healthy.open_ns or (healthy.copies, healthy.transfers) != (last.copies, last.transfers)
    recorded = sum(each.launches for each in seen.client.last) >= last.kernels + last.graphs
    completed = seen.attached and all(0 < each.until_ns < seen.fault_ns for each in seen.client.last)
    certain = completed and recorded and not copied and not counts.core_dumps and (read_after or last.failed_ns > 0)
    return True if seen.was_in_flight else False if certain else None


def _was_in_flight(counts: _Counts, last: ProcessWork, *, read_after: bool) -> bool | None:
    """Return whether a client had work in flight by its last counts; None if they do not show it.

    The fault may precede even the last reading before its detection. `healthy` is from before the fault in any case.
    With core dumps, work completes after the fault: only a client that launched nothing is idle.
    """
    fault_ns, healthy = counts.fault_ns, counts.healthy.get(last.pid)
    if not read_after and not last.failed_ns:
        # A client that has exited may have launched since this reading, but it cannot have synchronised.
        return True if last.open_ns and counts.before_is_recent else None
    if last.open_ns:
        return last.open_since_ns <= fault_ns or (None if counts.core_dumps else False)
    if last.launched_ns > fault_ns:
        return None
    # After a failed synchronisation, the client may have closed its context with the open spans.
    completed = not last.launched_ns or not (last.failed_ns or counts.core_dumps)
    now = (last.kernels, last.graphs, 0)
    was_idle = healthy is not None and now == (healthy.kernels, healthy.graphs, healthy.open_ns)
    return False if completed or was_idle else None
