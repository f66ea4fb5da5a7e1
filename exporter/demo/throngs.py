"""Too many at once: a server that is full, users who wait, processes beside MPS, a GPU's memory that runs out.

And what somebody else has done: limits that are no longer as they should be, and a log line that nobody knows.
"""

from collections.abc import Iterator

from exporter.demo import life
from exporter.demo.cast import BESIDE_MPS, CONTEXT_BYTES, GIBIBYTE, SERVING, TRAINERS, Process
from exporter.demo.daemon import SimulatedDaemon
from exporter.demo.questions import ask_for_threads
from exporter.demo.scene import Scene
from exporter.model.observation import Observation, ProcessExit

WAITING = 2
FREE_BYTES = 3 * GIBIBYTE
WHOLE_GPU = 100.0


def fill_server(scene: Scene, at: float, seconds: float) -> Iterator[Observation]:
    """A service starts one worker more than the server has places."""
    daemon = scene.inference
    if not daemon.askable:
        return
    while len(daemon.clients) < daemon.places:
        worker = scene.cast.process(SERVING[1], daemon.gpus[:1], at + seconds)
        yield from life.connect(daemon, at, worker, scene.cast)
    for client in daemon.clients.values():
        client.leaves_at = at + seconds
    yield from life.turn_away(daemon, at, scene.cast.pid())


def wait(scene: Scene, at: float, seconds: float) -> Iterator[Observation]:
    """Another user's clients are queued, as long as the present user's stay."""
    daemon, cast = scene.inference, scene.cast
    if not daemon.askable:
        return
    yield from _served(scene, daemon, at, seconds)
    queued = [cast.process(TRAINERS[2], (), at + seconds) for _ in range(WAITING)]
    for each in queued:
        yield each.read(at)
        yield daemon.says(
            at, f"NEW CLIENT {each.pid} from user {each.owner.uid}: Server is not ready, push client to pending list"
        )
    there = len(daemon.clients)
    yield daemon.says(at, f"Server {daemon.server} has {there} active worker threads. Server will not shutdown.")
    scene.later(at + seconds, lambda at: (ProcessExit(at=at, pid=p.pid, start_ticks=p.start_ticks) for p in queued))


def bypass(scene: Scene, at: float, seconds: float) -> Iterator[Observation]:
    """Somebody runs without MPS on a GPU that it serves."""
    gpu = scene.training.gpus[0]
    stranger = scene.cast.process(BESIDE_MPS, (gpu,), at + seconds)
    if stranger.used_bytes <= scene.free_bytes(gpu):
        scene.strangers[stranger.pid] = stranger
        yield stranger.read(at)


def leave(scene: Scene, at: float) -> Iterator[Observation]:
    """Those who run beside MPS go, when their time is over."""
    for stranger in [each for each in scene.strangers.values() if at >= each.leaves_at]:
        del scene.strangers[stranger.pid]
        yield ProcessExit(at=at, pid=stranger.pid, start_ticks=stranger.start_ticks)


def fill_memory(scene: Scene, at: float, seconds: float) -> Iterator[Observation]:
    """One client takes nearly all that is left of a GPU's memory."""
    daemon, gpu = scene.training, scene.training.gpus[-1]
    greedy = Process(scene.cast.pid(), TRAINERS[0], (gpu,), scene.free_bytes(gpu) - FREE_BYTES, at + seconds)
    if daemon.askable and daemon.fault is None and greedy.used_bytes > CONTEXT_BYTES:
        yield from life.connect(daemon, at, greedy, scene.cast)


def drift(scene: Scene, at: float, seconds: float) -> Iterator[Observation]:
    """Somebody gives clients the whole GPU: until he takes it back, or, where the watchdog may act, until it does."""
    for daemon in (scene.training, scene.inference):
        if daemon.askable and daemon.fault is None:
            yield from _served(scene, daemon, at, seconds)
            yield from _threads_set(daemon, at, WHOLE_GPU)
    training = scene.training
    scene.later(at + seconds, lambda at: _threads_set(training, at, training.limits.active_thread_percentage))


def say_something_new(scene: Scene, at: float, _seconds: float) -> Iterator[Observation]:
    """A daemon writes a line that no release had before."""
    if scene.training.pid is not None:
        yield scene.training.says(at, "Rebalancing worker lanes after topology change")


def _served(scene: Scene, daemon: SimulatedDaemon, at: float, seconds: float) -> Iterator[Observation]:
    """There is a server, with somebody on it."""
    if not daemon.clients:
        client = scene.cast.process(daemon.owners[-1], daemon.gpus[:1], at + seconds)
        yield from life.connect(daemon, at, client, scene.cast)


def _threads_set(daemon: SimulatedDaemon, at: float, percentage: float | None) -> Iterator[Observation]:
    if daemon.server is None or not daemon.askable or percentage is None:
        return
    daemon.active_threads = percentage
    yield daemon.says(at, "NEW UI")
    yield daemon.says(at, f"Cmd:set_active_thread_percentage {daemon.server} {percentage:g}")
    yield daemon.says(at, "UI closed")
    yield ask_for_threads(daemon, at)
