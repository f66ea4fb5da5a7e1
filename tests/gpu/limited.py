"""Whether the limits that the watchdog is to see to are in force: by the server's log, and by what clients get."""

import re
import time

from .clients import NO_DAEMON, Client, Clients
from .mps import ControlDaemon

PERCENTAGE = 40.0
PINNED_MEMORY = "2G"
TOO_MUCH_MIB = 3000
_NEWCOMER_EVERY_SECONDS = 0.1
# However slow they are, they must not take the places of each other.
_MOST_NEWCOMERS = 4
# As a server of R580 says it, at its start or when it is told.
_THREADS = f"Active Threads Percentage set to {PERCENTAGE}"
_MEMORY = f"Device pinned memory limit for device 0 set to {2 << 30:#x} bytes"
_OF_A_SERVER = re.compile(r"Server +(?P<pid>\d+)\] (?P<text>.*)")


class LimitsInForce:
    """Whether a server has come, since this was made, that has both limits, by its own word."""

    def __init__(self, daemon: ControlDaemon) -> None:
        self._log = daemon.server_log
        self._before = daemon.servers()
        self._seen = self._log.stat().st_size if self._log.exists() else 0

    def __call__(self) -> bool:
        """Read what is new in the log. No question is asked, which might collide with the program's own."""
        said: dict[int, set[str]] = {}
        with self._log.open(errors="replace") as log:
            log.seek(self._seen)
            for found in map(_OF_A_SERVER.search, log):
                if found is not None:
                    said.setdefault(int(found["pid"]), set()).add(found["text"].strip())
        return any({_THREADS, _MEMORY} <= texts for pid, texts in said.items() if pid not in self._before)


class Newcomers:
    """Clients that start one after another, and look at what they get: who starts beside a dead daemon gets all."""

    def __init__(self, clients: Clients, everything: int) -> None:
        """`everything` is how many SMs there are."""
        self._clients = clients
        self._everything = everything
        self._started: list[Client] = []
        self._next = 0.0

    def one_is_limited(self) -> bool:
        """Whether one has run under MPS with its limits; until then, it is time for another every so often."""
        if any(map(self.is_limited, self._started)):
            return True
        under_way = [each for each in self._started if each.child.exit_code is None]
        if time.monotonic() >= self._next and len(under_way) < _MOST_NEWCOMERS:
            self._next = time.monotonic() + _NEWCOMER_EVERY_SECONDS
            self._started.append(self._clients.start("newcomer", seconds=0, greed=TOO_MUCH_MIB))
        return False

    def unlimited_since(self, moment: float) -> list[int]:
        """Those who started later than that, and got more than they should: nobody."""
        late = [client for client in self._started if client.started > moment]
        for client in late:
            client.settle()
        return [client.pid for client in late if client.events("ready") and not self.is_limited(client)]

    def is_limited(self, client: Client) -> bool:
        """Whether it has run, in both limits."""
        return any(
            each["processors"] <= PERCENTAGE / 100 * self._everything and not each["granted"]
            for each in client.events("ready")
        )


def all_processors(clients: Clients) -> int:
    """How many SMs there are, for who bypasses MPS."""
    bypasser = clients.start_ready("bypasser", seconds=0, environment=NO_DAEMON)
    return bypasser.processors
