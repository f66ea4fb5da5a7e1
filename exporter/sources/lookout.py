"""All eyes of the exporter: those that are always there, and one for each control daemon that is known."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import SourceReading
from exporter.sources.control import ControlClient
from exporter.sources.eye import Eye, close
from exporter.sources.place import Place

Daemons = Mapping[str, Daemon]
Places = Mapping[str, Place]


@dataclass(frozen=True, slots=True)
class Asker:
    """What asks one control daemon, and the eye in which it does."""

    client: ControlClient
    eye: Eye

    def ask(self, commands: tuple[str, ...]) -> None:
        """Have these commands given, as soon as may be."""
        self.client.want(commands)
        self.eye.nudge()

    def stop(self) -> None:
        """Ask no more."""
        self.client.close()
        self.eye.stop()


class Lookout:
    """Opens and closes eyes, and tells them where to look. To be used by one thread."""

    def __init__(
        self,
        eyes: Sequence[Eye],
        *,
        locate: Callable[[Daemons], Places] | None = None,
        asker: Callable[[Place], Asker] | None = None,
        direct: Callable[[Node], None] = lambda _node: None,
        nvml: Eye | None = None,
    ) -> None:
        """`locate` says where the daemons are, and tells those who follow them; `asker` makes what asks one.

        `direct` tells the sources what of the node they should watch. `nvml` is one of the `eyes`: the one that looks
        when it is told to.
        """
        self.nvml = nvml
        self._eyes = eyes
        self._locate = locate
        self._asker = asker
        self._direct = direct
        self._askers: dict[str, Asker] = {}
        self._unasked: set[str] = set()
        self._open = False

    def open(self) -> None:
        """Begin to look."""
        self._open = True
        for eye in self._eyes:
            eye.open()
        waiting, self._askers = self._askers, {}
        self._askers.update((name, asker) for name, asker in waiting.items() if self._begins(name, asker))

    def look_anew(self) -> None:
        """Have every eye that is always there look at once, also those that seldom do."""
        for eye in self._eyes:
            eye.nudge()

    def close(self, timeout: float) -> None:
        """Stop looking, within `timeout` seconds."""
        for asker in self._askers.values():
            asker.stop()
        close(tuple(self._all()), timeout)

    def attend(self, node: Node) -> None:
        """Go by what is known now: look after each daemon that is new, and no more after those that have gone."""
        self._direct(node)
        if self._locate is None or self._asker is None:
            return
        places = self._locate(node.daemons)
        for name in [name for name in self._askers if name not in places]:
            self._askers.pop(name).stop()
        self._unasked &= places.keys()
        for name, place in places.items():
            asker = self._askers.get(name) or self._asker(place)
            if name in self._askers or self._begins(name, asker):
                self._askers[name] = asker
                asker.client.move(place)

    def _begins(self, name: str, asker: Asker) -> bool:
        """Whether this daemon is asked from now on: without a thread it is not, until one can be had."""
        try:
            if self._open:
                asker.eye.open()
        except RuntimeError as error:
            asker.stop()
            if name not in self._unasked:
                structlog.get_logger().warning("daemon_not_asked", daemon=name, reason=str(error))
            self._unasked.add(name)
            return False
        self._unasked.discard(name)
        return True

    def idle(self) -> Sequence[tuple[str, Asker]]:
        """Who has no question under way, by the daemon's name."""
        return [(name, asker) for name, asker in self._askers.items() if not asker.eye.busy]

    def uneventful(self) -> Iterable[SourceReading]:
        """Which looks since the last call have found nothing new, as far as they are told of."""
        return [reading for eye in self._all() if (reading := eye.uneventful()) is not None]

    def complaints(self) -> Iterable[SourceReading]:
        """Which looks have outlasted their deadlines."""
        for eye in self._all():
            complaint = eye.complaint()
            if complaint is not None:
                yield complaint

    def _all(self) -> Iterable[Eye]:
        return (*self._eyes, *(asker.eye for asker in self._askers.values()))
