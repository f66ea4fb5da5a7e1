"""What the demo's watchdog decides is done by these hands, in the story alone."""

import queue
from collections.abc import Iterator

from exporter.demo import life
from exporter.demo.cast import Cast
from exporter.demo.daemon import SimulatedDaemon
from exporter.demo.questions import ask
from exporter.model.action import Action, ActionDone, ActionKind
from exporter.model.node import Node
from exporter.model.observation import Observation

ACTION_SECONDS = 0.4


class SimulatedHands:
    """Takes actions from one thread, and carries them out in another's story."""

    def __init__(self) -> None:
        self._begun: queue.SimpleQueue[Action] = queue.SimpleQueue()

    def do(self, action: Action, _node: Node) -> None:
        """Begin an action, and return at once."""
        self._begun.put(action)

    def break_off(self) -> None:
        """Nothing outlives the story."""

    def carry_out(self, daemons: tuple[SimulatedDaemon, ...], cast: Cast, at: float) -> Iterator[Observation]:
        """All that was begun."""
        while not self._begun.empty():
            action = self._begun.get()
            daemon = next(each for each in daemons if each.name == action.daemon)
            yield from _done(action, daemon, cast, at)


def _done(action: Action, daemon: SimulatedDaemon, cast: Cast, at: float) -> Iterator[Observation]:
    if action.kind is ActionKind.RESTART:
        if daemon.pid is not None:
            yield from life.die(daemon, at)
        yield from life.start(daemon, at, cast.pid())
    if action.kind is ActionKind.SET_LIMITS and daemon.askable:
        daemon.active_threads = daemon.limits.active_thread_percentage
        yield from ask(daemon, at)
    yield ActionDone(at=at, daemon=action.daemon, kind=action.kind, reason=action.reason, seconds=ACTION_SECONDS)
