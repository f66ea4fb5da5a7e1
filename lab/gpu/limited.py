"""Whether the watchdog's limits are in force, by the server's log and by what clients receive."""

import re
import time

from .clients import NO_DAEMON, Client, Clients
from .mps import ControlDaemon

PERCENTAGE = 40.0
PINNED_MEMORY = "2G"
TOO_MUCH_MIB = 3000
_NEWCOMER_EVERY_SECONDS = 0.1
# Slow clients must not use up all client slots.
_MOST_NEWCOMERS = 4
# The messages of a server of R580, at its start or after a command.
_THREADS = f"Active Threads Percentage set to {PERCENTAGE}"
_MEMORY = f"Device pinned memory limit for device 0 set to {2 << 30:#x} bytes"
_OF_A_SERVER = re.compile(r"Server +(?P<pid>\d+)\] (?P<text>.*)")


class LimitsInForce:
    """Whether a server that started after this object was created logs both limits."""

    def __init__(self, daemon: ControlDaemon) -> None:
        self._log = daemon.server_log
        self._before = daemon.servers()
        self._seen = self._log.stat().st_size if self._log.exists() else 0

    def __call__(self) -> bool:
        """Read new log lines. No query is sent, because it could collide with those of the exporter."""
        logged: dict[int, set[str]] = {}
        with self._log.open(errors="replace") as log:
            log.seek(self._seen)
            for found in map(_OF_A_SERVER.search, log):
                if found is not None:
                    logged.setdefault(int(found["pid"]), set()).add(found["text"].strip())
        return any({_THREADS, _MEMORY} <= texts for pid, texts in logged.items() if pid not in self._before)


class NewClients:
    """Clients that start one after another and check their limits. Without a daemon, a client has no limits."""

    def __init__(self, clients: Clients, everything: int) -> None:
        """`everything` is the number of SMs of the GPU."""
        self._clients = clients
        self._everything = everything
        self._started: list[Client] = []
        self._next = 0.0

    def one_is_limited(self) -> bool:
        """Return whether a client has run with the limits; if not, start another from time to time."""
        if any(map(self.is_limited, self._started)):
            return True
        under_way = [each for each in self._started if each.child.exit_code is None]
        if time.monotonic() >= self._next and len(under_way) < _MOST_NEWCOMERS:
            self._next = time.monotonic() + _NEWCOMER_EVERY_SECONDS
            self._started.append(self._clients.start("newcomer", seconds=0, greed=TOO_MUCH_MIB))
        return False

    def unlimited_since(self, moment: float) -> list[int]:
        """Return the PIDs of clients that started after `moment` and had no limits."""
        late = [client for client in self._started if client.started > moment]
        for client in late:
            client.settle()
        return [client.pid for client in late if client.events("ready") and not self.is_limited(client)]

    def is_limited(self, client: Client) -> bool:
        """Return whether the client has run within both limits."""
        return any(
            each["processors"] <= PERCENTAGE / 100 * self._everything and not each["granted"]
            for each in client.events("ready")
        )


def all_processors(clients: Clients) -> int:
    """Return the number of SMs, measured by a process that bypasses MPS."""
    bypasser = clients.start_ready("bypasser", seconds=0, environment=NO_DAEMON)
    return bypasser.processors
