"""Clients that connect, work and exit in a tight loop, like those of a service that is restarted at once.

python -m tests.chaos.client_loop PIPE_DIRECTORY LOG SEED [hostile]

Each client is a process. Hostile clients have names that look like lines of control.log. LOG gets a line for each
client: when it ended, its PID, its server, how it ended, and how long after a fault. While a file `linger` is in the
pipe directory, victims of a fault stay.
"""

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path

from tests.chaos.forgeries import hostile_name
from tests.standin.mps import RequestError, ask_side_channel
from tests.standin.mps_daemon.names import pid_file

PR_SET_PDEATHSIG = 1
LINGER = "linger"
LONGEST_WORK_SECONDS = 0.8
LOOK_SECONDS = 0.03
ANSWER_SECONDS = 0.3
TURN_SECONDS = 5.0
"""How long a client waits to be accepted, before it gives up."""


class Outcome(StrEnum):
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


class Client:
    """One process that wants to use the GPU for a while."""

    def __init__(self, directory: str, work: float) -> None:
        self._directory = directory
        self._work = work
        self._struck_at: float | None = None
        self.server = 0

    def live(self) -> Outcome:
        """From its connection to its end."""
        try:
            ask_side_channel(self._directory, f"connect {os.getpid()} 0 0", TURN_SECONDS)
        except OSError:
            return Outcome.NO_DAEMON
        try:
            return self._wait_for_turn() or self._at_work()
        except TimeoutError:
            return Outcome.GAVE_UP
        except (OSError, RequestError):
            return Outcome.LOST

    @property
    def struck_for(self) -> float:
        """How long ago a fault struck it; 0 if none did."""
        return 0.0 if self._struck_at is None else time.time() - self._struck_at

    def _wait_for_turn(self) -> Outcome | None:
        """None: it is its turn."""
        deadline = time.monotonic() + TURN_SECONDS
        while time.monotonic() < deadline:
            match ask_side_channel(self._directory, f"outcome {os.getpid()}", TURN_SECONDS):
                case "active":
                    return None
                case "refused":
                    return Outcome.REFUSED
                case "gone":
                    return Outcome.LOST
            time.sleep(LOOK_SECONDS)
        return Outcome.GAVE_UP

    def _at_work(self) -> Outcome:
        deadline = time.monotonic() + self._work
        while time.monotonic() < deadline or self._lingers():
            try:
                server = ServerNow.parse(ask_side_channel(self._directory, "server", ANSWER_SECONDS))
            except TimeoutError:
                continue  # The daemon hangs; that does not concern who is at work.
            if server is None or (self.server and server.pid != self.server):
                return Outcome.LOST
            if os.getpid() not in server.clients:
                return Outcome.ENDED if self.server else Outcome.LOST
            self.server = server.pid
            if server.state == "FAULT":
                self._struck_at = self._struck_at or time.time()
                if not self._lingers():
                    return Outcome.VICTIM
            time.sleep(LOOK_SECONDS)
        return Outcome.DONE if self._struck_at is None else Outcome.VICTIM

    def _lingers(self) -> bool:
        return self._struck_at is not None and os.path.exists(os.path.join(self._directory, LINGER))


def main(directory: str, log: Path, seed: str, hostile: str = "") -> None:
    """Start one client after the other."""
    _end_with_parent()
    chance = random.Random(seed)
    with log.open("a", buffering=1) as lines:
        while True:
            _wait_for_daemon(directory)
            work = chance.uniform(0.02, LONGEST_WORK_SECONDS)
            start = partial(_exec_client, _hostile_name(directory, chance)) if hostile else _fork_client
            pid = start(directory, lines.fileno(), work)
            _, status = os.waitpid(pid, 0)
            if os.WIFSIGNALED(status):
                _write(lines.fileno(), pid, 0, Outcome.SIGNAL, 0.0)
            time.sleep(LOOK_SECONDS)


def _wait_for_daemon(directory: str) -> None:
    """Return when a client can connect, if only to a daemon that hangs."""
    while True:
        try:
            ask_side_channel(directory, "session", ANSWER_SECONDS)
        except (ConnectionError, FileNotFoundError, BlockingIOError):
            time.sleep(LOOK_SECONDS)
        except (OSError, RequestError):
            return
        else:
            return


def _fork_client(directory: str, log: int, work: float) -> int:
    pid = os.fork()
    if pid == 0:
        run_client(directory, log, work)
        os._exit(0)
    return pid


def _exec_client(name: str, directory: str, log: int, work: float) -> int:
    """The same, with a name of its own."""
    words = [name, "-m", "tests.chaos.client_loop", "client", directory, str(log), str(work)]
    return subprocess.Popen(words, executable=sys.executable, pass_fds=[log]).pid


def _hostile_name(directory: str, chance: random.Random) -> str:
    try:
        daemon = int(Path(pid_file(directory)).read_text())
    except (OSError, ValueError):
        daemon = 1
    return hostile_name(daemon, chance, datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3])


def run_client(directory: str, log: int, work: float) -> None:
    """Be one client, and write down how it ended."""
    _end_with_parent()
    client = Client(directory, work)
    how = client.live()
    _write(log, os.getpid(), client.server, how, client.struck_for)


def _write(descriptor: int, pid: int, server: int, how: Outcome, struck_for: float) -> None:
    """Write a line at once, because two processes write the log."""
    os.write(descriptor, f"{time.time():.3f} {pid} {server} {how} {struck_for:.3f}\n".encode())


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1] == "client":
        run_client(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    else:
        main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
