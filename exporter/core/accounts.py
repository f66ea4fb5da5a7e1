"""What each owner's clients have done: counts that outlive the clients, and are bounded all the same.

A client is put to its owner's account once, when it has connected and it is known who it is, whichever comes last; so
is a fault, once for each owner whom it hit. An owner is forgotten when it has had no client, and no fault, for an hour.
"""

from collections.abc import Collection, Iterable, Mapping

from exporter.core.workloads import workload_of
from exporter.model.event import Event, EventName
from exporter.model.incident import Tenant
from exporter.model.node import Node
from exporter.model.replace import replace
from exporter.model.workload import Account, Workload

FORGOTTEN_SECONDS = 3600.0

MOST_OWNERS = 1024
"""How many have an account; where there are more, whoever used theirs last keeps it."""


def account(before: Node, node: Node, events: Collection[Event]) -> Node:
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


def faulted(node: Node, affected: Iterable[Tenant], suspect: Tenant | None) -> Node:
    """Take a fault to the accounts of those whom it hit, however many clients each had, and of who is suspected."""
    for workload in dict.fromkeys(tenant.workload for tenant in affected):
        node = _used(node, workload, affected=1)
    return _used(node, None if suspect is None else suspect.workload, suspected=1)


def forget(node: Node) -> Node:
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
    known = node.accounts.get(workload, Account(used_at=node.at))
    known = replace(
        known,
        used_at=node.at,
        connected=known.connected + connected,
        faults_affected=known.faults_affected + affected,
        faults_suspected=known.faults_suspected + suspected,
    )
    return replace(node, accounts=_bounded({**node.accounts, workload: known}))


def _bounded(accounts: Mapping[Workload, Account]) -> Mapping[Workload, Account]:
    if len(accounts) <= MOST_OWNERS:
        return accounts
    oldest = min(accounts, key=lambda workload: accounts[workload].used_at)
    return {workload: each for workload, each in accounts.items() if workload != oldest}
