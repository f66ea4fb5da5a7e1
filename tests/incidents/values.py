"""Builders of incidents as the reducer makes them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from exporter.model.identity import Workload, WorkloadKind
from exporter.model.incident import (
    ClientDetails,
    Clues,
    Incident,
    IncidentEnd,
    IncidentKind,
    IncidentXid,
    RecoveryDelay,
    Refusal,
    Suspect,
)
from exporter.model.kernels import FaultKernels, KernelName, LaunchedKernel
from exporter.model.reason import Reason, ReasonCode
from tests.builders import AT, DAEMON, GPU, MIB, SERVER

HOSTILE = (
    "a\nb",
    "\x1b[31mred",
    "<script>alert(1)</script>",
    "\u202egnp.exe",
    "x" * 10_000,
    "\udcff",
    '"}, {"id": "forged',
    "tab\tbed\0",
)
"""Names that a workload may choose."""


CUT_OFF = Reason(ReasonCode.CONTEXTS_ENDED_BEFORE_FAULT, seconds=0.12)


def faulted_client(pid: int = 600, **known: Any) -> ClientDetails:
    """Return a client with typical details."""
    usual: Mapping[str, Any] = {"user": "alice", "uid": 1001, "command": "train.py", "memory_bytes": {GPU: 1540 * MIB}}
    return ClientDetails(pid=pid, client=f"{pid}-10", **{**usual, **known})


def suspect(pid: int, confidence: float, *indications: Reason) -> Suspect:
    named = (Reason(ReasonCode.NAMED_BY_LOG),)
    return Suspect(client=faulted_client(pid), confidence=confidence, indications=indications or named)


FAULT_NS = 10_000_000_000_000


def launched(*names: str, seconds: float = 0.012, **known: Any) -> LaunchedKernel:
    """Return a kernel that was launched before a fault, or a graph of several, and never completed before."""
    kernels = tuple(KernelName(raw=f"_Z{len(each)}{each}v", short=each) for each in names)
    named = {"name": kernels[0]} if len(names) == 1 else {"nodes": kernels, "is_graph": bool(names)}
    at = FAULT_NS - round(seconds * 1e9)
    return LaunchedKernel(**{"launches": 1, "since_ns": at, "last_ns": at, **named, **known})


def fault_kernels(pid: int, *in_flight: LaunchedKernel, **known: Any) -> FaultKernels:
    """Return the kernels of a client at a fault, which it also launched last."""
    usual = {"in_flight_count": len(in_flight), "last": in_flight, "launches_since_ns": 1}
    return FaultKernels(**{"pid": pid, "fault_ns": FAULT_NS, "in_flight": in_flight, **usual, **known})


def incident(**known: Any) -> Incident:
    """Return a memory fault that affects two clients. The server is still in FAULT."""
    usual: Mapping[str, Any] = {
        "id": "513-1a",
        "daemon": DAEMON,
        "server": SERVER,
        "started_at": AT,
        "detected_at": AT + 0.125,
        "kind": IncidentKind.MEMORY,
        "gpus": (GPU,),
        "affected": (600, 601),
        "affected_confirmed": True,
        "client_details": {pid: faulted_client(pid) for pid in (600, 601)},
    }
    return Incident(**{**usual, **known})


def ended(ending: IncidentEnd = IncidentEnd.RECOVERED, **known: Any) -> Incident:
    return incident(**{"ending": ending, "ended_at": AT + 4.25, "settled": True, **known})


def blocked(**known: Any) -> Incident:
    """Return an incident that one client delays and another delayed before. Two new clients were refused."""
    usual: Mapping[str, Any] = {
        "client_details": {
            600: faulted_client(
                600, workload=Workload(kind=WorkloadKind.JOB, name="42"), job_manager="slurm", job_id="42"
            ),
            601: faulted_client(601, user="bob", uid=1002, command="vllm"),
        },
        "xids": (IncidentXid(at=AT, number=31, gpu=GPU, pid=600, name="train.py"),),
        "suspects": (suspect(600, 0.85, CUT_OFF), suspect(601, 0.15)),
        "refused": (Refusal(at=AT + 1, pid=700), Refusal(at=AT + 2, pid=None)),
        "refused_count": 2,
        "blocking": {600: RecoveryDelay(since=AT, until=AT + 2), 601: RecoveryDelay(since=AT)},
    }
    return incident(**{**usual, **known})


def crowded(clients: int = 400, name: str = "train.py") -> Incident:
    """Return a fault with many affected clients. All delay recovery and are equally likely suspects."""
    pids = range(1000, 1000 + clients)
    client_details = {pid: faulted_client(pid, command=name, user=name, unit=name, pod=name) for pid in pids}
    return incident(
        affected=tuple(pids),
        client_details=client_details,
        suspects=tuple(
            Suspect(client=each, confidence=0.01, indications=(Reason(ReasonCode.NAMED_BY_LOG),))
            for each in client_details.values()
        ),
        blocking={pid: RecoveryDelay(since=AT) for pid in pids},
        refused=tuple(Refusal(at=AT, pid=pid) for pid in range(5000, 5256)),
        refused_count=9000,
    )


def hostile(name: str) -> Incident:
    """Return an incident in which each name that a workload can choose is this name."""
    bad = faulted_client(600, command=name, user=name, pod=name, workload=Workload(kind=WorkloadKind.POD, name=name))
    return replace(
        blocked(),
        id=name,
        daemon=name,
        gpus=(name,),
        xids=(IncidentXid(at=AT, number=31, gpu=name, pid=600, name=name),),
        client_details={600: bad, 601: bad},
        suspects=(replace(suspect(600, 0.9, Reason(ReasonCode.UNSPECIFIED, text=name)), client=bad),),
        clues=Clues(kernels=(fault_kernels(600, launched(name)),)),
    )


def confidences(of: Incident) -> dict[int, float]:
    return {each.client.pid: each.confidence for each in of.suspects}
