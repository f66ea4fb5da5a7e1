"""Nodes that the page shows, as status inputs."""

from collections.abc import Iterable
from dataclasses import replace

from exporter.history import SAMPLE_SECONDS, Points, Sample
from exporter.model.action import ActionKind, ActionReason, ActionResult
from exporter.model.event import Event, EventName
from exporter.model.identity import Workload, WorkloadKind
from exporter.model.incident import ClientDetails, Clues, IncidentEnd, IncidentKind, IncidentXid, RecoveryDelay, Suspect
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.reason import Reason, ReasonCode
from exporter.model.watchdog import ActionCount, LastAction
from exporter.recent import MAX_POINTS, POINT_SECONDS, with_points
from exporter.report.document_parts import ROOT
from exporter.view import StatusInput, View
from exporter.watchdog.context import DaemonPolicy, Policy
from tests.builders import (
    AT,
    CRASHED,
    DAEMON,
    GPU,
    OTHER_GPU,
    PAUSED,
    at_work,
    circuit_open,
    daemon_down,
    daemon_process,
    faulted,
    flight,
    gpu_reading,
    incident,
    limited,
    look,
    looks,
    memory_filled,
    node,
    process,
    quarantined,
    reduced,
    reply,
    three_clients,
    watched,
    with_incidents,
    with_living,
)
from tests.builders import idle as idle_node
from tests.builders import split as split_of
from tests.incidents.values import fault_kernels, launched
from tests.kernels import client, use, with_kernels

JOB = Workload(kind=WorkloadKind.JOB, name="42")
TRAINER = ClientDetails(pid=700, client="700-1", user="alice", command="python3", workload=JOB, memory_bytes={GPU: 1})
VLLM = ClientDetails(pid=601, client="601-1", user="bob", command="vllm")
CUT_OFF = Suspect(
    client=TRAINER,
    confidence=0.96,
    indications=(Reason(ReasonCode.CONTEXTS_ENDED_BEFORE_FAULT, seconds=0.12),),
)
WOULD_RESTART = LastAction(kind=ActionKind.RESTART, reason=ActionReason.DOWN, begun=False)
UNIT = "nvidia-cuda-mps.service"
POLICY = Policy(daemon_policies={DAEMON: DaemonPolicy(unit=UNIT)})


def hour(until: float) -> tuple[Sample, ...]:
    """Return the samples of 58 minutes. For some, the exporter did not run, or could not read the GPUs."""
    minutes = (back for back in reversed(range(116)) if not 40 < back < 52)
    return tuple(_sample(until - SAMPLE_SECONDS * back, back) for back in minutes)


def _sample(at: float, back: int) -> Sample:
    ratio = None if 70 < back < 80 else (1 + back // 9 % 7) / 10
    return Sample(at=at, clients=3 + back // 9, memory_ratio=ratio, sm_ratio=ratio)


def minutes(present: Node) -> Points:
    """Return points of ten minutes, in which the use of all GPUs rises and falls. Some could not be taken."""
    recent: Points = ()
    for back in reversed([*range(9), *range(12, MAX_POINTS)]):
        at, part = present.at - POINT_SECONDS * back, (3 + 7 * back % 29) / 31
        gpus = {
            uuid: replace(
                gpu,
                reading=replace(
                    gpu.reading,
                    sm_utilization=part,
                    memory_used_bytes=int(part * (gpu.reading.memory_total_bytes or 0)),
                ),
            )
            for uuid, gpu in present.gpus.items()
        }
        recent = with_points(recent, View(replace(present, at=at, gpus=gpus)))
    return recent


def status_input(present: Node, *, after: float = 1.0, **known: object) -> StatusInput:
    """Return the input of the page for a node, shortly after its last observation."""
    shown = StatusInput(
        node=present,
        samples=hour(present.at),
        at=present.at + after,
        host="node1",
        incidents=tuple(sorted(present.incidents.values(), key=lambda each: -each.started_at)),
        policy=POLICY,
        viewer=ROOT,
    )
    return replace(shown, **known)  # type: ignore[arg-type]


def idle() -> StatusInput:
    """Return a node without daemons."""
    return status_input(idle_node())


def busy() -> StatusInput:
    """Return clients of several users. One is on both GPUs and joins them. One process bypasses MPS."""
    return status_input(three_clients(), events=EVENTS)


def attributed() -> StatusInput:
    """Return a node with attributed SM time. On one GPU, the bandwidth is used up."""
    first = split_of(limited(), {600: flight(0.48, 0.012), 601: flight(0.004, 0.002)}, unattributed=0.02, dram=0.91)
    present = split_of(first, {602: flight(0.11), 801: flight(0.3)}, gpu=OTHER_GPU)
    known = client(600, use("ampere_sgemm_128x64_tn", 0.62), use(None, 0.2, nodes=("softmax", "bias")))
    return status_input(with_kernels(present, known, client(601, use(None))), recent=minutes(present))


def fault() -> StatusInput:
    """Return a server in FAULT with a blocking client, and past faults."""
    lasting = incident(
        "513-2",
        CUT_OFF,
        Suspect(client=VLLM, confidence=0.02, indications=(Reason(ReasonCode.NAMED_BY_XID),)),
        kind=IncidentKind.CLIENT_KILLED,
        gpus=(GPU,),
        xids=(IncidentXid(at=AT + 3, number=31, gpu=GPU, pid=601, name="vllm"),),
        affected=(600, 601, 602),
        affected_confirmed=True,
        client_details={601: VLLM, 700: TRAINER},
        blocking={601: RecoveryDelay(since=AT + 4)},
        refused_count=1,
    )
    over = incident("513-1", at=AT - 500, ended_at=AT - 499, ending=IncidentEnd.RECOVERED, affected=(598, 599))
    present = with_incidents(over, lasting, start=replace(faulted(), incidents={}), faults=2, fault_affected=5)
    return status_input(with_living(present, VLLM), after=45, events=EVENTS)


def dead() -> StatusInput:
    """Return a dead daemon with a watchdog that only observes."""
    observed = ActionCount(kind=ActionKind.RESTART, reason=ActionReason.DOWN, result=ActionResult.OBSERVED, count=1)
    present = watched(daemon_down(), diagnosis=CRASHED, last_action=WOULD_RESTART, action_counts=(observed,))
    return status_input(present, events=EVENTS)


def nothing_collected() -> StatusInput:
    """Return a node before the first collection."""
    return status_input(node())


def no_daemon() -> StatusInput:
    """Return a node on which no daemon is expected."""
    return status_input(replace(idle_node(), daemons={}))


def paused() -> StatusInput:
    """Return a node with a paused exporter."""
    return status_input(reduced(look(problem=PAUSED, at=AT + 1), start=idle_node()).node)


def circuit_opened() -> StatusInput:
    """Return a daemon with an open circuit."""
    return status_input(circuit_open())


def stalled() -> StatusInput:
    """Return a node with a stalled main loop."""
    return status_input(idle_node(), stalled_seconds=95.0)


def quarantine() -> StatusInput:
    """Return a daemon with a GPU that needs a reboot."""
    return status_input(quarantined())


def filled() -> StatusInput:
    """Return a GPU with little free memory, most of which one workload has."""
    return status_input(memory_filled(), events=EVENTS)


def full(gpus: int = 8, clients: int = 48) -> StatusInput:
    """Return a server on each GPU without free client slots, and many workloads with kernels and many events."""
    seen = [each for number in range(gpus) for each in _server_of(number, clients)]

    present = reduced(*seen, *looks(), start=node(*(f"/run/mps/{number}" for number in range(gpus)))).node
    present = with_kernels(present, *(client(pid, *[use("ampere_sgemm_128x64_tn")] * 5) for pid in present.processes))
    events = tuple(
        replace(each, at=AT - 900 - 7 * number, daemon=f"/run/mps/{number % gpus}")
        for number in range(400)
        for each in EVENTS
    )
    return status_input(present, samples=hour(AT), events=events, recent=minutes(present))


def overwhelmed() -> StatusInput:
    """Return the same with many faults, affected clients, suspects and blocking clients."""
    lasting = fault().incidents[0]
    client_details = {
        pid: replace(VLLM, pid=pid, command="python3.11", workload=JOB) for pid in range(10**6, 10**6 + 48)
    }
    struck_many = replace(
        lasting,
        affected=tuple(client_details),
        client_details=client_details,
        suspects=tuple(replace(CUT_OFF, client=each) for each in client_details.values()),
        blocking=dict.fromkeys(client_details, RecoveryDelay(since=AT)),
    )
    over = replace(struck_many, ending=IncidentEnd.RECOVERED, ended_at=AT + 9, blocking={})
    open_ones = (replace(struck_many, id=f"open-{number}") for number in range(2))
    past = (replace(over, id=f"over-{number}") for number in range(30))
    return replace(full(), incidents=(*open_ones, *past), events=EVENTS * 20)


def hostile() -> StatusInput:
    """Return a node with hostile names."""
    names = (
        "<script>document.title='owned';alert(1)</script>",
        "\"'><img src=x onerror=alert(1)>",
        "\u202egnp.exe\x1b[31m\x00\n\r\u2028{{7*7}}",
        "x" * 4000,
        "שלום עולם" * 20,
        "Z\u0301\u0302\u0303\u0304\u0305\u0306\u0307" * 500,
    )
    pids = range(600, 600 + len(names))
    people: Iterable[Observation] = (
        process(pid, command=name, user=name) for pid, name in zip(pids, names, strict=True)
    )
    present = reduced(*at_work(*pids), daemon_process(), *people, gpu_reading(pids), *looks()).node
    guilty = ClientDetails(pid=600, client="600-1", command=names[0], user=names[1])
    open_one = incident(
        names[1],
        Suspect(client=guilty, confidence=0.9, indications=(Reason(ReasonCode.UNSPECIFIED, text=names[0]),)),
        affected=tuple(pids),
        client_details={600: guilty},
        clues=Clues(
            kernels=tuple(fault_kernels(pid, launched(name)) for pid, name in zip(pids[:3], names, strict=False))
        ),
        blocking={600: RecoveryDelay(since=AT + 4)},
    )
    happened = Event(
        at=AT, event=EventName.WATCHDOG_WAITS, daemon=names[0], reason=Reason(ReasonCode.UNSPECIFIED, text=names[1])
    )
    present = split_of(present, {600: flight(0.5)}, dram=0.9)
    present = with_kernels(present, *(client(pid, use(name)) for pid, name in zip(pids, names, strict=True)))
    present = replace(present, incidents={open_one.id: open_one})
    return status_input(present, events=(happened,), host=names[0])


EVENTS = (
    Event(at=AT + 6, event=EventName.WATCHDOG_WOULD_ACT, daemon=DAEMON, action="restart", reason="down"),
    Event(at=AT + 5, event=EventName.DAEMON_LOST, daemon=DAEMON, reason="died"),
    Event(at=AT + 4, event=EventName.CLIENT_CONNECTED, daemon=DAEMON, pid=600),
    Event(at=AT - 60, event=EventName.DAEMON_UP, daemon=DAEMON),
)

INPUTS = {
    each.__name__: each
    for each in (
        idle,
        busy,
        attributed,
        fault,
        dead,
        nothing_collected,
        no_daemon,
        paused,
        circuit_opened,
        quarantine,
        filled,
        stalled,
        hostile,
    )
}


def _gpu_of(number: int) -> str:
    return f"GPU-{number:08x}-b0ba-115c-7d58-bd5711d3de4b"


def _server_of(number: int, clients: int) -> Iterable[Observation]:
    daemon, server = f"/run/mps/{number}", 500 + number
    pids = range(1_000_000 + 1000 * number, 1_000_000 + 1000 * number + clients)
    yield from at_work(*pids, server=server, daemon=daemon)
    yield reply("device_query --csv", f"0,00:00.0,{_gpu_of(number)},NVIDIA H200\n", daemon=daemon)
    yield from (
        process(
            pid, user=f"user{pid % 7}", command="python3.11", cgroup=f"0::/system.slice/slurmstepd.scope/job_{pid}\n"
        )
        for pid in pids
    )
    yield gpu_reading(dict.fromkeys(pids, 1500), server=server, gpu=_gpu_of(number), index=number)
