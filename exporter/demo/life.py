"""The ordinary life of the demo's daemons: they start, are asked, have clients, and now and then die."""

from collections.abc import Iterator

from exporter.demo.cast import SERVICE, Cast, Process
from exporter.demo.daemon import CONTROL_LOG, SERVER_LOG, SimulatedDaemon, context
from exporter.model.observation import ControlReply, DaemonProcess, LogFile, Observation, ProcessExit

MOST_CLIENTS = 8
ASKED_EVERY = 30


def start(daemon: SimulatedDaemon, at: float, pid: int) -> Iterator[Observation]:
    """It starts, with no server yet."""
    daemon.pid, daemon.start_ticks, daemon.returns_at = pid, int(at), None
    yield from (LogFile(at=at, daemon=daemon.name, file=file, problem=None) for file in (CONTROL_LOG, SERVER_LOG))
    yield daemon.says(at, f"Starting control daemon using socket {daemon.name}/control")
    yield daemon.says(at, "CUDA MPS Control binary version: 13000")
    yield DaemonProcess(
        at=at,
        daemon=daemon.name,
        pid=pid,
        start_ticks=daemon.start_ticks,
        started=at,
        uid=0,
        environment={"CUDA_VISIBLE_DEVICES": ",".join(daemon.gpus)},
    )
    yield from ask(daemon, at)


def connect(daemon: SimulatedDaemon, at: float, client: Process, cast: Cast) -> Iterator[Observation]:
    """A client comes; the first one has a server started for it."""
    if daemon.server is None:
        daemon.server = cast.pid()
        yield daemon.says(at, f"Starting new server {daemon.server} for user 0")
        yield daemon.says(at, f"NEW SERVER {daemon.server}: Ready")
        yield Process(daemon.server, SERVICE, daemon.gpus[0], 0, at).read(at)
    daemon.clients[client.pid] = client
    yield daemon.server_says(at, f"Client {context(client.pid, 1)} connected")
    yield daemon.server_says(at, f"Device NVIDIA H200 (uuid {client.gpu}) is associated")
    yield daemon.server_says(at, f"Status of client {context(client.pid, 1)} is ACTIVE")
    yield client.read(at)


def departures(daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
    """Those go whose time is over."""
    for client in [each for each in daemon.clients.values() if at >= each.leaves_at]:
        yield from daemon.parts_with(at, client)


def die(daemon: SimulatedDaemon, at: float, returns_at: float) -> Iterator[Observation]:
    """It dies, its server and clients with it."""
    yield ControlReply(
        at=at,
        daemon=daemon.name,
        command="get_server_list",
        exit_code=1,
        stderr="Cannot find MPS control daemon process\n",
    )
    yield ProcessExit(at=at, pid=daemon.pid or 0, start_ticks=daemon.start_ticks)
    daemon.pid = daemon.server = None
    daemon.clients.clear()
    daemon.returns_at = returns_at


def ask(daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
    """It is asked for its server, that server's state, and its clients."""
    server = daemon.server
    yield daemon.answers(at, "get_server_list", "" if server is None else f"{server}\n")
    if server is not None:
        yield daemon.answers(at, f"get_server_status {server}", "ACTIVE\n" if daemon.fault is None else "FAULT\n")
        yield daemon.answers(at, f"get_client_list {server}", "".join(f"{pid}\n" for pid in daemon.clients))
