"""A simulated node that lives: three GPUs under two daemons, for trying everything without a GPU.

It makes observations, in the words that MPS and NVML use; the core is the real one.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from exporter.clock import Clock
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import (
    ControlReply,
    DaemonProcess,
    GpuProcess,
    GpuReading,
    LogFile,
    LogLine,
    Observation,
    ProcessExit,
    ProcessReading,
    SourceReading,
)
from exporter.sources.reading import Reading

GIBIBYTE = 1 << 30
CONTEXT_BYTES = 516 << 20
SERVER_BYTES = 66 << 20
GPU_BYTES = 141 * GIBIBYTE
PAST_SECONDS = 900
"""How much of the story has been told when the demo begins."""

_OWNERS = (
    ("alice", 1001, "train.py", (8, 24)),
    ("bob", 1002, "jupyter-lab", (2, 6)),
    ("carol", 1003, "vllm", (16, 40)),
    ("dave", 1004, "embed-worker", (1, 4)),
)
_GPUS = tuple(f"GPU-{number:08x}-0000-4000-8000-{number:012x}" for number in (0xA0, 0xA1, 0xA2))


@dataclass(slots=True)
class _Process:
    pid: int
    owner: tuple[str, int, str, tuple[int, int]]
    gpu: str
    used_bytes: int
    leaves_at: float


@dataclass(slots=True)
class _Daemon:
    name: str
    gpus: tuple[str, ...]
    pid: int | None = None
    start_ticks: int = 0
    server: int | None = None
    faulted_until: float | None = None
    returns_at: float | None = None
    clients: dict[int, _Process] = field(default_factory=dict)


class Simulation:
    """Moves the node on by a second at a time, up to the clock's present."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self._chance = random.Random(seed)
        self._clock = clock
        self._at = float(int(clock.now())) - PAST_SECONDS
        self._next_pid = 40_000
        self._daemons = (
            _Daemon("/run/nvidia/mps/training/pipe", _GPUS[:2]),
            _Daemon("/run/nvidia/mps/inference/pipe", _GPUS[2:]),
        )
        self._bypassing: dict[int, _Process] = {}

    def node(self) -> Node:
        """The node before anything is seen."""
        return Node(
            daemons={
                each.name: Daemon(
                    name=each.name,
                    pipe_directory=each.name,
                    log_directory=each.name.replace("/pipe", "/log"),
                    expected=True,
                )
                for each in self._daemons
            }
        )

    def look(self) -> Reading:
        """All that has happened since the last look."""
        seen: list[Observation] = []
        while self._at < self._clock.now():
            seen.extend(self._second())
            self._at += 1.0
        return Reading(tuple(seen))

    def _second(self) -> Iterator[Observation]:
        for daemon in self._daemons:
            yield from self._live(daemon)
        yield from self._strangers()
        yield from self._nvml()
        for source in ("log", "process", "control"):
            yield SourceReading(at=self._at, name=source, seconds=0.002)

    def _live(self, daemon: _Daemon) -> Iterator[Observation]:
        if daemon.pid is None:
            if daemon.returns_at is None or self._at >= daemon.returns_at:
                yield from self._start(daemon)
            return
        yield from self._departures(daemon)
        if daemon.faulted_until is not None:
            if self._chance.random() < 0.2:
                yield self._server_log(daemon, f"Failed to accept client {_client(self._pid(), 0)} with status 807")
            if self._at >= daemon.faulted_until:
                yield from self._recover(daemon)
            return
        if len(daemon.clients) < 8 and self._chance.random() < 0.05:
            yield from self._connect(daemon)
        if len(daemon.clients) >= 2 and self._chance.random() < 1 / 300:
            yield from self._fault(daemon)
        elif self._chance.random() < 1 / 600:
            yield from self._die(daemon)
        elif int(self._at) % 30 == 0:
            yield from self._ask(daemon)

    def _start(self, daemon: _Daemon) -> Iterator[Observation]:
        daemon.pid, daemon.start_ticks, daemon.returns_at = self._pid(), int(self._at), None
        yield from (LogFile(at=self._at, daemon=daemon.name, file=file, problem=None) for file in _LOGS)
        yield self._control_log(daemon, f"Starting control daemon using socket {daemon.name}/control")
        yield self._control_log(daemon, "CUDA MPS Control binary version: 13000")
        yield DaemonProcess(
            at=self._at,
            daemon=daemon.name,
            pid=daemon.pid,
            start_ticks=daemon.start_ticks,
            started=self._at,
            uid=0,
            environment={"CUDA_VISIBLE_DEVICES": ",".join(daemon.gpus)},
        )
        yield from self._ask(daemon)

    def _connect(self, daemon: _Daemon) -> Iterator[Observation]:
        if daemon.server is None:
            daemon.server = self._pid()
            yield self._control_log(daemon, f"Starting new server {daemon.server} for user 0")
            yield self._control_log(daemon, f"NEW SERVER {daemon.server}: Ready")
            yield self._process(daemon.server, ("root", 0, "nvidia-cuda-mps-server", (0, 0)))
        client = self._new_process(self._chance.choice(daemon.gpus), self._chance.uniform(60, 900))
        if self._used_bytes(client.gpu) + client.used_bytes > GPU_BYTES:
            return
        daemon.clients[client.pid] = client
        yield self._server_log(daemon, f"Client {_client(client.pid, 1)} connected")
        yield self._server_log(daemon, f"Status of client {_client(client.pid, 1)} is ACTIVE")
        yield self._process(client.pid, client.owner)

    def _departures(self, daemon: _Daemon) -> Iterator[Observation]:
        for client in [each for each in daemon.clients.values() if self._at >= each.leaves_at]:
            del daemon.clients[client.pid]
            yield self._server_log(daemon, f"Client process {client.pid} disconnected")

    def _fault(self, daemon: _Daemon) -> Iterator[Observation]:
        """A fatal fault: everybody on the daemon's GPUs gets the error, and the last of them lingers."""
        devices = range(len(daemon.gpus))
        yield self._server_log(daemon, "Server is handling a fatal GPU error.")
        yield self._server_log(daemon, "The following devices will be reset:")
        yield from (self._server_log(daemon, str(device)) for device in devices)
        yield self._server_log(daemon, "The following client process have a sticky error set:")
        yield from (self._server_log(daemon, str(pid)) for pid in daemon.clients)
        daemon.faulted_until = self._at + self._chance.uniform(10, 60)
        for number, client in enumerate(daemon.clients.values()):
            client.leaves_at = self._at + 1 if number else daemon.faulted_until

    def _recover(self, daemon: _Daemon) -> Iterator[Observation]:
        daemon.faulted_until = None
        for device in range(len(daemon.gpus)):
            yield self._server_log(daemon, f"Destroy server context on device {device} (NVIDIA H200)")

    def _die(self, daemon: _Daemon) -> Iterator[Observation]:
        """The daemon dies, its server and clients with it; one of them comes back without MPS, and says nothing."""
        yield ControlReply(
            at=self._at,
            daemon=daemon.name,
            command="get_server_list",
            exit_code=1,
            stderr="Cannot find MPS control daemon process\n",
        )
        yield ProcessExit(at=self._at, pid=daemon.pid or 0, start_ticks=daemon.start_ticks)
        daemon.pid = daemon.server = None
        daemon.clients.clear()
        daemon.returns_at = self._at + self._chance.uniform(30, 90)
        self._bypass(daemon.gpus[0], daemon.returns_at - self._at)

    def _ask(self, daemon: _Daemon) -> Iterator[Observation]:
        server = daemon.server
        yield self._reply(daemon, "get_server_list", "" if server is None else f"{server}\n")
        if server is not None:
            yield self._reply(daemon, f"get_client_list {server}", "".join(f"{pid}\n" for pid in daemon.clients))

    def _strangers(self) -> Iterator[Observation]:
        for stranger in [each for each in self._bypassing.values() if self._at >= each.leaves_at]:
            del self._bypassing[stranger.pid]
        if not self._bypassing and self._chance.random() < 1 / 120:
            self._bypass(self._chance.choice(_GPUS), self._chance.uniform(30, 120))
        yield from (self._process(each.pid, each.owner) for each in self._bypassing.values())

    def _bypass(self, gpu: str, seconds: float) -> None:
        stranger = self._new_process(gpu, seconds)
        self._bypassing[stranger.pid] = stranger

    def _nvml(self) -> Iterator[Observation]:
        clients = [client for daemon in self._daemons for client in daemon.clients.values()]
        servers = {gpu: daemon.server for daemon in self._daemons for gpu in daemon.gpus}
        for index, gpu in enumerate(_GPUS):
            mps = [GpuProcess(pid=each.pid, used_bytes=each.used_bytes) for each in clients if each.gpu == gpu]
            beside = _of(each for each in self._bypassing.values() if each.gpu == gpu)
            server = servers[gpu]
            serving = [] if server is None else [GpuProcess(pid=server, used_bytes=SERVER_BYTES)]
            compute = (*serving, *mps, *beside)
            yield GpuReading(
                at=self._at,
                gpu=gpu,
                index=index,
                name="NVIDIA H200 (simulated)",
                compute_processes=compute,
                mps_processes=tuple(mps),
                memory_used_bytes=sum(each.used_bytes or 0 for each in compute) + CONTEXT_BYTES,
                memory_total_bytes=GPU_BYTES,
            )
        yield SourceReading(at=self._at, name="nvml", seconds=0.004)

    def _new_process(self, gpu: str, seconds: float) -> _Process:
        owner = self._chance.choice(_OWNERS)
        used = self._chance.randint(*owner[3]) * GIBIBYTE + CONTEXT_BYTES
        return _Process(self._pid(), owner, gpu, used, self._at + seconds)

    def _used_bytes(self, gpu: str) -> int:
        clients = [client for daemon in self._daemons for client in daemon.clients.values()]
        return sum(each.used_bytes for each in (*clients, *self._bypassing.values()) if each.gpu == gpu)

    def _process(self, pid: int, owner: tuple[str, int, str, tuple[int, int]]) -> ProcessReading:
        user, uid, command, _ = owner
        return ProcessReading(
            at=self._at,
            pid=pid,
            start_ticks=pid * 100,
            started=self._at,
            uid=uid,
            user=user,
            command=command,
        )

    def _pid(self) -> int:
        self._next_pid += self._chance.randint(1, 40)
        return self._next_pid

    def _reply(self, daemon: _Daemon, command: str, stdout: str) -> ControlReply:
        return ControlReply(at=self._at, daemon=daemon.name, command=command, exit_code=0, stdout=stdout, seconds=0.002)

    def _control_log(self, daemon: _Daemon, text: str) -> LogLine:
        return self._line(daemon, "control.log", "Control", daemon.pid, text)

    def _server_log(self, daemon: _Daemon, text: str) -> LogLine:
        return self._line(daemon, "server.log", "Server", daemon.server, text)

    def _line(self, daemon: _Daemon, file: str, role: str, pid: int | None, text: str) -> LogLine:
        line = f"[2026-01-01 00:00:00.000 {role} {pid or 0:5}] {text}"
        return LogLine(at=self._at, daemon=daemon.name, file=file, line=line)


_LOGS = ("control.log", "server.log")


def _client(pid: int, context: int) -> str:
    return f"{{PID: {pid}, Context ID: {context}}}"


def _of(processes: Iterable[_Process]) -> list[GpuProcess]:
    return [GpuProcess(pid=each.pid, used_bytes=each.used_bytes) for each in processes]
