"""A view of the node for those who show it: what there is to tell of, and how it is named and written."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from exporter.model.node import Client, Daemon, Node, Server
from exporter.model.observation import GpuReading, ProcessReading

LONGEST_TEXT = 128

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigStatus:
    """Whether the configuration could be used when it was last read, and when it last could, since the epoch."""

    successful: bool
    last_success: float


@dataclass(frozen=True, slots=True)
class View:
    """The node at a moment, and how old a client must be to have series of its own, in seconds.

    `clock_step` is by how many seconds the wall clock has been set since the exporter started.
    `configuration` is None where none was read, as in a replay.
    """

    node: Node
    client_min_age: float = 0.0
    clock_step: float = 0.0
    configuration: ConfigStatus | None = None

    def daemons(self) -> Iterable[Daemon]:
        """The daemons that there is something to tell of."""
        return (daemon for daemon in self.node.daemons.values() if daemon.told_of(self.node.at))

    def servers(self) -> Iterable[tuple[Daemon, Server]]:
        """All servers, each with its daemon."""
        return ((daemon, server) for daemon in self.daemons() for server in daemon.servers.values())

    def clients(self) -> Iterable[tuple[Daemon, Client, str]]:
        """The clients that are old enough, each with its daemon and its id."""
        for daemon in self.daemons():
            for client in daemon.clients.values():
                process = self.node.processes.get(client.pid)
                born = client.connected_at if process is None else min(process.started, client.connected_at)
                if self.node.at - born >= self.client_min_age:
                    yield daemon, client, client_id(client, process)


def client_id(client: Client, process: ProcessReading | None) -> str:
    """A client's id: PID and start time, or PID and first sighting where the start is not known."""
    if process is None:
        return f"{client.pid}-s{_base36(int(client.connected_at))}"
    return f"{client.pid}-{_base36(process.start_ticks)}"


def used_bytes(reading: GpuReading) -> Mapping[int, int]:
    """Memory of each process on a GPU; NVML's two lists agree on the clients that are in both (measured)."""
    processes = (*(reading.compute_processes or ()), *(reading.mps_processes or ()))
    return {each.pid: each.used_bytes for each in processes if each.used_bytes is not None}


def printable(text: str) -> str:
    """Text that can be shown and encoded: whatever a workload calls itself, it is short and keeps to its line."""
    if text.isascii() and text.isprintable() and len(text) <= LONGEST_TEXT:
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text[:LONGEST_TEXT])


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"
