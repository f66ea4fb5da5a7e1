"""A simulated control daemon and its server: what they do, log and answer. The wording is that of R580."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from exporter.demo.workloads import SERVER, ProcessFactory, SimulatedProcess, SimulatedWorkload
from exporter.model.observation import (
    ControlReply,
    ControlSocket,
    DaemonProcess,
    LogFile,
    LogLine,
    Observation,
    PodFound,
    ProcessExit,
    SessionHolder,
)
from exporter.model.settings import VISIBLE_DEVICES, Limits
from exporter.report.text import utc_time

CONTROL_LOG, SERVER_LOG = "control.log", "server.log"

QUERY_SECONDS, RETRY_SECONDS = 30, 2
"""Intervals between queries of a daemon that answers, and of one that does not."""

MOST_REFUSED = 3
"""Clients that a server in FAULT refuses."""


@dataclass(slots=True)
class SimulatedDaemon:
    """A control daemon and its server. A client uses one GPU, or all GPUs of a group."""

    name: str
    groups: tuple[tuple[str, ...], ...]
    workloads: tuple[SimulatedWorkload, ...]
    limits: Limits
    clients_limit: int
    factory: ProcessFactory
    pid: int | None = None
    """None while the daemon is down."""
    start_ticks: int = 0
    started: float = 0.0
    server: int | None = None
    """PID of the server, None if there is none."""
    threads: float = 100.0
    """Active thread percentage of the server."""
    fault: frozenset[int] | None = None
    """PIDs of the clients affected by the fault that the server handles."""
    refused: int = 0
    """Clients that the server has refused while it handles the fault."""
    hangs: bool = False
    holder: SimulatedProcess | None = None
    """The process with an open session, which excludes all others."""
    dies_after_start: bool = False
    servers_crash_until: float = 0.0
    log_bytes: dict[str, int] = field(default_factory=lambda: {CONTROL_LOG: 38 << 20, SERVER_LOG: 211 << 20})
    clients: dict[int, SimulatedProcess] = field(default_factory=dict)

    @property
    def gpus(self) -> tuple[str, ...]:
        """Return its GPUs in the order of their ordinals."""
        return tuple(gpu for group in self.groups for gpu in group)

    @property
    def default_threads(self) -> float:
        """Return the active thread percentage of a new server."""
        return self.limits.active_thread_percentage or 100.0

    @property
    def answers(self) -> bool:
        """Return whether it answers queries."""
        return self.pid is not None and not self.hangs and self.holder is None

    # Logs and replies

    def log(self, at: float, text: str) -> LogLine:
        """Write a line to control.log."""
        return self._line(at, CONTROL_LOG, f"Control {self.pid or 0:5}", text)

    def server_log(self, at: float, text: str) -> LogLine:
        """Write a line to server.log."""
        return self._line(at, SERVER_LOG, f"Server {self.server or 0:5}", text)

    def query(self, at: float) -> Iterator[Observation]:
        """Yield the log sizes and the replies to all queries."""
        for file, size in self.log_bytes.items():
            yield LogFile(at=at, daemon=self.name, file=file, problem=None, size=size, unread=0)
        yield self.log(at, "Cmd:get_server_list")
        yield self._reply(at, "get_server_list", "" if self.server is None else f"{self.server}\n")
        yield self._reply(at, "get_default_active_thread_percentage", f"{self.default_threads:.1f}\n")
        yield self._reply(at, "get_default_client_priority", "0\n")
        for device, limit in self.limits.pinned_memory.items():
            yield self._reply(at, f"get_default_device_pinned_mem_limit {device}", f"{limit >> 30}G\n")
        if self.server is not None:
            yield self._reply(at, f"get_server_status {self.server}", "ACTIVE\n" if self.fault is None else "FAULT\n")
            yield self._reply(at, f"get_client_list {self.server}", "".join(f"{pid}\n" for pid in self.clients))
            yield self._threads_reply(at)

    def query_if_due(self, at: float) -> Iterator[Observation]:
        """Yield the replies to the queries that are due in this second."""
        if int(at) % (QUERY_SECONDS if self.answers else RETRY_SECONDS):
            return
        if self.answers:
            yield from self.query(at)
        elif self.holder is None:
            yield self._failed(at, code=None, seconds=1.0)
            yield ControlSocket(at=at, daemon=self.name, listening=True, answers=False)
        else:
            yield self._failed(at, "Cannot send command to MPS control daemon process\n")
            yield SessionHolder(
                at=at,
                daemon=self.name,
                pid=self.holder.pid,
                start_ticks=self.holder.start_ticks,
                started=at,
                uid=self.holder.workload.uid,
                user=self.holder.workload.user,
            )

    # Lifecycle of the daemon and its server

    def start(self, at: float) -> Iterator[Observation]:
        """Start the daemon. It has no server yet."""
        self.pid, self.start_ticks, self.started = self.factory.new_pid(), int(at * 100), at
        self.hangs, self.holder = False, None
        yield self.log(at, f"Starting control daemon using socket {self.name}/control")
        yield self.log(at, "CUDA MPS Control binary version: 13000")
        yield DaemonProcess(
            at=at,
            daemon=self.name,
            pid=self.pid,
            start_ticks=self.start_ticks,
            started=at,
            uid=0,
            environment={VISIBLE_DEVICES: ",".join(self.gpus)},
        )
        yield from self.query(at)

    def die(self, at: float) -> Iterator[Observation]:
        """End the daemon, its server and its clients."""
        yield ProcessExit(at=at, pid=self.pid or 0, start_ticks=self.start_ticks)
        self.pid = self.server = self.fault = self.holder = None
        self.hangs = False
        self.clients.clear()
        yield self._failed(at, "Cannot find MPS control daemon process\n")
        yield DaemonProcess(at=at, daemon=self.name, pid=None, pid_file_left=True)

    def answer_again(self, at: float) -> Iterator[Observation]:
        """End a hang or a session that excludes others."""
        self.hangs, self.holder = False, None
        if self.pid is not None:
            yield from self.query(at)

    def lose_server(self, at: float) -> Iterator[Observation]:
        """End the server and its clients."""
        if self.server is not None:
            yield self.log(at, f"Server {self.server} exited with status 1")
        self.server = self.fault = None
        self.clients.clear()

    def fail_to_start_server(self, at: float) -> Iterator[Observation]:
        """Start a server that exits before it is ready."""
        server = self.factory.new_pid()
        yield self.log(at, f"Starting new server {server} for user 0")
        yield self.log(at + 0.02, f"Server {server} exited with status 1")

    def set_threads(self, at: float, percentage: float) -> Iterator[Observation]:
        """Set the active thread percentage of the server, as an operator does."""
        if self.server is None or not self.answers:
            return
        self.threads = percentage
        yield self.log(at, "NEW UI")
        yield self.log(at, f"Cmd:set_active_thread_percentage {self.server} {percentage:g}")
        yield self.log(at, "UI closed")
        yield self._threads_reply(at)

    def handle_fault(self, at: float) -> Iterator[Observation]:
        """Refuse new clients until the last affected client has exited. Then recover, and answer the queries."""
        if self.refused < MOST_REFUSED and self.factory.happens(10):
            self.refused += 1
            client = context(self.factory.new_pid(), 0)
            yield self.server_log(at, f"Server teardown in progress. Refusing to accept new client {client}")
            yield self.server_log(at, f"Failed to accept client {client} with status 807")
        if not (self.fault or frozenset()) & self.clients.keys():
            self.fault = None
            for device in range(len(self.groups[0])):
                yield self.server_log(at, f"Destroy server context on device {device} (NVIDIA H200)")
            yield from self.query(at)

    # Clients

    def connect(self, at: float, client: SimulatedProcess) -> Iterator[Observation]:
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
            yield PodFound(at=at, uid=uid, name=name, namespace=namespace)

    def disconnect(
        self, at: float, client: SimulatedProcess, *, killed: bool = False, why: str = ""
    ) -> Iterator[LogLine]:
        """End a client's contexts. If it was killed with a kernel in flight, the server waits for the kernel."""
        del self.clients[client.pid]
        others = sum(len(each.gpus) for each in self.clients.values())
        for number in range(1, len(client.gpus) + 1):
            text = why or f"Number of active client contexts is {others + len(client.gpus) - number}."
            yield self.server_log(at, f"Client {context(client.pid, number)} exiting. {text}")
        if not killed:
            yield self.server_log(at, f"Client process {client.pid} disconnected")

    def disconnect_ended(self, at: float) -> Iterator[Observation]:
        """Disconnect the clients that end in this second."""
        for client in [each for each in self.clients.values() if at >= each.ends_at]:
            yield from self.disconnect(at, client)

    def refuse_client(self, at: float) -> Iterator[Observation]:
        """Refuse a client, since the server has its maximum number of clients."""
        yield self.server_log(at, f"Client {context(self.factory.new_pid(), 1)} connected")
        limit = f"Maximum number of clients ({self.clients_limit}) reached."
        yield self.server_log(at, f"Failed to accept new client. {limit}")

    def _start_server(self, at: float) -> Iterator[Observation]:
        self.server, self.threads = self.factory.new_pid(), self.default_threads
        yield self.log(at, f"Starting new server {self.server} for user {SERVER.uid}")
        yield self.server_log(at, f"Active Threads Percentage set to {self.default_threads:.1f}")
        for device, limit in self.limits.pinned_memory.items():
            yield self.server_log(at, f"Device pinned memory limit for device {device} set to 0x{limit:x} bytes")
        yield self.server_log(at, "Server Priority set to 0")
        yield self.log(at, f"NEW SERVER {self.server}: Ready")
        yield SimulatedProcess(self.server, SERVER, self.gpus[:1], 0, at).reading(at)

    def _threads_reply(self, at: float) -> ControlReply:
        return self._reply(at, f"get_active_thread_percentage {self.server}", f"{self.threads:.1f}\n")

    def _reply(self, at: float, command: str, stdout: str) -> ControlReply:
        return ControlReply(at=at, daemon=self.name, command=command, exit_code=0, stdout=stdout, seconds=0.002)

    def _failed(self, at: float, stderr: str = "", code: int | None = 1, seconds: float = 0.002) -> ControlReply:
        command = "get_server_list"
        return ControlReply(at=at, daemon=self.name, command=command, exit_code=code, stderr=stderr, seconds=seconds)

    def _line(self, at: float, file: str, writer: str, text: str) -> LogLine:
        stamp = utc_time(at).removesuffix("Z").replace("T", " ")
        line = f"[{stamp} {writer}] {text}"
        self.log_bytes[file] += len(line) + 1
        return LogLine(at=at, daemon=self.name, file=file, line=line)


def context(pid: int, number: int) -> str:
    """Return a client's context as the log names it. Number 0 is the connection of the process."""
    return f"{{PID: {pid}, Context ID: {number}}}"
