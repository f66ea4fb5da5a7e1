"""Whose work each process is, and which pods are still without a name."""

import re
from collections.abc import Mapping
from functools import lru_cache

from exporter.model.node import Node
from exporter.model.observation import PodFound, ProcessReading
from exporter.model.workload import Workload, WorkloadKind
from exporter.parse.cgroup import CGROUP_CACHE_SIZE, CgroupMembership, parse_cgroup

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
