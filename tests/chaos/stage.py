"""The stage: a control daemon, the exporter that watches it, tenants that use it, and those who look on."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from tests import program
from tests.chaos.claims import Claims
from tests.chaos.deeds import Deeds
from tests.chaos.driver import SECOND_GPU, Driver
from tests.chaos.limits_watch import LimitsWatch
from tests.chaos.onlooker import Life, Onlooker, Role
from tests.chaos.slowness import Slowness
from tests.chaos.tenant import How
from tests.chaos.terms import DAEMON, MEMORY, PERCENTAGE, Terms
from tests.eventually import PATIENCE_SECONDS
from tests.exporter_process import Exporter
from tests.standin.mps import MpsStandIn, wait_until

TENANTS = 3
HOSTILE_TENANT = TENANTS
NEIGHBOURS_CLIENTS = 2
WRITTEN_SECONDS = 2.0
SERVE = ("serve", "--web.listen-address=127.0.0.1:0", "--log.format=json", "--client-min-age=0")
OURS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "PATH")
"""Of the daemon's environment, what the watchdog gives it anyhow."""

STARTER = """#!/bin/sh
echo "$(date +%s.%N) $PPID" >>{starts}
exec nvidia-cuda-mps-control -d
"""


@dataclass(frozen=True, slots=True)
class ClientEnd:
    """A line of a tenant's book."""

    at: float
    pid: int
    server: int
    how: How
    struck_for: float


class Stage:
    """All that takes part; a context manager that leaves no process behind."""

    def __init__(self, directory: Path, terms: Terms, seed: int, *, forger: bool = False) -> None:
        self.terms = terms
        self.directory = directory
        self.forger = forger
        """Whether a hostile user is there, who must be able to enter the directory."""
        directory.chmod(0o711 if forger else 0o700)
        self.mps = MpsStandIn(directory)
        self.neighbour = MpsStandIn(directory / "neighbour", gpus=(SECOND_GPU.uuid,))
        self.neighbours: tuple[int, ...] = ()
        """The PIDs of the neighbour's daemon, its server, and their clients."""
        self.driver = Driver(directory, self.mps, lambda: self.neighbours[1:], self._server_now, self._daemon_pid)
        self.claims = Claims()
        self.watched: list[tuple[float, float]] = []
        """From when to when each exporter ran, but the present one."""
        self.deeds = Deeds()
        self.onlooker = Onlooker(self.mps.pipe_directory)
        self.slowness = Slowness()
        self.limits = LimitsWatch(str(self.mps.pipe_directory), PERCENTAGE, MEMORY, self.may_act, self.slowness)
        self.exporter: Exporter | None = None
        self.exporters = 0
        self.ready_at = 0.0
        """When the present exporter was ready."""
        self.wanted = True
        """Whether the daemon's operator wants it to run."""
        self.patience = PATIENCE_SECONDS
        """For so long at most a daemon may not answer after it was disturbed."""
        self._session_held = False
        self._seed = seed
        self._processes: list[subprocess.Popen[bytes]] = []
        own = {"RUNTIME_DIRECTORY": str(directory / "run"), "STATE_DIRECTORY": str(directory / "state")}
        self._environment = {"PATH": self.mps.environment()["PATH"]} | own
        self._environment |= {"CUDA_MPS_EXPORTER_CONFIG_FILE": str(directory / "config.toml")}
        self._environment |= self.driver.environment()
        # It starts often, and need not compile itself each time.
        compiled = os.environ.get("PYTHONPYCACHEPREFIX", str(directory / "compiled"))
        self._environment |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": compiled}

    # -- its beginning and its end ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _open(self) -> None:
        self._write_files()
        self.slowness.open()
        self.onlooker.open()
        self.mps.start()
        self.limits.open()
        self._start_neighbour()
        self.driver.open()
        self.start_exporter()
        self._be_known()
        for number in range(TENANTS):
            self._start("tenant", str(self.mps.pipe_directory), str(self._book(number)), f"{self._seed} {number}")
        if self.forger:
            self._start_forger()

    def _start_neighbour(self) -> None:
        self.neighbour.start()
        for _ in range(NEIGHBOURS_CLIENTS):
            self._processes.append(subprocess.Popen(["sleep", "1000000"]))
            self.neighbour.connect_and_wait(self._processes[-1].pid)
        clients = (process.pid for process in self._processes)
        self.neighbours = (self.neighbour.pid, self.neighbour.server_pid or 0, *clients)

    def _start_forger(self) -> None:
        """With a tenant whose clients have hostile names."""
        directory, book = str(self.mps.pipe_directory), str(self._book(HOSTILE_TENANT))
        self._start("tenant", directory, book, f"{self._seed} hostile", "hostile")
        others = ",".join(map(str, self.neighbours))
        own = ",".join(str(process.pid) for process in self._processes[NEIGHBOURS_CLIENTS:])
        beside = str(self.neighbour.pipe_directory)
        with self.forgers_book.open("wb") as output:
            self._start("forger", str(self._seed), directory, others, beside, own, output=output)

    def _start(self, module: str, *arguments: str, output: IO[bytes] | None = None) -> None:
        command = [sys.executable, "-m", f"tests.chaos.{module}", *arguments]
        self._processes.append(subprocess.Popen(command, stdout=output))

    def __exit__(self, *_: object) -> None:
        for process in (*self._processes, *([] if self.exporter is None else [self.exporter.process])):
            process.kill()
            process.wait()
        self.limits.close()
        self.driver.close()
        self.mps.close()
        self.neighbour.close()
        self.onlooker.close()
        self.slowness.close()

    def _be_known(self) -> None:
        """Until the exporter has seen the daemon, and has written that down: one that it never saw it leaves alone."""
        assert self.exporter is not None
        self.exporter.shows(1, "cuda_mps_daemon_up", daemon=DAEMON)
        time.sleep(WRITTEN_SECONDS)

    def _write_files(self) -> None:
        command = self.directory / "restart"
        command.write_text(STARTER.format(starts=self.directory / "starts"))
        command.chmod(0o755)
        self._starts.touch()
        variables = {name: value for name, value in self.mps.environment().items() if name not in OURS}
        neighbour = self.neighbour.pipe_directory, self.neighbour.log_directory
        own = self.mps.pipe_directory, self.mps.log_directory
        written = self.terms.configuration(*own, neighbour, command, variables)
        (self.directory / "config.toml").write_text(written)

    @property
    def _starts(self) -> Path:
        return self.directory / "starts"

    @property
    def forgers_book(self) -> Path:
        """What the forger has done, a line a deed."""
        return self.directory / "forger"

    def _book(self, number: int) -> Path:
        return self.directory / f"tenant{number}"

    # -- the exporter ----------------------------------------------------------------------------------------------

    def start_exporter(self) -> None:
        """Start it; returns when it serves."""
        self.exporters += 1
        command = program.command(*SERVE, **self.terms.constants())
        self.exporter = Exporter(command, self._environment, self.exporter_log(self.exporters))
        self.exporter.address()
        self.ready_at = time.time()

    def exporter_log(self, number: int) -> Path:
        """What the exporter that was started so many times has said."""
        return self.directory / f"exporter{number}.log"

    def end_exporter(self, how: signal.Signals) -> int:
        """Its exit code."""
        assert self.exporter is not None
        self.watched.append((self.ready_at, time.time()))
        self.ready_at = 0.0
        self.exporter.process.send_signal(how)
        code = self.exporter.process.wait(PATIENCE_SECONDS)
        self.exporter = None
        return code

    def resume(self) -> str:
        """Say `resume`, as an operator whose daemon was given up; what was answered."""
        self.deeds.add("resume")
        command = [sys.executable, "-m", "exporter", "resume", DAEMON]
        environment = os.environ | self._environment
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        return (done.stdout + done.stderr).strip() if done.returncode == 0 else f"failed: {done.stderr}"

    def may_act(self) -> bool:
        """Whether the exporter is there, and nobody keeps it from commanding the daemon."""
        return bool(self.ready_at) and not self._session_held and self.driver.pid_file_is_right()

    def circuit_open(self) -> bool:
        """Return whether the exporter shows a circuit that opened after the last `resume`.

        A scrape right after `resume` may show the state before it. An exporter that has just started shows none.
        """
        assert self.exporter is not None
        try:
            opened_at = self.exporter.value("cuda_mps_watchdog_circuit_opened_timestamp_seconds", daemon=DAEMON)
        except urllib.error.HTTPError:
            return False
        return opened_at is not None and opened_at > self.deeds.last("resume")

    def read_claims(self) -> Claims:
        """Return what the exporters have said so far."""
        for number in range(1, self.exporters + 1):
            self.claims.read(number, self.exporter_log(number))
        return self.claims

    # -- the daemon ------------------------------------------------------------------------------------------------

    def _daemon_pid(self) -> int | None:
        return None if self.daemon is None else self.daemon.pid

    def _server_now(self) -> tuple[int, Iterable[int]] | None:
        server = self.limits.server
        return None if server is None else (server.pid, server.clients)

    @property
    def daemon(self) -> Life | None:
        """The control daemon that lives."""
        return next(iter(self.onlooker.living(Role.DAEMON)), None)

    @property
    def server(self) -> Life | None:
        """The server of the daemon that lives."""
        daemon = self.daemon
        servers = self.onlooker.living(Role.SERVER) if daemon is not None else []
        return next((each for each in servers if daemon is not None and each.parent == daemon.pid), None)

    def signal(self, life: Life, how: signal.Signals) -> None:
        """Send one of MPS' processes a signal, and have it written down."""
        self.deeds.add(how.name, life.pid)
        os.kill(life.pid, how)

    def start_daemon(self) -> None:
        """As its operator does. Until the exporter has written down that it runs, it counts as stopped still."""
        self.deeds.add("start")
        self.wanted = True
        self.mps.start()
        wait_until(lambda: self.limits.answers, "the daemon's answer")
        if self.exporter is not None:
            self._be_known()

    @contextlib.contextmanager
    def holding_session(self) -> Iterator[None]:
        """Somebody has the daemon's only session: nobody else is heard."""
        self._session_held = True
        yield
        self._session_held = False

    def command(self, words: str) -> None:
        """Give the daemon a command, as an operator does: again, if somebody else's session was open."""
        self.deeds.add(words)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.mps.ask(words).returncode and self.limits.answers and time.monotonic() < deadline:
            time.sleep(0.05)
        self.limits.begin_anew()

    # -- its clients -----------------------------------------------------------------------------------------------

    def kill_client(self, pid: int, *, in_mid_kernel: bool = False) -> None:
        """SIGKILL. It may have gone by itself in the meantime, or its daemon may have."""
        self.deeds.add("kill_client", pid)
        with contextlib.suppress(OSError, RuntimeError):
            if in_mid_kernel:
                self.mps.kill_client(pid)
            os.kill(pid, signal.SIGKILL)

    def fault(self, pid: int, kind: str) -> None:
        """It does something fatal."""
        self.deeds.add("fault", pid)
        with contextlib.suppress(OSError, RuntimeError):
            self.mps.fault(pid, kind)

    def in_fault(self) -> bool:
        """Whether the server is."""
        server = self.limits.server
        return self.limits.answers and server is not None and server.state == "FAULT"

    # -- what happened ---------------------------------------------------------------------------------------------

    def starts(self) -> Sequence[float]:
        """When the watchdog ran the restart command."""
        return [float(line.split()[0]) for line in self._starts.read_text().splitlines()]

    def client_ends(self) -> list[ClientEnd]:
        """How the tenants' clients ended, in order."""
        return sorted((end for number in range(TENANTS + 1) for end in self._read(number)), key=lambda each: each.at)

    def _read(self, number: int) -> list[ClientEnd]:
        book = self._book(number)
        whole = book.read_text().rpartition("\n")[0] if book.exists() else ""
        lines = (line.split() for line in whole.splitlines())
        return [
            ClientEnd(float(at), int(pid), int(server), How(how), float(with_incidents))
            for at, pid, server, how, with_incidents in lines
        ]
