"""A tenant whose clients come, work and go in a tight loop, like a service's that is started again at once.

python -m tests.chaos.tenant PIPE_DIRECTORY BOOK SEED

Each client is a process. In the book is a line for each: when it ended, its PID, its server, how it ended, and how long
after a fault. While a file `linger` is in the pipe directory, victims of a fault stay.
"""

import ctypes
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.standin.mps_daemon import sockets
from tests.standin.mps_daemon.side_channel import NAME as SIDE_CHANNEL

PR_SET_PDEATHSIG = 1
LINGER = "linger"
LONGEST_WORK_SECONDS = 0.8
LOOK_SECONDS = 0.03
TURN_SECONDS = 5.0
"""How long a client waits to be accepted, before it gives up."""


class How(StrEnum):
    """How a client ended."""

    DONE = "done"
    REFUSED = "refused"
    GAVE_UP = "gave_up"
    NO_DAEMON = "no_daemon"
    LOST = "lost"
    """Its server went."""
    VICTIM = "victim"
    """A fault struck it, and it left."""
    ENDED = "ended"
    """Somebody had MPS end it, while its server lived on."""
    SIGNAL = "signal"


@dataclass(frozen=True, slots=True)
class ServerNow:
    """What the stand-in tells of its server."""

    pid: int
    state: str
    ready_at: float
    percentage: float
    memory: str
    clients: frozenset[int]

    @classmethod
    def parse(cls, answer: str) -> "ServerNow | None":
        """None: there is no server."""
        if answer == "none":
            return None
        pid, state, ready_at, percentage, memory, clients = answer.split(";")
        pids = frozenset(int(each) for each in clients.split(",") if each)
        return cls(int(pid), state, float(ready_at), float(percentage), memory, pids)


class UnknownError(Exception):
    """The daemon does not know what it was asked about: it is another one."""


def ask(directory: str, wish: str, seconds: float = 0.3) -> str:
    """What the stand-in answers by its side channel. OSError: there is no daemon; TimeoutError: it hangs."""
    with sockets.connect(directory, SIDE_CHANNEL, timeout=seconds) as connection:
        connection.send(wish.encode())
        answer = connection.recv(sockets.LARGEST_MESSAGE).decode()
    if not answer.startswith("ok"):
        raise UnknownError(answer) if answer else ConnectionResetError(wish)
    return answer.removeprefix("ok").strip()


class Client:
    """One process that wants to use the GPU for a while."""

    def __init__(self, directory: str, work: float) -> None:
        self._directory = directory
        self._work = work
        self._struck_at: float | None = None
        self.server = 0

    def live(self) -> How:
        """From its connection to its end."""
        try:
            ask(self._directory, f"connect {os.getpid()} 0 0", TURN_SECONDS)
        except OSError:
            return How.NO_DAEMON
        try:
            return self._wait_for_turn() or self._at_work()
        except TimeoutError:
            return How.GAVE_UP
        except (OSError, UnknownError):
            return How.LOST

    @property
    def struck_for(self) -> float:
        """How long ago a fault struck it; 0 if none did."""
        return 0.0 if self._struck_at is None else time.time() - self._struck_at

    def _wait_for_turn(self) -> How | None:
        """None: it is its turn."""
        deadline = time.monotonic() + TURN_SECONDS
        while time.monotonic() < deadline:
            match ask(self._directory, f"outcome {os.getpid()}", TURN_SECONDS):
                case "active":
                    return None
                case "refused":
                    return How.REFUSED
                case "gone":
                    return How.LOST
            time.sleep(LOOK_SECONDS)
        return How.GAVE_UP

    def _at_work(self) -> How:
        deadline = time.monotonic() + self._work
        while time.monotonic() < deadline or self._lingers():
            try:
                server = ServerNow.parse(ask(self._directory, "server"))
            except TimeoutError:
                continue  # The daemon hangs; that does not concern who is at work.
            if server is None or (self.server and server.pid != self.server):
                return How.LOST
            if os.getpid() not in server.clients:
                return How.ENDED if self.server else How.LOST
            self.server = server.pid
            if server.state == "FAULT":
                self._struck_at = self._struck_at or time.time()
                if not self._lingers():
                    return How.VICTIM
            time.sleep(LOOK_SECONDS)
        return How.DONE if self._struck_at is None else How.VICTIM

    def _lingers(self) -> bool:
        return self._struck_at is not None and os.path.exists(os.path.join(self._directory, LINGER))


def main(directory: str, book: Path, seed: str) -> None:
    """Start one client after the other."""
    _end_with_parent()
    chance = random.Random(seed)
    with book.open("a", buffering=1) as lines:
        while True:
            work = chance.uniform(0.02, LONGEST_WORK_SECONDS)
            pid = os.fork()
            if pid == 0:
                _end_with_parent()
                client = Client(directory, work)
                how = client.live()
                _write(lines.fileno(), os.getpid(), client.server, how, client.struck_for)
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            if os.WIFSIGNALED(status):
                _write(lines.fileno(), pid, 0, How.SIGNAL, 0.0)
            time.sleep(LOOK_SECONDS)


def _write(descriptor: int, pid: int, server: int, how: How, struck_for: float) -> None:
    """In one write: it is two processes' book."""
    os.write(descriptor, f"{time.time():.3f} {pid} {server} {how} {struck_for:.3f}\n".encode())


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
