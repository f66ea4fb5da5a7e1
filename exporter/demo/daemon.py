"""One of the demo's control daemons, with its server, and how both write their logs."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from exporter.demo.cast import Process
from exporter.model.observation import ControlReply, LogLine
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
    """A control daemon; `pid` and `server` are None while there is none, `returns_at` is when it will be back."""

    name: str
    gpus: tuple[str, ...]
    pid: int | None = None
    start_ticks: int = 0
    server: int | None = None
    fault: Fault | None = None
    returns_at: float | None = None
    clients: dict[int, Process] = field(default_factory=dict)

    def says(self, at: float, text: str) -> LogLine:
        """A line in its own log."""
        return self._line(at, CONTROL_LOG, f"Control {self.pid or 0:5}", text)

    def server_says(self, at: float, text: str) -> LogLine:
        """A line in its server's log."""
        return self._line(at, SERVER_LOG, f"Server {self.server or 0:5}", text)

    def answers(self, at: float, command: str, stdout: str) -> ControlReply:
        """A command, and its reply."""
        return ControlReply(at=at, daemon=self.name, command=command, exit_code=0, stdout=stdout, seconds=0.002)

    def parts_with(self, at: float, client: Process, *, cut_off: bool = False) -> Iterator[LogLine]:
        """A client's context ends, and with it all that its server has of it, unless its kernel is still in flight."""
        del self.clients[client.pid]
        left = len(self.clients)
        yield self.server_says(
            at, f"Client {context(client.pid, 1)} exiting. Number of active client contexts is {left}."
        )
        if not cut_off:
            yield self.server_says(at, f"Client process {client.pid} disconnected")

    def _line(self, at: float, file: str, writer: str, text: str) -> LogLine:
        stamp = utc(at).removesuffix("Z").replace("T", " ")
        return LogLine(at=at, daemon=self.name, file=file, line=f"[{stamp} {writer}] {text}")


def context(pid: int, number: int) -> str:
    """A client's context, as the log names it; 0 is the process's connection."""
    return f"{{PID: {pid}, Context ID: {number}}}"
