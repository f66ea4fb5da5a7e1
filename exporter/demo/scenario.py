"""The simulated node: configuration and state of its daemons and GPUs. The wording of the logs is that of R580."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from exporter.config.settings import Config, DaemonConfig
from exporter.demo.gpus import (
    GIBIBYTE,
    GPU_BYTES,
    GPUS,
    NOTEBOOKS,
    SERVER,
    SERVING,
    TRAINERS,
    Chance,
    SimulatedProcess,
    SimulatedWorkload,
    gpu_reading,
    sm_utilization,
)
from exporter.model import observation as kinds
from exporter.model.daemon import with_declaration
from exporter.model.node import Node
from exporter.model.settings import VISIBLE_DEVICES
from exporter.model.values import made_of
from exporter.policy import START
from exporter.recording import header_of
from exporter.report.text import utc_time

CONTROL_LOG, SERVER_LOG = "control.log", "server.log"

QUERY_SECONDS, RETRY_SECONDS = 30, 2
"""Intervals between queries of a daemon that answers, and of one that does not."""

CLIENTS_LIMIT, MOST_CLIENTS = 12, 8
"""Maximum clients of a server: few, so that a server can be full. A daemon has at most MOST_CLIENTS, if no failure adds
more."""

MOST_REFUSED = 3
"""Clients that a server in FAULT refuses."""

DIES_AFTER_SECONDS = 3

DAEMONS = tuple(
    DaemonConfig(
        pipe_directory=Path(f"/run/nvidia/mps/{name}/pipe"),
        log_directory=Path(f"/run/nvidia/mps/{name}/log"),
        restart_command=START,
        active_thread_percentage=percentage,
        pinned_memory_limits=tuple((device, gibibytes * GIBIBYTE) for device in range(devices)),
    )
    for name, percentage, devices, gibibytes in (
        ("training", 60.0, 3, 48),
        ("inference", 40.0, 1, 64),
        ("notebooks", 25.0, 1, 16),
    )
)


def simulated_config(config: Config) -> Config:
    """Return the configuration with the daemons of the simulated node."""
    return replace(config, daemons=DAEMONS)


def initial_node() -> Node:
    """Return the node before the first observation."""
    daemons = header_of(Config(daemons=DAEMONS)).node().daemons
    return Node(daemons={name: with_declaration(each, clients_limit=CLIENTS_LIMIT) for name, each in daemons.items()})


def context(pid: int, number: int) -> str:
    """Return a client's context as the log names it. Number 0 is the connection of the process."""
    return f"{{PID: {pid}, Context ID: {number}}}"


@dataclass(slots=True)
class SimulatedDaemon:
    """A control daemon and its server. A client uses one GPU, or all GPUs of a group.

    `pid` is None while the daemon is down, and `server` if it has no server. `threads` is the active thread percentage
    of the server, and `default_threads` that of a new one. `fault` has the PIDs of the clients affected by the fault
    that the server handles, and `refused` is how many clients it has refused since. `holder` is the process with an
    open session, which excludes all others.
    """

    name: str
    groups: tuple[tuple[str, ...], ...]
    workloads: tuple[SimulatedWorkload, ...]
    default_threads: float
    memory_limits: Mapping[int, int]
    chance: Chance
    pid: int | None = None
    start_ticks: int = 0
    started: float = 0.0
    server: int | None = None
    threads: float = 100.0
    fault: frozenset[int] | None = None
    refused: int = 0
    hangs: bool = False
    holder: SimulatedProcess | None = None
    keeps_dying_until: float = 0.0
    servers_crash_until: float = 0.0
    log_bytes: dict[str, int] = field(default_factory=lambda: {CONTROL_LOG: 38 << 20, SERVER_LOG: 211 << 20})
    clients: dict[int, SimulatedProcess] = field(default_factory=dict)

    @property
    def gpus(self) -> tuple[str, ...]:
        """Return its GPUs in the order of their ordinals."""
        return tuple(gpu for group in self.groups for gpu in group)

    @property
    def answers(self) -> bool:
        """Return whether it answers queries."""
        return self.pid is not None and not self.hangs and self.holder is None

    def second(self, at: float, free_bytes: Callable[[str], int]) -> Iterator[kinds.Observation]:
        """Yield what it does in a second, if no failure and no operator changes it."""
        if self.pid is None:
            if self.started == 0.0:
                yield from self.start(at)
            return
        if at < self.keeps_dying_until and at - self.started >= DIES_AFTER_SECONDS:
            yield from self.die(at)
            return
        for client in [client for client in self.clients.values() if at >= client.ends_at]:
            yield from self.disconnect(at, client)
        if self.fault is not None:
            yield from self._handle_fault(at, self.fault)
        elif self.answers:
            yield from self._new_clients(at, free_bytes)
        if int(at) % (QUERY_SECONDS if self.answers else RETRY_SECONDS) == 0:
            yield from self.query(at) if self.answers else self._query_in_vain(at)

    # Logs and replies

    def log(self, at: float, text: str) -> kinds.LogLine:
        """Write a line to control.log."""
        return self._line(at, CONTROL_LOG, f"Control {self.pid or 0:5}", text)

    def server_log(self, at: float, text: str) -> kinds.LogLine:
        """Write a line to server.log."""
        return self._line(at, SERVER_LOG, f"Server {self.server or 0:5}", text)

    def query(self, at: float) -> Iterator[kinds.Observation]:
        """Yield the log sizes and the replies to all queries."""
        for file, size in self.log_bytes.items():
            yield kinds.LogFile(at=at, daemon=self.name, file=file, problem=None, size=size, unread=0)
        yield self.log(at, "Cmd:get_server_list")
        replies = {
            "get_server_list": "" if self.server is None else f"{self.server}\n",
            "get_default_active_thread_percentage": f"{self.default_threads:.1f}\n",
            "get_default_client_priority": "0\n",
        }
        for device, limit in self.memory_limits.items():
            replies[f"get_default_device_pinned_mem_limit {device}"] = f"{limit >> 30}G\n"
        if self.server is not None:
            replies[f"get_server_status {self.server}"] = "ACTIVE\n" if self.fault is None else "FAULT\n"
            replies[f"get_client_list {self.server}"] = "".join(f"{pid}\n" for pid in self.clients)
            replies[f"get_active_thread_percentage {self.server}"] = f"{self.threads:.1f}\n"
        for command, reply in replies.items():
            yield self._reply(at, command, reply)

    def _query_in_vain(self, at: float) -> Iterator[kinds.Observation]:
        if self.holder is None:
            yield self._failed(at, code=None, seconds=1.0)
            yield kinds.ControlSocket(at=at, daemon=self.name, listening=True, answers=False)
        else:
            yield self._failed(at, "Cannot send command to MPS control daemon process\n")
            yield made_of(kinds.SessionHolder, self.holder.reading(at), daemon=self.name)

    def _reply(self, at: float, command: str, stdout: str) -> kinds.ControlReply:
        return kinds.ControlReply(at=at, daemon=self.name, command=command, exit_code=0, stdout=stdout, seconds=0.002)

    def _failed(self, at: float, stderr: str = "", code: int | None = 1, seconds: float = 0.002) -> kinds.ControlReply:
        return replace(self._reply(at, "get_server_list", ""), exit_code=code, stderr=stderr, seconds=seconds)

    def _line(self, at: float, file: str, writer: str, text: str) -> kinds.LogLine:
        stamp = utc_time(at).removesuffix("Z").replace("T", " ")
        line = f"[{stamp} {writer}] {text}"
        self.log_bytes[file] += len(line) + 1
        return kinds.LogLine(at=at, daemon=self.name, file=file, line=line)

    # Lifecycle of the daemon and its server

    def start(self, at: float) -> Iterator[kinds.Observation]:
        """Start the daemon. It has no server yet."""
        self.pid, self.start_ticks, self.started = self.chance.new_pid(), int(at * 100), at
        self.hangs, self.holder = False, None
        yield self.log(at, f"Starting control daemon using socket {self.name}/control")
        yield self.log(at, "CUDA MPS Control binary version: 13000")
        visible = {VISIBLE_DEVICES: ",".join(self.gpus)}
        yield made_of(kinds.DaemonProcess, self, at=at, daemon=self.name, uid=0, environment=visible)
        yield from self.query(at)

    def die(self, at: float) -> Iterator[kinds.Observation]:
        """End the daemon, its server and its clients."""
        yield kinds.ProcessExit(at=at, pid=self.pid or 0, start_ticks=self.start_ticks)
        self.pid = self.server = self.fault = self.holder = None
        self.hangs = False
        self.clients.clear()
        yield self._failed(at, "Cannot find MPS control daemon process\n")
        yield kinds.DaemonProcess(at=at, daemon=self.name, pid=None, pid_file_left=True)

    def answer_again(self, at: float) -> Iterator[kinds.Observation]:
        """End a hang or a session that excludes others."""
        self.hangs, self.holder = False, None
        if self.pid is not None:
            yield from self.query(at)

    def set_threads(self, at: float, percentage: float) -> Iterator[kinds.Observation]:
        """Set the active thread percentage of the server, as an operator does."""
        if self.server is None or not self.answers:
            return
        self.threads = percentage
        yield self.log(at, "NEW UI")
        yield self.log(at, f"Cmd:set_active_thread_percentage {self.server} {percentage:g}")
        yield self.log(at, "UI closed")
        yield self._reply(at, f"get_active_thread_percentage {self.server}", f"{percentage:.1f}\n")

    def _handle_fault(self, at: float, affected: frozenset[int]) -> Iterator[kinds.Observation]:
        """Refuse new clients until the last affected client has exited. Then recover, and answer the queries."""
        if self.refused < MOST_REFUSED and self.chance.happens(10):
            self.refused += 1
            client = context(self.chance.new_pid(), 0)
            yield self.server_log(at, f"Server teardown in progress. Refusing to accept new client {client}")
            yield self.server_log(at, f"Failed to accept client {client} with status 807")
        if not affected & self.clients.keys():
            self.fault = None
            for device in range(len(self.groups[0])):
                yield self.server_log(at, f"Destroy server context on device {device} (NVIDIA H200)")
            yield from self.query(at)

    def _start_server(self, at: float) -> Iterator[kinds.Observation]:
        self.server, self.threads = self.chance.new_pid(), self.default_threads
        yield self.log(at, f"Starting new server {self.server} for user {SERVER.uid}")
        yield self.server_log(at, f"Active Threads Percentage set to {self.default_threads:.1f}")
        for device, limit in self.memory_limits.items():
            yield self.server_log(at, f"Device pinned memory limit for device {device} set to 0x{limit:x} bytes")
        yield self.server_log(at, "Server Priority set to 0")
        yield self.log(at, f"NEW SERVER {self.server}: Ready")
        yield SimulatedProcess(self.server, SERVER, self.gpus[:1], 0, at).reading(at)

    # Clients

    def _new_clients(self, at: float, free_bytes: Callable[[str], int]) -> Iterator[kinds.Observation]:
        chance = self.chance
        if at < self.servers_crash_until:
            if int(at) % 2:
                server = chance.new_pid()
                yield self.log(at, f"Starting new server {server} for user 0")
                yield self.log(at + 0.02, f"Server {server} exited with status 1")
        elif len(self.clients) >= CLIENTS_LIMIT:
            if chance.happens(10):
                yield from self.refuse_client(at)
        elif len(self.clients) < MOST_CLIENTS and chance.happens(20):
            group = chance.choice(self.groups)
            gpus = group if chance.happens(3) else (chance.choice(group),)
            client = chance.new_process(chance.choice(self.workloads), gpus, at + chance.uniform(60, 900))
            if all(client.used_bytes <= free_bytes(gpu) for gpu in gpus):
                yield from self.connect(at, client)

    def connect(self, at: float, client: SimulatedProcess) -> Iterator[kinds.Observation]:
        """Connect a client. Start a server for the first one."""
        if self.server is None:
            yield from self._start_server(at)
        self.clients[client.pid] = client
        for number, gpu in enumerate(client.gpus, start=1):
            yield self.server_log(at, f"Client {context(client.pid, number)} connected")
            yield self.server_log(at, f"Device NVIDIA H200 (uuid {gpu}) is associated")
            yield self.server_log(at, f"Status of client {context(client.pid, number)} is ACTIVE")
        yield client.reading(at)
        if client.workload.pod is not None:
            uid, name, namespace = client.workload.pod
            yield kinds.PodFound(at=at, uid=uid, name=name, namespace=namespace, labels={"team": "vision"})

    def disconnect(
        self, at: float, client: SimulatedProcess, *, killed: bool = False, why: str = ""
    ) -> Iterator[kinds.LogLine]:
        """End a client's contexts. If it was killed with a kernel in flight, the server waits for the kernel."""
        del self.clients[client.pid]
        others = sum(len(other.gpus) for other in self.clients.values())
        for number in range(1, len(client.gpus) + 1):
            text = why or f"Number of active client contexts is {others + len(client.gpus) - number}."
            yield self.server_log(at, f"Client {context(client.pid, number)} exiting. {text}")
        if not killed:
            yield self.server_log(at, f"Client process {client.pid} disconnected")

    def refuse_client(self, at: float) -> Iterator[kinds.Observation]:
        """Refuse a client, since the server has its maximum number of clients."""
        yield self.server_log(at, f"Client {context(self.chance.new_pid(), 1)} connected")
        limit = f"Maximum number of clients ({CLIENTS_LIMIT}) reached."
        yield self.server_log(at, f"Failed to accept new client. {limit}")


class Scenario:
    """The state of the simulated node."""

    def __init__(self, seed: int) -> None:
        self.chance = Chance(seed)
        groups = ((GPUS[:2], GPUS[2:3]), (GPUS[3:4],), (GPUS[4:],))
        self.training, self.inference, self.notebooks = self.daemons = tuple(
            SimulatedDaemon(
                config.name,
                gpus,
                workloads,
                config.limits.active_thread_percentage or 100.0,
                config.limits.pinned_memory,
                self.chance,
            )
            for config, gpus, workloads in zip(DAEMONS, groups, (TRAINERS, SERVING, NOTEBOOKS), strict=True)
        )
        self.energy_joules = {gpu: self.chance.uniform(1e8, 9e8) for gpu in GPUS}
        self.gpus_read_at: float | None = None
        self.bypassing: dict[int, SimulatedProcess] = {}
        """Processes that use a GPU without MPS."""
        self.nvml_fails_until = 0.0
        self.faults = 0
        self._pending: list[tuple[float, Callable[[float], Iterable[kinds.Observation]]]] = []

    @property
    def processes(self) -> Sequence[SimulatedProcess]:
        """Return all processes that use a GPU, the clients first."""
        return [*(client for daemon in self.daemons for client in daemon.clients.values()), *self.bypassing.values()]

    def free_bytes(self, gpu: str) -> int:
        """Return the free memory of a GPU."""
        return GPU_BYTES - sum(process.used_bytes for process in self.processes if gpu in process.gpus)

    def nvml_readings(self, at: float) -> Iterator[kinds.Observation]:
        """Yield NVML's readings of the GPUs, and the processes that it lists but no daemon does."""
        seconds = 0.0 if self.gpus_read_at is None else at - self.gpus_read_at
        self.gpus_read_at = at
        for daemon in self.daemons:
            for gpu in daemon.gpus:
                clients = [client for client in daemon.clients.values() if gpu in client.gpus]
                bypassing = [process for process in self.bypassing.values() if gpu in process.gpus]
                load = min(1.0, sm_utilization((*clients, *bypassing)) * self.chance.uniform(0.95, 1.05))
                watts = 115 + 560 * load
                self.energy_joules[gpu] += watts * seconds
                yield gpu_reading(at, gpu, load, watts, self.energy_joules[gpu], daemon.server, clients, bypassing)
        yield from (process.reading(at) for process in self.bypassing.values())

    def later(self, at: float, action: Callable[[float], Iterable[kinds.Observation]]) -> None:
        """Let this happen at a time."""
        self._pending.append((at, action))

    def due(self, at: float) -> Iterator[kinds.Observation]:
        """Yield what happens up to this time, the oldest first."""
        due = sorted((item for item in self._pending if item[0] <= at), key=lambda item: item[0])
        self._pending = [item for item in self._pending if item[0] > at]
        for _, action in due:
            yield from action(at)
