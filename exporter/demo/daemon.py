"""One of the demo's control daemons, with its server, and how both write their logs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from exporter.demo.cast import Owner, Process
from exporter.model.limits import Limits
from exporter.model.observation import ControlReply, LogFile, LogLine
from exporter.telling.moment import utc

CONTROL_LOG, SERVER_LOG = "control.log", "server.log"


@dataclass(slots=True)
class Fault:
    """What a server is in: the devices that it will reset, whom it hit, and how many newcomers it turned away."""

    devices: tuple[int, ...]
    victims: frozenset[int]
    refused: int = 0


@dataclass(slots=True)
class SimulatedDaemon:
    """A control daemon, its GPUs in teams: a client is on one GPU, or on all of a team.

    `pid` and `server` are None while there is none. `limits` are those that its servers begin with, and
    `active_threads` is the percentage that its server has. `hangs` is whether it answers, `holder` whose session keeps
    all others out; a `frail` one dies soon after each start, and a `barren` one's servers exit before they are ready.
    """

    name: str
    teams: tuple[tuple[str, ...], ...]
    owners: tuple[Owner, ...]
    limits: Limits
    places: int
    pid: int | None = None
    start_ticks: int = 0
    started: float = 0.0
    server: int | None = None
    active_threads: float | None = None
    fault: Fault | None = None
    hangs: bool = False
    holder: Process | None = None
    frail: bool = False
    barren: bool = False
    log_bytes: dict[str, int] = field(default_factory=lambda: {CONTROL_LOG: 38 << 20, SERVER_LOG: 211 << 20})
    clients: dict[int, Process] = field(default_factory=dict)

    @property
    def gpus(self) -> tuple[str, ...]:
        """All its GPUs, by its ordinals."""
        return tuple(gpu for team in self.teams for gpu in team)

    @property
    def askable(self) -> bool:
        """Whether it answers."""
        return self.pid is not None and not self.hangs and self.holder is None

    def logs(self, at: float) -> Iterator[LogFile]:
        """Its log files can be followed, and are so long."""
        for file, size in self.log_bytes.items():
            yield LogFile(at=at, daemon=self.name, file=file, problem=None, size=size, unread=0)

    def says(self, at: float, text: str) -> LogLine:
        """A line in its own log."""
        return self._line(at, CONTROL_LOG, f"Control {self.pid or 0:5}", text)

    def server_says(self, at: float, text: str) -> LogLine:
        """A line in its server's log."""
        return self._line(at, SERVER_LOG, f"Server {self.server or 0:5}", text)

    def answers(self, at: float, command: str, stdout: str) -> ControlReply:
        """A command, and its reply."""
        return ControlReply(at=at, daemon=self.name, command=command, exit_code=0, stdout=stdout, seconds=0.002)

    def refuses(self, at: float, command: str, stderr: str) -> ControlReply:
        """A command, and why it could not be given."""
        return ControlReply(at=at, daemon=self.name, command=command, exit_code=1, stderr=stderr, seconds=0.002)

    def parts_with(self, at: float, client: Process, *, cut_off: bool = False, why: str = "") -> Iterator[LogLine]:
        """A client's contexts end, and with them all that its server has of it, unless its kernel is in flight."""
        del self.clients[client.pid]
        left = sum(len(each.gpus) for each in self.clients.values())
        for number in contexts(client):
            how = why or f"Number of active client contexts is {left + len(client.gpus) - number}."
            yield self.server_says(at, f"Client {context(client.pid, number)} exiting. {how}")
        if not cut_off:
            yield self.server_says(at, f"Client process {client.pid} disconnected")

    def _line(self, at: float, file: str, writer: str, text: str) -> LogLine:
        stamp = utc(at).removesuffix("Z").replace("T", " ")
        line = f"[{stamp} {writer}] {text}"
        self.log_bytes[file] += len(line) + 1
        return LogLine(at=at, daemon=self.name, file=file, line=line)


def contexts(client: Process) -> Mapping[int, str]:
    """A client's contexts by their number: one on each of its GPUs."""
    return dict(enumerate(client.gpus, start=1))


def context(pid: int, number: int) -> str:
    """A client's context, as the log names it; 0 is the process's connection."""
    return f"{{PID: {pid}, Context ID: {number}}}"
