"""A hostile ordinary user beside the chaos: it forges, steals and blocks logs, and ends no process.

python -m tests.chaos.forger SEED PIPE_DIRECTORY OTHERS [PIPE_DIRECTORY OTHERS]...

OTHERS are the PIDs of other daemons, with their servers and clients, separated by commas. Started as root it becomes
`nobody`. What it does follows from the seed; which PIDs it names, from what it finds. It writes each action on standard
output.
"""

import contextlib
import ctypes
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from tests.chaos.forgeries import LINES, MADE_UP_PID, Situation
from tests.standin.mps_daemon import sockets
from tests.standin.mps_daemon.logs import Kind, message, send
from tests.standin.mps_daemon.names import pid_file

NOBODY = 65534
PR_SET_PDEATHSIG = 1
PAUSE_SECONDS = (0.02, 0.5)
SHORT_SECONDS = (0.1, 1.2)
"""For so long it steals lines, tampers with the PID file, or keeps the daemon waiting: no rule calls that a hang."""

ANSWER_SECONDS = 1.0
LARGEST_WRITE = 4096
"""PIPE_BUF: such a message arrives as a whole."""

FLOODS = (
    "Accepting connection...",
    "Client {PID: 1, Context ID: 1} connected",
    "a line that no rule knows",
    "Exit with status 0",
    "Server is handling a fatal GPU error.",
    "x" * 400,
)


@dataclass(frozen=True, slots=True)
class Target:
    """A pipe directory, and the PIDs of unrelated processes."""

    directory: str
    others: tuple[int, ...]

    @property
    def fifo(self) -> str:
        """The fifo of its logs."""
        return os.path.join(self.directory, "log")


class Forger:
    """The user, who does one thing after the other.

    Each action has a source of chance of its own, so that what was found for one does not change the kinds of the next.
    """

    def __init__(self, targets: Sequence[Target], seed: str) -> None:
        self._targets = targets
        self._seed = seed
        self._acts = 0
        self._chance = random.Random()
        self._daemons: dict[str, int] = {}
        self._actions: dict[Callable[[Target], str], int] = {
            self._forge: 600,
            self._ask: 80,
            self._steal: 60,
            self._tamper_with_pid_file: 60,
            self._flood: 40,
            self._write_plain_text: 40,
            self._keep_waiting: 30,
            self._write_garbage: 3,
        }

    def act(self) -> str:
        """Do something to a directory, the first one as a rule; return what it was."""
        self._acts += 1
        self._chance.seed(f"forger {self._seed} {self._acts}")
        target = self._targets[0] if self._chance.random() < 0.8 else self._chance.choice(self._targets)
        (action,) = self._chance.choices(list(self._actions), weights=list(self._actions.values()))
        try:
            return f"{action.__name__.removeprefix('_')} {action(target)}"
        except (OSError, ValueError) as problem:
            return f"{action.__name__.removeprefix('_')}: {problem}"

    def _situation(self, target: Target) -> Situation:
        with contextlib.suppress(OSError, ValueError):
            found = int(Path(pid_file(target.directory)).read_text())
            if _words(found)[:1] == [b"nvidia-cuda-mps-control"]:
                self._daemons[target.directory] = found
        daemon = self._daemons.get(target.directory, MADE_UP_PID)
        clients, bystanders = [], []
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            words = _words(pid)
            if b"tests.chaos.client_loop" in words:
                clients.append(pid)
            elif b"exporter" in words or b"tests.chaos" in words:
                bystanders.append(pid)
        return Situation(target.directory, daemon, _children(daemon), clients, target.others, bystanders)

    # -- lines -----------------------------------------------------------------------------------------------------

    def _forge(self, target: Target) -> str:
        means = self._chance.choice(LINES)
        lines = means(self._situation(target), self._chance)
        shift = self._chance.choice((0.0, 0.0, 0.0, -3600.0, 3600.0, self._chance.uniform(-2.0, 2.0)))
        at = datetime.now().astimezone() + timedelta(seconds=shift)
        for kind, pid, text in lines:
            send(target.fifo, message(kind, pid, text, at))
        return f"{means.__name__} {lines[0][1]} {lines[0][2]!r}"

    def _flood(self, target: Target) -> str:
        """Only as whole messages: where there is no room it waits a moment."""
        situation = self._situation(target)
        kind, text = self._chance.choice((Kind.CONTROL, Kind.SERVER)), self._chance.choice(FLOODS)
        count = self._chance.randrange(200, 3000)
        data = message(kind, situation.daemon, text)
        for _ in range(count):
            try:
                send(target.fifo, data)
            except BlockingIOError:
                time.sleep(0.005)
        return f"{count} {text[:40]!r}"

    def _write_plain_text(self, target: Target) -> str:
        send(target.fifo, b"Exit with status 0\n")
        return ""

    def _write_garbage(self, target: Target) -> str:
        """From now on neither log gets a line, until another daemon makes another fifo."""
        send(target.fifo, self._chance.randbytes(self._chance.randrange(64, LARGEST_WRITE)))
        return ""

    def _steal(self, target: Target) -> str:
        """Read the fifo for a while: the lines of meanwhile appear in no log."""
        descriptor = os.open(target.fifo, os.O_RDONLY | os.O_NONBLOCK)
        taken, deadline = 0, time.monotonic() + self._chance.uniform(*SHORT_SECONDS)
        try:
            while (left := deadline - time.monotonic()) > 0:
                if not select.select([descriptor], [], [], left)[0]:
                    break
                with contextlib.suppress(BlockingIOError):
                    data = os.read(descriptor, 1 << 16)
                    if not data:
                        break
                    taken += len(data)
        finally:
            os.close(descriptor)
        return f"{taken} bytes"

    # -- the socket and the PID file -------------------------------------------------------------------------------

    def _ask(self, target: Target) -> str:
        """`ps`, which any user may: it writes the names of clients into control.log."""
        with sockets.connect(target.directory, "control", timeout=ANSWER_SECONDS) as connection:
            connection.send(sockets.CREDENTIALS)
            if connection.recv(sockets.LARGEST_MESSAGE) != sockets.GREETING:
                return "refused"
            connection.send(b"ps")
            return repr(connection.recv(sockets.LARGEST_MESSAGE)[-60:])

    def _keep_waiting(self, target: Target) -> str:
        """A connection that says nothing: the daemon waits for it."""
        seconds = self._chance.uniform(*SHORT_SECONDS)
        with sockets.connect(target.directory, "control", timeout=ANSWER_SECONDS):
            time.sleep(seconds)
        return f"{seconds:.2f} s"

    def _tamper_with_pid_file(self, target: Target) -> str:
        """Name another process, or none, for a while; but leave what a new daemon has written meanwhile."""
        path, situation = pid_file(target.directory), self._situation(target)
        others = (*situation.clients, *situation.others, *situation.bystanders, MADE_UP_PID, 1, os.getpid())
        written = self._chance.choice(("", "x", "-1", "0", "9" * 5000, *(f"{pid}\n" for pid in others)))
        before = _overwrite(path, None, written)
        time.sleep(self._chance.uniform(*SHORT_SECONDS))
        _overwrite(path, written, before)
        return repr(written[:20])


def _overwrite(path: str, expected: str | None, text: str) -> str:
    """Replace the text of a file that exists, if it is the expected one; return what it was."""
    with open(path, "r+") as file:
        before = file.read()
        if expected is None or before == expected:
            file.seek(0)
            file.truncate()
            file.write(text)
    return before


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _children(pid: int) -> tuple[int, ...]:
    try:
        return tuple(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return ()


def main(seed: str, *targets: str) -> None:
    """Act until the parent ends."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    pairs = zip(targets[::2], targets[1::2], strict=True)
    chance = random.Random(f"pauses {seed}")
    forger = Forger([Target(path, tuple(map(int, others.split(",")))) for path, others in pairs], seed)
    while True:
        time.sleep(chance.uniform(*PAUSE_SECONDS))
        sys.stdout.write(f"{time.time():.2f} {forger.act()}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
