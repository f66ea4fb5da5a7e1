"""Builders of test data: observations as MPS produces them, nodes after them, and recordings with their truth."""

import gzip
import io
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from exporter.model.action import ActionKind, ActionReason, ActionResult
from exporter.model.contention import Bandwidth, Baseline, ContentionWindow, GpuContention, Pace, Resource
from exporter.model.daemon import RECOVERY_SECONDS, Daemon, RecoveryTimes
from exporter.model.event import Event, EventName
from exporter.model.identity import (
    ProcessIdentity,
    Workload,
    WorkloadKind,
)
from exporter.model.incident import ClientDetails, Incident, IncidentEnd, IncidentKind, RecoveryDelay, Suspect
from exporter.model.launches import WorkReading
from exporter.model.node import Node
from exporter.model.observation import (
    ControlReply,
    ControlSocket,
    DaemonProcess,
    GpuEvent,
    GpuProcess,
    GpuReading,
    LogFile,
    LogLine,
    MigInstance,
    Observation,
    PodFound,
    ProcessExit,
    ProcessReading,
    ProcessState,
    SessionHolder,
    SourceReading,
    UnitState,
)
from exporter.model.reason import Reason, ReasonCode
from exporter.model.server import Disconnect
from exporter.model.settings import (
    ACTIVE_THREAD_PERCENTAGE,
    CLIENT_PRIORITY,
    PINNED_MEMORY_LIMIT,
    VISIBLE_DEVICES,
    Limits,
)
from exporter.model.usage import Account, GpuAttribution, Method, Share, SharedAccount, Split, Usage
from exporter.model.watchdog import ActionCount, Condition, Diagnosis, Quarantine, WatchdogPhase, WatchdogState
from exporter.parse.protocol3 import LIST_CLIENTS, LIST_DEVICES, LIST_NAMESPACES, LIST_PARTITIONS, LIST_SERVERS
from exporter.recording import Header, RecordedDaemon, Recording
from exporter.reducer import reduce, reduce_all
from exporter.state.processes import count_end_of_fault
from exporter.usage.accounting import post_time, post_use
from exporter.usage.contention import FULL_BANDWIDTH
from exporter.usage.last_minute import with_reading
from tests.works import reading, work

AT = 1_000_000.0
DAEMON = "/tmp/nvidia-mps"
MIG_LAYOUT = ((1, "3g.71gb", 60), (2, "4g.71gb", 64))
MIG_UUIDS = ("MIG-055a5b27-613d-8c97-6fb4-99d75c28b520", "MIG-155a5b27-613d-8c97-6fb4-99d75c28b520")
GPU, OTHER_GPU = "GPU-1efa3f60-b0ba-115c-7d58-bd5711d3de4b", "GPU-6edbf013-6106-5444-db3f-e433a41888b9"
CONTROL, SERVER, CLIENT = 441, 513, 600
MIB = 1 << 20
CONTEXT_BYTES, SERVER_BYTES, GPU_BYTES = 516 * MIB, 66 * MIB, 141 << 30
USER_ALICE, USER_BOB = (Workload(kind=WorkloadKind.USER, name=name) for name in ("alice", "bob"))


class Reduced(NamedTuple):
    """The node and the events after observations."""

    node: Node
    events: tuple[Event, ...]

    @property
    def daemon(self) -> Daemon:
        """The first daemon."""
        return next(iter(self.node.daemons.values()))

    def names(self, *omitted: EventName) -> list[EventName]:
        """Return the names of the events in order, without some kinds."""
        return [event.event for event in self.events if event.event not in omitted]

    def of(self, name: EventName) -> list[Event]:
        """Return the events of one kind."""
        return [event for event in self.events if event.event is name]


def node(*daemons: str, expected: bool = True) -> Node:
    """Return a node without observations of its daemons (by default one)."""
    recorded = (
        RecordedDaemon(name=name, pipe_directory=name, log_directory=f"{name}/log", expected=expected)
        for name in daemons or (DAEMON,)
    )
    return Header(daemons=tuple(recorded)).node()


def reduced(*observations: Observation, start: Node | None = None) -> Reduced:
    """Reduce observations, on an empty node or on `start`."""
    present = node() if start is None else start
    events: list[Event] = []
    for observation in observations:
        present, new = reduce(present, observation)
        events.extend(new)
    return Reduced(present, tuple(events))


def reply(
    command: str,
    stdout: str = "",
    *,
    at: float = AT,
    exit_code: int | None = 0,
    stderr: str = "",
    seconds: float = 0.002,
    daemon: str = DAEMON,
) -> ControlReply:
    """The reply of a daemon after 2 ms."""
    return ControlReply(
        at=at, daemon=daemon, command=command, exit_code=exit_code, stdout=stdout, stderr=stderr, seconds=seconds
    )


def servers(*pids: int, at: float = AT, daemon: str = DAEMON) -> ControlReply:
    return reply("get_server_list", _lines(pids), at=at, daemon=daemon)


def clients(*pids: int, server: int = SERVER, at: float = AT, daemon: str = DAEMON) -> ControlReply:
    return reply(f"get_client_list {server}", _lines(pids), at=at, daemon=daemon)


def status(state: str, *, server: int = SERVER, at: float = AT, daemon: str = DAEMON) -> ControlReply:
    return reply(f"get_server_status {server}", f"{state}\n", at=at, daemon=daemon)


def no_daemon(*, at: float = AT, daemon: str = DAEMON) -> ControlReply:
    """The command finds no daemon."""
    stderr = "Cannot find MPS control daemon process\n"
    return reply("get_server_list", exit_code=1, stderr=stderr, at=at, daemon=daemon)


def refusal(*, at: float = AT, daemon: str = DAEMON) -> ControlReply:
    """The daemon refuses a command because another session is open."""
    stderr = "Cannot send command to MPS control daemon process\n"
    return reply("get_server_list", exit_code=1, stderr=stderr, at=at, daemon=daemon)


def silence(*, at: float = AT, daemon: str = DAEMON, command: str = "get_server_list") -> ControlReply:
    """A command times out."""
    return reply(command, exit_code=None, seconds=5.0, at=at, daemon=daemon)


def stamped(text: str, role: str = "Control", pid: int = CONTROL, at: float = AT) -> str:
    """Return a log line in the format of MPS."""
    milliseconds = round((at - AT) * 1000) + 147
    minutes, seconds = divmod(milliseconds // 1000 + 45, 60)
    hours, minutes = divmod(minutes + 8, 60)
    clock = f"{(hours + 15) % 24:02}:{minutes:02}:{seconds:02}.{milliseconds % 1000:03}"
    return f"[2026-11-20 {clock} {role} {pid:5}] {text}"


def control_log(*texts: str, at: float = AT, pid: int = CONTROL, daemon: str = DAEMON) -> tuple[LogLine, ...]:
    return tuple(
        LogLine(at=at, daemon=daemon, file="control.log", line=stamped(text, "Control", pid, at)) for text in texts
    )


def server_log(*texts: str, at: float = AT, server: int = SERVER, daemon: str = DAEMON) -> tuple[LogLine, ...]:
    """A server writes log lines."""
    return tuple(
        LogLine(at=at, daemon=daemon, file="server.log", line=stamped(text, "Server", server, at)) for text in texts
    )


def connecting(pid: int = CLIENT, context: int = 1) -> str:
    """A client connects, and is not accepted yet."""
    return f"Client {{PID: {pid}, Context ID: {context}}} connected"


def active(pid: int = CLIENT, context: int = 1) -> str:
    """A client's context is accepted."""
    return f"Status of client {{PID: {pid}, Context ID: {context}}} is ACTIVE"


def at_work(*pids: int, server: int = SERVER, at: float = AT, daemon: str = DAEMON) -> tuple[Observation, ...]:
    """A daemon answers. It has one server with these clients, and its log is followed."""
    return (
        *control_log("UI closed", at=at, daemon=daemon),
        reply("-v", "CUDA MPS Control binary version: 13000\n", at=at, daemon=daemon),
        servers(server, at=at, daemon=daemon),
        status("ACTIVE", server=server, at=at, daemon=daemon),
        clients(*pids, server=server, at=at, daemon=daemon),
    )


FAULT_BLOCK = (
    "Server is handling a fatal GPU error.",
    "The following devices will be reset:",
    "0",
    "The following client process have a sticky error set:",
    str(CLIENT),
)
"""What a server writes when a fatal fault strikes on device 0."""


def fault(at: float = AT) -> tuple[Observation, ...]:
    """A fatal fault on device 0, which the daemon reports."""
    return (*server_log(*FAULT_BLOCK, at=at), status("FAULT", at=at))


def faulted_client(
    pid: int = CLIENT, name: str | None = "alice", *, kind: WorkloadKind = WorkloadKind.USER
) -> ClientDetails:
    """A client at the time of a fault, with a known workload or without."""
    workload = None if name is None else Workload(kind=kind, name=name)
    return ClientDetails(pid=pid, client=f"{pid}-1", workload=workload)


def suspect(pid: int = CLIENT, confidence: float = 0.62, name: str | None = "alice") -> Suspect:
    """A client that may have caused a fault."""
    return Suspect(
        client=faulted_client(pid, name), confidence=confidence, indications=(Reason(ReasonCode.NAMED_BY_LOG),)
    )


def incident(
    name: str = "f1", *suspects: Suspect, at: float = AT + 3, daemon: str = DAEMON, server: int = SERVER, **known: Any
) -> Incident:
    """An open fault with these other fields."""
    return Incident(id=name, daemon=daemon, server=server, started_at=at, detected_at=at, suspects=suspects, **known)


SENSORS: Mapping[str, Any] = {
    "process_utilization": (),
    "gpu_percent": 99,
    "energy_millijoules": 1_234_500,
    "pci_bus_id": "00000000:00:06.0",
    "driver_version": "580.159.04",
    "cuda_version": "13.0",
    "compute_mode": "default",
    "mig_mode": False,
    "persistence_mode": True,
    "power_milliwatts": 312_500,
    "sm_utilization": 0.625,
    "dram_bandwidth": 0.125,
}
"""Values of NVML other than processes and memory, if it supports all."""


def gpu_reading(
    mps: Mapping[int, int] | Iterable[int] = (),
    *,
    beside: Mapping[int, int] | Iterable[int] = (),
    server: int | None = SERVER,
    at: float = AT,
    gpu: str = GPU,
    index: int = 0,
    name: str = "NVIDIA H200",
    **other: Any,
) -> GpuReading:
    """NVML's reading of a GPU: MPS clients, bypassing processes, and the server.

    Memory is in MiB, by default 1 GiB and a context. For `other` values see SENSORS.
    """
    of_mps, others = _gpu_processes(mps), _gpu_processes(beside)
    serving = () if server is None else (GpuProcess(pid=server, used_bytes=SERVER_BYTES),)
    compute = (*serving, *of_mps, *others)
    return GpuReading(
        at=at,
        gpu=gpu,
        index=index,
        name=name,
        compute_processes=compute,
        mps_processes=of_mps,
        memory_used_bytes=sum(each.used_bytes or 0 for each in compute),
        memory_total_bytes=GPU_BYTES,
        **{"compute_capability": "9.0", "pci_bus_id": f"00000000:{index:02x}:06.0", **other},
    )


def failure(detail: str, code: ReasonCode = ReasonCode.DRIVER_ERROR, **fields: Any) -> Reason:
    """A problem with an external text."""
    return Reason(code, detail=detail, **fields)


def look(source: str = "nvml", *, at: float = AT, problem: Reason | None = None) -> SourceReading:
    """A collection has ended."""
    return SourceReading(at=at, name=source, seconds=0.01, problem=problem)


def denied(path: object) -> Reason:
    """A file without permission to read it."""
    return failure("Permission denied", ReasonCode.PERMISSION_DENIED, subject=str(path))


def absent(path: object) -> Reason:
    """A file that does not exist."""
    return failure("No such file or directory", ReasonCode.NOT_FOUND, subject=str(path))


def not_a_file(path: object) -> Reason:
    return Reason(ReasonCode.WRONG_FILE_TYPE, subject=str(path))


PAUSED = Reason(ReasonCode.PAUSED)
HANGS = Reason(ReasonCode.STILL_RUNNING, seconds=5.0)
UNREADABLE = denied("server.log")

NO_LIMITS: Mapping[str, str] = {}


def process(
    pid: int = CLIENT,
    *,
    at: float = AT,
    ticks: int | None = None,
    uid: int = 1001,
    user: str = "alice",
    command: str = "train.py",
    cgroup: str | None = None,
    job_source: str | None = None,
    environment: Mapping[str, str] | None = NO_LIMITS,
    parent: int | None = None,
) -> ProcessReading:
    """A process as in /proc, by default without limits of its own."""
    return ProcessReading(
        at=at,
        pid=pid,
        start_ticks=pid * 100 if ticks is None else ticks,
        started=AT - 60,
        uid=uid,
        user=user,
        command=command,
        cgroup=cgroup,
        job_source=job_source,
        environment=environment,
        parent=None if parent is None else ProcessIdentity(pid=parent, start_ticks=parent * 100),
    )


def exited(pid: int = CLIENT, *, at: float = AT, ticks: int | None = None) -> ProcessExit:
    return ProcessExit(at=at, pid=pid, start_ticks=pid * 100 if ticks is None else ticks)


def daemon_process(
    pid: int | None = CONTROL,
    *,
    at: float = AT,
    daemon: str = DAEMON,
    unit: str | None = None,
    left: bool | None = None,
) -> DaemonProcess:
    """The pid file names this process, or none."""
    if pid is None:
        return DaemonProcess(at=at, daemon=daemon, pid=None, pid_file_left=left)
    return DaemonProcess(at=at, daemon=daemon, pid=pid, start_ticks=pid * 100, started=AT - 3600, uid=0, unit=unit)


def standing(state: str, pid: int = CONTROL, *, at: float = AT, ticks: int | None = None) -> ProcessState:
    return ProcessState(at=at, pid=pid, start_ticks=pid * 100 if ticks is None else ticks, state=state)


def socket(listening: bool | None, *, at: float = AT, daemon: str = DAEMON) -> ControlSocket:
    return ControlSocket(at=at, daemon=daemon, listening=listening)


def probe(answers: bool | None, *, at: float = AT, daemon: str = DAEMON) -> ControlSocket:
    """Whether the daemon answers the exporter's connection; None if no connection could be made."""
    return ControlSocket(at=at, daemon=daemon, listening=None if answers is None else True, answers=answers)


def holder(pid: int | None = 4000, *, at: float = AT, daemon: str = DAEMON) -> SessionHolder:
    """The process whose session with the daemon is open."""
    if pid is None:
        return SessionHolder(at=at, daemon=daemon)
    ticks = pid * 100
    return SessionHolder(at=at, daemon=daemon, pid=pid, start_ticks=ticks, started=AT - 60, uid=0, user="root")


UNIT = "nvidia-cuda-mps.service"


def unit_state(active: str = "active", *, at: float = AT, unit: str = UNIT, **known: Any) -> UnitState:
    """The state of a unit with these other fields."""
    return UnitState(at=at, unit=unit, **{"load": "loaded", "active": active, "result": "success", **known})


def idle() -> Node:
    """A daemon that answers and has no clients."""
    return reduced(
        *at_work(),
        daemon_process(),
        process(SERVER, user="root", uid=0),
        gpu_reading(**SENSORS),
        *looks(),
        start=node(),
    ).node


def three_clients() -> Node:
    """Three clients of two workloads on two GPUs, and a bypassing process on the second."""
    owners = {600: ("alice", 1001, "train.py"), 601: ("bob", 1002, "vllm"), 602: ("alice", 1001, "eval.py")}
    return reduced(
        *at_work(*owners),
        daemon_process(),
        *(process(pid, user=user, uid=uid, command=command) for pid, (user, uid, command) in owners.items()),
        process(SERVER, user="root", uid=0, command="nvidia-cuda-mps-server"),
        LogFile(at=AT, daemon=DAEMON, file="control.log", size=3 * MIB, unread=0),
        LogFile(at=AT, daemon=DAEMON, file="server.log", problem=UNREADABLE),
        *control_log("Cmd:get_server_list", "UI closed"),
        *_two_gpus(AT),
        *_two_gpus(AT + 2),
        process(801, user="carol", uid=1003, command="jupyter-lab"),
        *looks(at=AT + 2),
    ).node


def full() -> Node:
    """As many clients as fit, and refused ones."""
    pids = range(1000, 1048)
    turned_away = "Failed to accept new client. Maximum number of clients (48) reached."
    return reduced(
        *at_work(*pids),
        daemon_process(),
        *(process(pid) for pid in pids),
        *(line for pid in range(2000, 2016) for line in server_log(connecting(pid), turned_away)),
        gpu_reading(pids),
        *looks(),
    ).node


def daemon_down() -> Node:
    """The daemon of three clients died ten seconds ago."""
    return reduced(
        exited(CONTROL, at=AT + 5),
        no_daemon(at=AT + 15),
        gpu_reading(server=None, at=AT + 15),
        gpu_reading(beside={801: 1024}, server=None, gpu=OTHER_GPU, index=1, at=AT + 15),
        *looks(at=AT + 15),
        start=three_clients(),
    ).node


def no_nvml() -> Node:
    """NVML has read two GPUs and now fails."""
    return reduced(look(at=AT + 12, problem=failure("NVML is not there")), start=three_clients()).node


def gpu_lost() -> Node:
    """NVML reads only the first of two GPUs."""
    return reduced(gpu_reading({600: 1540, 601: 2564}, at=AT + 12), look(at=AT + 12), start=three_clients()).node


def reset_needed() -> Node:
    """A GPU has reported an Xid that needs a reset."""
    uncontained = GpuEvent(at=AT + 3, type=8, xid=95, gpu=OTHER_GPU)
    return reduced(uncontained, look(at=AT + 12), start=three_clients()).node


def faulted() -> Node:
    """After a fatal fault, an affected client still runs."""
    xid = GpuEvent(at=AT + 3, type=8, xid=31, gpu=GPU)
    return reduced(xid, *server_log(*FAULT_BLOCK, at=AT + 3), start=three_clients()).node


def with_incidents(*incidents: Incident, start: Node | None = None, **counted: Any) -> Node:
    """A node with these faults; `counted` has counters of its daemon."""
    present = three_clients() if start is None else start
    daemon = present.daemons[DAEMON]
    daemon = replace(daemon, totals=replace(daemon.totals, **counted))
    return replace(
        present,
        daemons={**present.daemons, DAEMON: daemon},
        incidents={**present.incidents, **{each.id: each for each in incidents}},
    )


def with_living(present: Node, *clients: ClientDetails) -> Node:
    """The node, with the processes of these clients."""
    found = {
        client.pid: process(
            client.pid,
            ticks=int(client.client.rpartition("-")[2], 36),
            user=client.user or "alice",
            command=client.command or "train.py",
        )
        for client in clients
    }
    return replace(present, processes={**present.processes, **found})


def blocked_recovery() -> Node:
    """A fault with two suspects, whose recovery an affected client delays."""
    lasting = incident(
        "f2",
        suspect(600, 0.62),
        suspect(601, 0.2, "bob"),
        kind=IncidentKind.MEMORY,
        affected=(600, 601, 602),
        client_details={601: ClientDetails(pid=601, client="601-1")},
        blocking={601: RecoveryDelay(since=AT + 4), 602: RecoveryDelay(since=AT + 4, until=AT + 5)},
    )
    over = incident("f1", at=AT + 1, ended_at=AT + 2, ending=IncidentEnd.RECOVERED)
    recoveries = RecoveryTimes(within=(0, 0, 0, *(1,) * (len(RECOVERY_SECONDS) - 3)), count=1, seconds=1.0)
    present = with_incidents(
        over, lasting, start=faulted(), faults=2, fault_affected=4, fault_recoveries=recoveries, faults_contained=3
    )
    counted = count_end_of_fault(present, (faulted_client(602),), suspect(600, 0.62))
    return with_living(counted, lasting.details_of(601))


CONTAINER, POD, SLUID = "99f3a16e" * 8, "eab5a334-93fe-48a8-b139-9e8079c1f163", "sEKNKTV3WPV500"


def owned() -> Node:
    """A client of each kind of workload, and two of one pod with a known name."""
    paths = {
        600: f"/kubepods/burstable/pod{POD}/{CONTAINER}",
        601: f"/kubepods/burstable/pod{POD}/{'0' * 64}",
        602: "/system.slice/slurmstepd.scope/job_42/step_0/user/task_0",
        603: f"/system.slice/slurmstepd.scope/{SLUID}/step_0/user/task_0",
        604: f"/system.slice/docker-{CONTAINER}.scope",
        605: "/system.slice/vllm@llama\\x2d70b.service",
        606: "/user.slice/user-1001.slice/session-3.scope",
        607: "/user.slice/user-1001.slice/user@1001.service/app.slice/app.service",
    }
    return reduced(
        *at_work(*paths),
        daemon_process(),
        *(process(pid, cgroup=f"0::{path}\n") for pid, path in paths.items()),
        PodFound(at=AT, uid=POD, name="train-0", namespace="team-a", labels={"team": "vision", "app": "train"}),
        gpu_reading(dict.fromkeys(paths, 1000)),
        gpu_reading({600: 500}, gpu=OTHER_GPU, index=1),
        *looks(),
    ).node


def accounted() -> Node:
    """Two clients have used a GPU, each identified in another way. The rest is unattributed."""
    present = reduced(
        *at_work(CLIENT, CLIENT + 1),
        *(process(pid, user=user) for pid, user in ((CLIENT, "alice"), (CLIENT + 1, "bob"))),
        gpu_reading((CLIENT, CLIENT + 1), energy_millijoules=1000),
    ).node
    parts: dict[tuple[Account, Method | None], float] = {
        (USER_ALICE, Method.FLIGHT): 0.5,
        (USER_BOB, Method.MEASURED): 0.25,
        (SharedAccount.SERVER, Method.FLIGHT): 0.0,
    }
    ledger = post_time(present.usage_totals, GPU, 4_000_000, parts, at=AT + 5)
    lost, caused = (USER_ALICE, Method.FLIGHT), (USER_BOB, Method.FLIGHT)
    ledger = post_use(ledger, GPU, {lost: Usage(lost_us=2_500_000), caused: Usage(caused_us=2_500_000)}, at=AT + 5)
    shares = {
        CLIENT: Share(method=Method.FLIGHT, sm=0.2, error=0.01),
        CLIENT + 1: Share(method=Method.MEASURED, sm=0.1),
    }
    split = Split(at=AT + 10, seconds=60.0, sm=0.4, shares=shares, unattributed=0.1)
    present = replace(present, usage_totals=ledger, splits={GPU: split})
    after = gpu_reading((CLIENT, CLIENT + 1), energy_millijoules=9000, dram_bandwidth=0.1, at=AT + 10)
    return reduced(after, start=present).node


def limited() -> Node:
    """A server whose clients have half of two GPUs and a memory limit on the second. Limits for new servers are lower.

    The daemon's own list has the GPUs in the other order.
    """
    return reduced(
        *server_log(
            "Active Threads Percentage set to 50.0",
            "Device pinned memory limit for device 1 set to 0x80000000 bytes",
            "Device pinned memory limit for device 9 set to 0x80000000 bytes",
        ),
        reply("get_default_active_thread_percentage", "25.0\n"),
        reply("get_default_device_pinned_mem_limit 0", "3G\n"),
        reply("get_default_client_priority", "0\n"),
        process(600, environment={CLIENT_PRIORITY: "1", VISIBLE_DEVICES: "0,1"}),
        process(602, command="eval.py", environment={VISIBLE_DEVICES: "0,1"}),
        reply("device_query --csv", f"0,00:00.0,{OTHER_GPU},NVIDIA H200\n1,00:01.0,{GPU},NVIDIA H200\n"),
        start=three_clients(),
    ).node


def limited_themselves(percentage: str = "50", memory: str = "1=2G") -> Node:
    """Return three clients that were started with limits, 600 with these."""
    own = {pid: {ACTIVE_THREAD_PERCENTAGE: "50", PINNED_MEMORY_LIMIT: "1=2G"} for pid in (601, 602)}
    own[600] = {ACTIVE_THREAD_PERCENTAGE: percentage, PINNED_MEMORY_LIMIT: memory}
    known = (process(pid, environment={VISIBLE_DEVICES: "0,1", **each}) for pid, each in own.items())
    return reduced(*known, start=limited()).node


def memory_filled() -> Node:
    """Clients of two workloads have nearly all memory of a GPU, one of them most of it."""
    owners = {600: "alice", 601: "bob"}
    return reduced(
        *at_work(*owners),
        daemon_process(),
        *(process(pid, user=user) for pid, user in owners.items()),
        gpu_reading({600: 20_000, 601: (GPU_BYTES - SERVER_BYTES) // MIB - 25_000}),
        *looks(),
    ).node


def flight(sm: float, error: float = 0.01) -> Share:
    """A client's share of a GPU's SM time, by the time of its work in flight."""
    return Share(method=Method.FLIGHT, sm=sm, error=error)


def split(
    start: Node, shares: Mapping[int, Share], *, gpu: str = GPU, unattributed: float = 0.0, dram: float | None = 0.1
) -> Node:
    """Return the node with the SM time of the last minute divided among the clients."""
    whole = sum(share.sm for share in shares.values()) + unattributed
    found = Split(at=start.at, seconds=60.0, sm=whole, shares=shares, unattributed=unattributed, dram=dram)
    return replace(start, splits={**start.splits, gpu: found})


SLOW, HEAVY = Pace(1000, 100, 1e5, 3e8, 6e8), Pace(1000, 1000, 1.3e5, 9.9e8, 0)
"""What two clients do in a second on a quiet GPU."""


def contended(
    start: Node,
    slow: int,
    heavy: int,
    *,
    gpu: str = GPU,
    dram: float | None = 0.9,
    is_bound: bool = False,
    unattributed: float = 0.0,
) -> Node:
    """Return the node with a client that is 4.9 times slower than alone, because another one uses up a GPU.

    Without `dram`, only the SMs are known to be busy. If it `is_bound`, the GPU was never quiet before.
    """
    paces = {slow: Pace(100, 10, 1e4, 3.81e8, 6e7), heavy: HEAVY}
    traffic = {} if dram is None else {slow: Bandwidth(0.01, 0.002), heavy: Bandwidth(dram - 0.01, 0.02)}
    window = ContentionWindow(at=start.at, seconds=1.0, paces=paces, traffic=traffic)
    if dram is not None and dram >= FULL_BANDWIDTH:
        window = replace(window, resource=Resource.MEMORY, parts={pid: part for pid, (part, _) in traffic.items()})
    elif dram is not None:
        window = replace(window, doubted={*paces})
    state = GpuContention(
        windows=(window,),
        baselines={slow: Baseline(pace=SLOW, windows=50, is_bound=is_bound), heavy: Baseline(pace=HEAVY, windows=50)},
    )
    node = split(start, {slow: flight(0.004), heavy: flight(0.5)}, gpu=gpu, unattributed=unattributed, dram=dram)
    attribution = {**node.attribution, gpu: GpuAttribution(windows=(node.splits[gpu],))}
    work = WorkReading(at=start.at, boot_ns=1, seconds=1.0, watched=tuple(start.daemons[DAEMON].clients))
    return with_reading(replace(node, contention={**node.contention, gpu: state}, attribution=attribution), work)


def slowed() -> Node:
    """A client on each GPU is slowed down; on the second GPU, it was never alone."""
    return contended(contended(three_clients(), 600, 601), 602, 600, gpu=OTHER_GPU, is_bound=True)


def drifted() -> Node:
    """The same with enforced limits: the server has them, the defaults and two clients do not."""
    present = limited()
    watch = WatchdogState(wanted_limits=Limits(active_thread_percentage=50.0, pinned_memory={1: 2 << 30}), bypassed=2)
    return replace(present, watches={DAEMON: watch})


CRASHED = Diagnosis(
    condition=Condition.DOWN,
    since=AT + 5,
    indications=(Reason(ReasonCode.PROCESS_GONE, pid=CONTROL), Reason(ReasonCode.NO_DAEMON_FOUND)),
)


def watched(present: Node, **known: Any) -> Node:
    """Return the node with this watchdog state of its daemon."""
    return replace(present, watches={DAEMON: WatchdogState(**known)})


def backing_off() -> Node:
    """The daemon died, and a restart failed."""
    failed = ActionCount(kind=ActionKind.RESTART, reason=ActionReason.DOWN, result=ActionResult.FAILED, count=1)
    return watched(
        daemon_down(),
        phase=WatchdogPhase.BACKOFF,
        diagnosis=CRASHED,
        restarts=(AT + 5,),
        last_restart_at=AT + 5,
        failures=1,
        not_before=AT + 20,
        action_counts=(failed,),
    )


def circuit_open() -> Node:
    """The daemon died three times, and restarts are suspended."""
    return watched(
        daemon_down(),
        phase=WatchdogPhase.CIRCUIT_OPEN,
        diagnosis=CRASHED,
        restarts=(AT - 2000, AT, AT + 3, AT + 5),
        last_restart_at=AT + 5,
        circuit_opened_at=AT + 6,
    )


def quarantined() -> Node:
    """A GPU of a daemon that answers needs a reboot."""
    quarantine = Quarantine(at=AT, xid=79, gpu=GPU, action="RESTART_BM")
    return watched(idle(), phase=WatchdogPhase.QUARANTINED, quarantine=quarantine)


def suspended() -> Node:
    """A signal has stopped a server."""
    stopped = Diagnosis(
        condition=Condition.SERVER_SUSPENDED,
        since=AT,
        indications=(Reason(ReasonCode.SERVER_SUSPENDED, server=SERVER, state="T"),),
        process=ProcessIdentity(pid=SERVER, start_ticks=SERVER * 100),
        server=SERVER,
    )
    return watched(three_clients(), diagnosis=stopped)


def launches_counted() -> Node:
    """The launches of two of three clients are counted. The third has a libcuda of its own."""
    busy = work(600, kernels=12_000, graphs=40, flight_ns=90 * 10**9, open_ns=15 * 10**8, launched=AT + 2)
    return reduced(reading(AT + 1, watched=(601,)), reading(AT + 2, busy, watched=(601,)), start=three_clients()).node


def simulated() -> Node:
    """The node of the demo."""
    return replace(three_clients(), simulated=True)


def partitioned() -> Node:
    """A daemon with protocol 3, whose clients have static partitions and limits."""
    processes = {pid: process(pid, environment={}) for pid in (600, 601, 602)}
    rows = "".join(f"{pid},training,{GPU},training/default (0),python\n" for pid in processes)
    return reduced(
        replace(daemon_process(), protocol=3, servers=(SERVER,)),
        replace(gpu_reading(dict.fromkeys(processes, 1540)), driver_version="615.36"),
        reply(LIST_SERVERS, f"name,uid,pid,status,pipe-directory\ntraining,1000,{SERVER},Ready,/x\n"),
        reply(LIST_CLIENTS, f"PID,SERVER,DEVICE,MAWS NS,CMD\n{rows}"),
        reply(LIST_DEVICES, f"Ordinal,Server,PCI ID,Device UUID,Name,Total SMs\n0,training,0,{GPU},NVIDIA H200,132\n"),
        reply(
            LIST_NAMESPACES,
            "name,server,server-status,pinned-memory-limit,active-thread-percentage,client-priority\n"
            "default,training,Ready,2G,50,0\n",
        ),
        reply(
            LIST_PARTITIONS,
            "server,device,name,chunks,sm-count,include-remainder,status,visible-uuid\n"
            f"training,{GPU},large,4,34,false,created,Kp8A\ntraining,{GPU},-,12,98,-,unallocated,-\n",
        ),
        *processes.values(),
    ).node


def mig() -> Node:
    """A GPU with two MIG instances. A daemon serves the first one."""
    first, second = (
        MigInstance(parent=GPU, gpu_instance=number, compute_instance=0, profile=profile, sms=sms)
        for number, profile, sms in MIG_LAYOUT
    )
    whole = replace(
        gpu_reading(power_milliwatts=100_000),
        mig_mode=True,
        instances=MIG_UUIDS,
        compute_processes=None,
        mps_processes=None,
    )
    shared = replace(gpu_reading({600: 1540, 601: 2564}), gpu=MIG_UUIDS[0], index=None, mig=first, pci_bus_id=None)
    empty = replace(gpu_reading(server=None), gpu=MIG_UUIDS[1], index=None, mig=second, pci_bus_id=None)
    return reduced(
        replace(daemon_process(), environment={"CUDA_VISIBLE_DEVICES": MIG_UUIDS[0]}),
        *at_work(600, 601),
        whole,
        shared,
        empty,
        *(process(pid) for pid in (600, 601)),
    ).node


_ALL = (
    *(idle, three_clients, full, daemon_down, no_nvml, gpu_lost, reset_needed, faulted, blocked_recovery),
    *(limited, limited_themselves, drifted, owned),
    *(accounted, slowed),
    *(backing_off, circuit_open, quarantined, suspended, launches_counted, simulated),
    *(partitioned, mig),
)
NODE_MAKERS = {each.__name__: each for each in _ALL}


def looks(*, at: float = AT) -> tuple[SourceReading, ...]:
    """All collectors have succeeded."""
    return tuple(look(source, at=at) for source in ("nvml", "control", "log", "process"))


def _two_gpus(at: float) -> tuple[GpuReading, ...]:
    return (
        gpu_reading({600: 1540, 601: 2564}, at=at, gpm_supported=True),
        gpu_reading({600: 700, 602: 4612}, beside={801: 1024}, gpu=OTHER_GPU, index=1, at=at, gpm_supported=True),
    )


def _lines(pids: Iterable[int]) -> str:
    return "".join(f"{pid}\n" for pid in pids)


def _gpu_processes(used: Mapping[int, int] | Iterable[int]) -> tuple[GpuProcess, ...]:
    if isinstance(used, Mapping):
        return tuple(GpuProcess(pid=pid, used_bytes=mib * MIB) for pid, mib in used.items())
    return tuple(GpuProcess(pid=pid, used_bytes=(1 << 30) + CONTEXT_BYTES) for pid in used)


class Recorded:
    """A recording on disk, plain or gzipped, and its true events."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name.partition(".jsonl")[0]
        self._disconnects: set[tuple[int, Disconnect]] = set()

    def __repr__(self) -> str:
        return self.name

    @cached_property
    def text(self) -> str:
        """The content of the recording."""
        if self.path.suffix == ".gz":
            return gzip.decompress(self.path.read_bytes()).decode()
        return self.path.read_text()

    @cached_property
    def raw(self) -> tuple[dict[str, Any], ...]:
        """The observations as JSON objects, for checks that do not use the parser."""
        return tuple(json.loads(line) for line in self.text.splitlines()[1:])

    @cached_property
    def truth(self) -> dict[str, Any]:
        """What really happened."""
        truth: dict[str, Any] = json.loads((self.path.parent / f"{self.name}.truth.json").read_text())
        return truth

    @cached_property
    def replayed(self) -> Reduced:
        """The node and the events after the whole recording."""
        present, events = Recording(io.StringIO(self.text)).header.node(), list[Event]()
        for after, news in reduce_all(present, self.observations):
            present = after
            events.extend(news)
            for daemon in after.daemons.values():
                self._disconnects.update(daemon.connections.disconnects.items())
        return Reduced(present, tuple(events))

    @property
    def disconnects(self) -> set[tuple[int, Disconnect]]:
        """The disconnects that were reported at any time, by PID."""
        _ = self.replayed
        return self._disconnects

    @cached_property
    def observations(self) -> tuple[Observation, ...]:
        return tuple(Recording(io.StringIO(self.text)).observations())

    def cut(self, at: float) -> str:
        """Return the recording that a recorder would have written until this time."""
        header, *rest = self.text.splitlines(keepends=True)
        return header + "".join(line for line in rest if json.loads(line)["at"] < at)


def _recordings() -> tuple[Recorded, ...]:
    directories = [Path(__file__).parent / "recordings"]
    if os.environ.get("CUDA_MPS_EXPORTER_RECORDINGS"):
        directories.append(Path(os.environ["CUDA_MPS_EXPORTER_RECORDINGS"]))
    files = (path for directory in directories for path in sorted(directory.glob("*.jsonl*")))
    return tuple(Recorded(path) for path in files if path.name.endswith((".jsonl", ".jsonl.gz")))


RECORDINGS = _recordings()
"""Every recording of real life, with those in CUDA_MPS_EXPORTER_RECORDINGS, if that names a directory."""


def scenario(name: str) -> Recorded:
    return next(each for each in RECORDINGS if each.name == name)


def with_fields(daemon: Daemon, **known: object) -> Daemon:
    """Return the daemon with these values; `group__field` is a field of one of its groups."""
    for name, value in known.items():
        group, _, field = name.partition("__")
        new = replace(getattr(daemon, group), **{field: value}) if field else value
        daemon = replace(daemon, **{group: new})  # type: ignore[arg-type]
    return daemon


def changed(present: Node, **known: Any) -> Node:
    """Return the node with these values of its daemon."""
    return replace(present, daemons={DAEMON: with_fields(present.daemons[DAEMON], **known)})
