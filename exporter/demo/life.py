"""The ordinary life of the demo's daemons: they start, have clients, and end."""

from collections.abc import Iterator

from exporter.demo.cast import SERVICE, Cast, Process
from exporter.demo.daemon import SimulatedDaemon, context, contexts
from exporter.demo.questions import ask
from exporter.model.observation import DaemonProcess, Observation, ProcessExit
from exporter.model.variables import VISIBLE_DEVICES

MOST_CLIENTS = 8
"""At a daemon, as long as nothing out of the ordinary brings more."""

NO_DAEMON = "Cannot find MPS control daemon process\n"


def start(daemon: SimulatedDaemon, at: float, pid: int) -> Iterator[Observation]:
    """It starts, with no server yet."""
    daemon.pid, daemon.start_ticks, daemon.started = pid, int(at * 100), at
    daemon.hangs, daemon.holder = False, None
    yield daemon.says(at, f"Starting control daemon using socket {daemon.name}/control")
    yield daemon.says(at, "CUDA MPS Control binary version: 13000")
    yield DaemonProcess(
        at=at,
        daemon=daemon.name,
        pid=pid,
        start_ticks=daemon.start_ticks,
        started=at,
        uid=0,
        environment={VISIBLE_DEVICES: ",".join(daemon.gpus)},
    )
    yield from ask(daemon, at)


def die(daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
    """It dies, its server and clients with it."""
    yield ProcessExit(at=at, pid=daemon.pid or 0, start_ticks=daemon.start_ticks)
    daemon.pid = daemon.server = daemon.fault = daemon.holder = None
    daemon.hangs = False
    daemon.clients.clear()
    yield daemon.refuses(at, "get_server_list", NO_DAEMON)
    yield DaemonProcess(at=at, daemon=daemon.name, pid=None, left=True)


def connect(daemon: SimulatedDaemon, at: float, client: Process, cast: Cast) -> Iterator[Observation]:
    """A client comes; the first one has a server started for it."""
    if daemon.server is None:
        yield from _serve(daemon, at, cast.pid())
    daemon.clients[client.pid] = client
    for number, gpu in contexts(client).items():
        yield daemon.server_says(at, f"Client {context(client.pid, number)} connected")
        yield daemon.server_says(at, f"Device NVIDIA H200 (uuid {gpu}) is associated")
        yield daemon.server_says(at, f"Status of client {context(client.pid, number)} is ACTIVE")
    yield client.read(at)
    yield from client.pod(at)


def turn_away(daemon: SimulatedDaemon, at: float, newcomer: int) -> Iterator[Observation]:
    """A server that is full takes nobody else."""
    yield daemon.server_says(at, f"Client {context(newcomer, 1)} connected")
    yield daemon.server_says(at, f"Failed to accept new client. Maximum number of clients ({daemon.places}) reached.")


def departures(daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
    """Those go whose time is over."""
    for client in [each for each in daemon.clients.values() if at >= each.leaves_at]:
        yield from daemon.parts_with(at, client)


def lose_server(daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
    """Its server exits, and its clients with it."""
    if daemon.server is not None:
        yield daemon.says(at, f"Server {daemon.server} exited with status 1")
    daemon.server = daemon.fault = None
    daemon.clients.clear()


def fail_to_serve(daemon: SimulatedDaemon, at: float, server: int) -> Iterator[Observation]:
    """A server exits before it is ready."""
    yield daemon.says(at, f"Starting new server {server} for user 0")
    yield daemon.says(at + 0.02, f"Server {server} exited with status 1")


def _serve(daemon: SimulatedDaemon, at: float, server: int) -> Iterator[Observation]:
    """A server starts, and tells which limits it has."""
    share = daemon.limits.active_thread_percentage or 100.0
    daemon.server, daemon.active_threads = server, share
    yield daemon.says(at, f"Starting new server {server} for user {SERVICE.uid}")
    yield daemon.server_says(at, f"Active Threads Percentage set to {share:.1f}")
    for device, limit in daemon.limits.pinned_memory.items():
        yield daemon.server_says(at, f"Device pinned memory limit for device {device} set to 0x{limit:x} bytes")
    yield daemon.server_says(at, "Server Priority set to 0")
    yield daemon.says(at, f"NEW SERVER {server}: Ready")
    yield Process(server, SERVICE, daemon.gpus[:1], 0, at).read(at)
