"""All eyes of the exporter: those that are always there, and one for each control daemon that is known."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from exporter.model.node import Daemon
from exporter.model.observation import SourceReading
from exporter.sources.control import ControlClient
from exporter.sources.eye import Eye
from exporter.sources.processes import Processes


@dataclass(frozen=True, slots=True)
class Asker:
    """What asks one control daemon, and the eye in which it does."""

    client: ControlClient
    eye: Eye

    def ask(self, commands: tuple[str, ...]) -> None:
        """Have these commands given, as soon as may be."""
        self.client.want(commands)
        self.eye.nudge()

    def close(self, timeout: float) -> None:
        """Ask no more."""
        self.client.close()
        self.eye.close(timeout)


class Lookout:
    """Opens and closes eyes, and tells them where to look. To be used by one thread."""

    def __init__(
        self,
        eyes: Sequence[Eye],
        *,
        asker: Callable[[Daemon], Asker | None] = lambda _daemon: None,
        attend: Callable[[Mapping[str, Daemon]], None] = lambda _daemons: None,
        processes: Processes | None = None,
        nvml: Eye | None = None,
    ) -> None:
        """`asker` makes what asks a daemon, None where it is not to be asked; `attend` hears which daemons there are.

        `nvml` is one of the `eyes`: the one that looks when it is told to.
        """
        self.nvml = nvml
        self._eyes = eyes
        self._asker = asker
        self._attend = attend
        self._processes = processes
        self._askers: dict[str, Asker] = {}
        self._unasked: set[str] = set()
        self._open = False

    def open(self) -> None:
        """Begin to look."""
        self._open = True
        for eye in (*self._eyes, *(asker.eye for asker in self._askers.values())):
            eye.open()

    def close(self, timeout: float) -> None:
        """Stop looking."""
        for asker in self._askers.values():
            asker.close(timeout)
        for eye in self._eyes:
            eye.close(timeout)

    def attend(self, daemons: Mapping[str, Daemon]) -> None:
        """These are the daemons that there are: look after each that is new, and no more after those that are not."""
        self._attend(daemons)
        for name in [name for name in self._askers if name not in daemons]:
            self._askers.pop(name).close(timeout=0.0)
        self._unasked &= daemons.keys()
        for name, daemon in daemons.items():
            if name not in self._askers and name not in self._unasked:
                self._begin_to_ask(name, daemon)

    def _begin_to_ask(self, name: str, daemon: Daemon) -> None:
        asker = self._asker(daemon)
        if asker is None:
            self._unasked.add(name)
            return
        self._askers[name] = asker
        if self._open:
            asker.eye.open()

    def watch(self, pids: frozenset[int]) -> None:
        """Say whose facts are wanted and whose exit is news."""
        if self._processes is not None:
            self._processes.watch(pids)

    def idle(self) -> Sequence[tuple[str, Asker]]:
        """Who has no question under way, by the daemon's name."""
        return [(name, asker) for name, asker in self._askers.items() if not asker.eye.busy]

    def complaints(self) -> Iterable[SourceReading]:
        """Which looks have outlasted their deadlines."""
        for eye in (*self._eyes, *(asker.eye for asker in self._askers.values())):
            complaint = eye.complaint()
            if complaint is not None:
                yield complaint
