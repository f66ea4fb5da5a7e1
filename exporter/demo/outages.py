"""The demo's outages: daemons that die, hang, are held by somebody's session, or cannot start a server."""

from collections.abc import Iterator

from exporter.demo import life
from exporter.demo.daemon import SimulatedDaemon
from exporter.demo.questions import ask
from exporter.demo.scene import Scene
from exporter.demo.throngs import bypass
from exporter.model.action import Resumed
from exporter.model.observation import Observation

DIED_SECONDS, BACK_SECONDS = 0.6, 0.1
"""How long before the second's end one dies, and is back, that is restarted at once."""


def restart(scene: Scene, at: float, _seconds: float) -> Iterator[Observation]:
    """A daemon dies, and is back before anybody can have asked."""
    daemon = scene.training
    if daemon.pid is not None:
        yield from life.die(daemon, at - DIED_SECONDS)
        yield from life.start(daemon, at - BACK_SECONDS, scene.cast.pid())


def die(scene: Scene, at: float, seconds: float) -> Iterator[Observation]:
    """A daemon dies, until somebody starts it again; one of its clients comes back without MPS, and says nothing."""
    daemon = scene.training
    if daemon.pid is None:
        return
    yield from life.die(daemon, at)
    yield from bypass(scene, at, seconds)
    scene.later(at + seconds, lambda at: _come_back(scene, daemon, at))


def keep_dying(scene: Scene, at: float, seconds: float) -> Iterator[Observation]:
    """A daemon dies again and again, however often it is restarted, until somebody mends it, and says `resume`."""
    daemon = scene.notebooks
    daemon.frail = True
    if daemon.pid is not None:
        yield from life.die(daemon, at)
    scene.later(at + seconds, lambda at: _mended(daemon, at))


def hang(scene: Scene, at: float, seconds: float) -> Iterator[Observation]:
    """A daemon answers nobody, until it does again."""
    scene.training.hangs = True
    scene.later(at + seconds, lambda at: _answers_again(scene.training, at))
    yield from ()


def hold(scene: Scene, at: float, seconds: float) -> Iterator[Observation]:
    """Somebody leaves a session with a daemon open, which keeps all others out."""
    daemon, cast = scene.inference, scene.cast
    daemon.holder = cast.process(daemon.owners[0], (), at + seconds)
    yield daemon.holder.read(at)
    scene.later(at + seconds, lambda at: _answers_again(daemon, at))


def crash_servers(scene: Scene, at: float, seconds: float) -> Iterator[Observation]:
    """A daemon's server exits, and so does each one after it, before it is ready."""
    daemon = scene.notebooks
    daemon.barren = True
    yield from life.lose_server(daemon, at)
    scene.later(at + seconds, lambda _at: _fruitful(daemon))


def _come_back(scene: Scene, daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
    if daemon.pid is None:
        yield from life.start(daemon, at, scene.cast.pid())


def _mended(daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
    daemon.frail = False
    yield Resumed(at=at, daemon=daemon.name)


def _answers_again(daemon: SimulatedDaemon, at: float) -> Iterator[Observation]:
    daemon.hangs, daemon.holder = False, None
    if daemon.pid is not None:
        yield from ask(daemon, at)


def _fruitful(daemon: SimulatedDaemon) -> Iterator[Observation]:
    daemon.barren = False
    yield from ()


def blind(scene: Scene, at: float, seconds: float) -> Iterator[Observation]:
    """NVML cannot be read."""
    scene.blind = True
    scene.later(at + seconds, lambda _at: _sees_again(scene))
    yield from ()


def _sees_again(scene: Scene) -> Iterator[Observation]:
    scene.blind = False
    yield from ()
