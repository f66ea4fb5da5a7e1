"""Processes: recent exits, and the workloads that clients belong to."""

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from exporter.model.event import Event, EventName
from exporter.model.identity import Workload, WorkloadCounts, WorkloadKind
from exporter.model.incident import ClientDetails, Death
from exporter.model.node import Node
from exporter.model.observation import KernelRecord, PodFound, ProcessExit, ProcessReading
from exporter.model.values import replace
from exporter.parse.cgroup import CGROUP_CACHE_SIZE, CgroupMembership, parse_cgroup
from exporter.parse.kernel_log import parse_kernel_record, parse_oom_kill
from exporter.state.transition import with_latest

REMEMBERED_SECONDS = 60.0
MOST_DEATHS = 4096

DYING_SECONDS = 10.0
"""How long a process that the kernel has killed may take to go: all of its memory is given back first."""


def exit_recorded(node: Node, seen: ProcessExit) -> Node:
    """A process that was watched has gone."""
    return _dead(
        node,
        Death(
            at=seen.at,
            pid=seen.pid,
            start_ticks=seen.start_ticks,
            process=node.processes.get(seen.pid),
            wait_status=seen.wait_status,
        ),
    )


def record_read(node: Node, seen: KernelRecord) -> Node:
    """The kernel tells whom it killed for want of memory; what others wrote into its log is not heard."""
    read = parse_kernel_record(seen.record)
    pid = parse_oom_kill(read.message) if read is not None and read.by_kernel else None
    if pid is None:
        return node
    process = node.processes.get(pid)
    start_ticks = None if process is None else process.start_ticks
    return _dead(node, Death(at=seen.at, pid=pid, start_ticks=start_ticks, process=process, out_of_memory=True))


def prune_exits(node: Node) -> Node:
    """Let go of those who died long ago."""
    kept = {pid: death for pid, death in node.deaths.items() if node.at - death.at <= REMEMBERED_SECONDS}
    return node if len(kept) == len(node.deaths) else replace(node, deaths=kept)


def _dead(node: Node, death: Death) -> Node:
    earlier = node.deaths.get(death.pid)
    known = death if earlier is None or not _same(earlier, death) else _joined(earlier, death)
    return replace(node, deaths=with_latest(node.deaths, death.pid, known, MOST_DEATHS))


def _same(one: Death, other: Death) -> bool:
    """Whether two tell of one process: another may have had its PID before."""
    if one.start_ticks is not None and other.start_ticks is not None:
        return one.start_ticks == other.start_ticks
    return abs(one.at - other.at) <= DYING_SECONDS


def _joined(earlier: Death, death: Death) -> Death:
    """Each may know what the other does not."""
    return replace(
        earlier,
        at=min(earlier.at, death.at),
        start_ticks=death.start_ticks if earlier.start_ticks is None else earlier.start_ticks,
        process=earlier.process or death.process,
        wait_status=death.wait_status if earlier.wait_status is None else earlier.wait_status,
        out_of_memory=earlier.out_of_memory or death.out_of_memory,
    )


_NOBODYS_UNIT = re.compile(r"session-.+\.scope|user@.+\.service|init\.scope|(?:.+_)?slurmstepd\.scope")
"""Units that hold whatever a user, or Slurm, puts there: they tell less than the user's name."""


def belonging_of(process: ProcessReading | None) -> CgroupMembership:
    """Who a process belongs to; to nobody known where it is not known itself."""
    return parse_cgroup("" if process is None else process.cgroup or "")


def workload_of(process: ProcessReading | None) -> Workload | None:
    """The most telling owner of a process: its Slurm job, pod, container, unit or user; None where none is known.

    A pod is named by its UID, which is known at once and for good; its name may be known later, or never.
    """
    return next(iter(owners_of(process).values()), None)


def owners_of(process: ProcessReading | None) -> Mapping[WorkloadKind, Workload]:
    """All owners of a process that are known, the most telling first."""
    if process is None:
        return {}
    user = process.user or (None if process.uid is None else str(process.uid))
    return _owners(process.cgroup or "", user)


@lru_cache(maxsize=CGROUP_CACHE_SIZE)
def _owners(cgroup: str, user: str | None) -> Mapping[WorkloadKind, Workload]:
    owners = parse_cgroup(cgroup)
    unit = None if owners.unit is None or _NOBODYS_UNIT.fullmatch(owners.unit) else owners.unit
    told = (
        (WorkloadKind.SLURM_JOB, owners.slurm_job_id or owners.slurm_job_sluid),
        (WorkloadKind.POD, owners.pod_uid),
        (WorkloadKind.CONTAINER, owners.container),
        (WorkloadKind.UNIT, unit),
        (WorkloadKind.USER, user),
    )
    return {kind: Workload(kind=kind, name=name) for kind, name in told if name}


def pod_of(node: Node, process: ProcessReading | None) -> PodFound | None:
    """The pod of a process, where its name is known."""
    uid = belonging_of(process).pod_uid
    return None if uid is None else node.pods.get(uid)


def pods(node: Node) -> frozenset[str]:
    """The UIDs of all pods to which a known process belongs."""
    uids = (belonging_of(process).pod_uid for process in node.processes.values())
    return frozenset(uid for uid in uids if uid is not None)


def nameless_pods(node: Node) -> frozenset[str]:
    """Those of them whose name is not known."""
    return pods(node) - node.pods.keys()


FORGOTTEN_SECONDS = 3600.0

MOST_OWNERS = 1024
"""How many have an account; where there are more, whoever used theirs last keeps it."""


def count_events(before: Node, node: Node, events: Collection[Event]) -> Node:
    """Take the clients that came, went, or became known between two nodes to their owners' accounts."""
    if not events and node.processes is before.processes:
        return node
    unattributed = set(node.unattributed)
    for event in events:
        if event.event is EventName.CLIENT_CONNECTED and event.pid is not None:
            unattributed.add(event.pid)
        if event.event is EventName.CLIENT_DISCONNECTED and event.pid is not None:
            if event.pid not in unattributed:
                node = _used(node, workload_of(before.processes.get(event.pid)))
            unattributed.discard(event.pid)
    for pid in unattributed & node.processes.keys():
        unattributed.discard(pid)
        node = _used(node, workload_of(node.processes[pid]), connected=1)
    if unattributed == node.unattributed:
        return node
    return replace(node, unattributed=frozenset(unattributed))


def count_fault(node: Node, affected: Iterable[ClientDetails], suspect: ClientDetails | None) -> Node:
    """Take a fault to the accounts of those whom it hit, however many clients each had, and of who is suspected."""
    for workload in dict.fromkeys(tenant.workload for tenant in affected):
        node = _used(node, workload, affected=1)
    return _used(node, None if suspect is None else suspect.workload, suspected=1)


def prune_workload_counts(node: Node) -> Node:
    """Close the accounts of those who have had no client, and no fault, for long."""
    if all(node.at - each.used_at <= FORGOTTEN_SECONDS for each in node.accounts.values()):
        return node
    for workload in _present(node):
        node = _used(node, workload)
    kept = {workload: each for workload, each in node.accounts.items() if node.at - each.used_at <= FORGOTTEN_SECONDS}
    return replace(node, accounts=kept)


def _present(node: Node) -> frozenset[Workload]:
    pids = (pid for daemon in node.daemons.values() for pid in daemon.clients if pid not in node.unattributed)
    workloads = (workload_of(node.processes.get(pid)) for pid in pids)
    return frozenset(workload for workload in workloads if workload is not None)


def _used(node: Node, workload: Workload | None, *, connected: int = 0, affected: int = 0, suspected: int = 0) -> Node:
    """An owner has a client now, or had one up to now. One that has no account gets it with what there is to count."""
    if workload is None or (workload not in node.accounts and not connected + affected + suspected):
        return node
    known = node.accounts.get(workload, WorkloadCounts(used_at=node.at))
    known = replace(
        known,
        used_at=node.at,
        connected=known.connected + connected,
        faults_affected=known.faults_affected + affected,
        faults_suspected=known.faults_suspected + suspected,
    )
    return replace(node, accounts=_bounded({**node.accounts, workload: known}))


def _bounded(accounts: Mapping[Workload, WorkloadCounts]) -> Mapping[Workload, WorkloadCounts]:
    if len(accounts) <= MOST_OWNERS:
        return accounts
    oldest = min(accounts, key=lambda workload: accounts[workload].used_at)
    return {workload: each for workload, each in accounts.items() if workload != oldest}
