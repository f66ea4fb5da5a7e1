"""The harness: a control daemon, the exporter that watches it, clients that use it, and the threads that observe."""

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
from tests.chaos.client_loop import Outcome
from tests.chaos.driver import SECOND_GPU, Driver
from tests.chaos.limits_watch import LimitsWatch
from tests.chaos.process_watch import MpsProcess, ProcessWatch, Role
from tests.chaos.slowness import Slowness
from tests.chaos.terms import CONSTANTS, DAEMON, MEMORY, PERCENTAGE, configuration
from tests.eventually import PATIENCE_SECONDS
from tests.exporter_process import Exporter
from tests.standin.mps import MpsStandIn, wait_until

CLIENT_LOOPS = 3
HOSTILE_LOOP = CLIENT_LOOPS
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
class Action:
    """What the run did, and to which process. The time is in seconds since the epoch."""

    at: float
    what: str
    pid: int = 0


class ActionLog:
    """All actions in order. Each is logged before it is done."""

    def __init__(self) -> None:
        self.all: list[Action] = []

    def add(self, what: str, pid: int = 0) -> None:
        """Log one."""
        self.all.append(Action(time.time(), what, pid))

    def done_to(self, pid: int, *whats: str) -> bool:
        """Return whether one of these was done to a process."""
        return any(action.pid == pid and action.what in whats for action in self.all)

    def last(self, *whats: str) -> float:
        """Return when one of these was done last; 0: never."""
        return max((action.at for action in self.all if action.what in whats), default=0.0)


@dataclass(frozen=True, slots=True)
class ClientEnd:
    """How a client ended: a line of the log of a client loop."""

    at: float
    pid: int
    server: int
    how: Outcome
    struck_for: float


class Harness:
    """All processes and threads of a run. The context manager ends them."""

    def __init__(self, directory: Path, seed: int, *, may_end: bool, forger: bool) -> None:
        self.may_end = may_end
        """Whether the watchdog may end a hung server, and clients that delay the end of a fault."""
        self.directory = directory
        self.forger = forger
        """Whether there is a hostile user, who must be able to enter the directory."""
        directory.chmod(0o711 if forger else 0o700)
        self.mps = MpsStandIn(directory)
        self.neighbour = MpsStandIn(directory / "neighbour", gpus=(SECOND_GPU.uuid,))
        self.neighbours: tuple[int, ...] = ()
        """The PIDs of the neighbour's daemon, its server, and their clients."""
        self.driver = Driver(directory, self.mps, lambda: self.neighbours[1:], self._server_now, self._daemon_pid)
        self.claims = Claims()
        self.watched: list[tuple[float, float]] = []
        """From when to when each exporter ran, but the present one."""
        self.actions = ActionLog()
        self.processes = ProcessWatch(self.mps.pipe_directory)
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
        self.processes.open()
        self.mps.start()
        self.limits.open()
        self._start_neighbour()
        self.driver.open()
        self.start_exporter()
        self._await_discovery()
        for number in range(CLIENT_LOOPS):
            self._start(
                "client_loop", str(self.mps.pipe_directory), str(self._client_log(number)), f"{self._seed} {number}"
            )
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
        """Start it, and clients with hostile names."""
        self._start_clients(HOSTILE_LOOP, "hostile", "hostile")
        directory = str(self.mps.pipe_directory)
        others = ",".join(map(str, self.neighbours))
        own = ",".join(str(process.pid) for process in self._processes[NEIGHBOURS_CLIENTS:])
        beside = str(self.neighbour.pipe_directory)
        with self.forger_log.open("wb") as output:
            self._start("forger", str(self._seed), directory, others, beside, own, output=output)

    def _start_clients(self, number: int, seed: str, *hostile: str) -> None:
        directory, log = self.mps.pipe_directory, self._client_log(number)
        self._start("client_loop", str(directory), str(log), f"{self._seed} {seed}", *hostile)

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
        self.processes.close()
        self.slowness.close()

    def _await_discovery(self) -> None:
        """Wait until the exporter has stored that the daemon was up: it never starts a daemon that was not."""
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
        written = configuration(self.may_end, own, neighbour, command, variables)
        (self.directory / "config.toml").write_text(written)

    @property
    def _starts(self) -> Path:
        return self.directory / "starts"

    @property
    def forger_log(self) -> Path:
        """What the forger has done, one line for each action."""
        return self.directory / "forger"

    def _client_log(self, number: int) -> Path:
        return self.directory / f"clients{number}"

    # -- the exporter ----------------------------------------------------------------------------------------------

    def start_exporter(self) -> None:
        """Start it, and wait until it serves."""
        self.exporters += 1
        command = program.command(*SERVE, **CONSTANTS)
        self.exporter = Exporter(command, self._environment, self.exporter_log(self.exporters))
        self.exporter.address()
        self.ready_at = time.time()

    def exporter_log(self, number: int) -> Path:
        """Return the log of the exporter with this number."""
        return self.directory / f"exporter{number}.log"

    def end_exporter(self, how: signal.Signals) -> int:
        """End it with a signal, and return its exit code."""
        assert self.exporter is not None
        self.watched.append((self.ready_at, time.time()))
        self.ready_at = 0.0
        self.exporter.process.send_signal(how)
        code = self.exporter.process.wait(PATIENCE_SECONDS)
        self.exporter = None
        return code

    def resume(self) -> str:
        """Run `resume`, as an operator does after the circuit opened, and return the answer."""
        self.actions.add("resume")
        command = [sys.executable, "-m", "exporter", "resume", DAEMON]
        environment = os.environ | self._environment
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        return (done.stdout + done.stderr).strip() if done.returncode == 0 else f"failed: {done.stderr}"

    def may_act(self) -> bool:
        """Return whether the exporter runs and can send commands to the daemon."""
        return bool(self.ready_at) and not self._session_held and self.driver.pid_file_is_right()

    def circuit_open(self) -> bool:
        """Return whether the exporter shows a circuit that opened after the last `resume`.

        A scrape right after `resume` may show the state before it. An exporter that has just started shows none.
        """
        assert self.exporter is not None
        try:
            opened_at = self.exporter.value("cuda_mps_watchdog_circuit_opened_timestamp_seconds", daemon=DAEMON)
        except urllib.error.HTTPError as error:
            error.close()
            return False
        return opened_at is not None and opened_at > self.actions.last("resume")

    def read_claims(self) -> Claims:
        """Return the events that the exporters have logged so far."""
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
    def daemon(self) -> MpsProcess | None:
        """The control daemon that runs."""
        return next(iter(self.processes.living(Role.DAEMON)), None)

    @property
    def server(self) -> MpsProcess | None:
        """The server of the daemon that runs."""
        daemon = self.daemon
        servers = self.processes.living(Role.SERVER) if daemon is not None else []
        return next((each for each in servers if daemon is not None and each.parent == daemon.pid), None)

    def signal(self, process: MpsProcess, how: signal.Signals) -> None:
        """Send a process of MPS a signal, and log it."""
        self.actions.add(how.name, process.pid)
        os.kill(process.pid, how)

    def start_daemon(self) -> None:
        """Start it as its operator does, and wait until the exporter has stored that it runs."""
        self.actions.add("start")
        self.wanted = True
        self.mps.start()
        wait_until(lambda: self.limits.answers, "the daemon's answer")
        if self.exporter is not None:
            self._await_discovery()

    @contextlib.contextmanager
    def holding_session(self) -> Iterator[None]:
        """Note that the daemon's only session is taken, so that the exporter cannot send commands."""
        self._session_held = True
        yield
        self._session_held = False

    def command(self, words: str) -> None:
        """Give the daemon a command, as an operator does: again, if another session was open."""
        self.actions.add(words)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.mps.ask(words).returncode and self.limits.answers and time.monotonic() < deadline:
            time.sleep(0.05)
        self.limits.begin_anew()

    # -- its clients -----------------------------------------------------------------------------------------------

    def kill_client(self, pid: int, *, in_mid_kernel: bool = False) -> None:
        """SIGKILL a client, which may have ended in the meantime, like its daemon."""
        self.actions.add("kill_client", pid)
        with contextlib.suppress(OSError, RuntimeError):
            if in_mid_kernel:
                self.mps.kill_client(pid)
            os.kill(pid, signal.SIGKILL)

    def fault(self, pid: int, kind: str) -> None:
        """Let a client cause a fault."""
        self.actions.add("fault", pid)
        with contextlib.suppress(OSError, RuntimeError):
            self.mps.fault(pid, kind)

    def in_fault(self) -> bool:
        """Return whether the server is in FAULT."""
        server = self.limits.server
        return self.limits.answers and server is not None and server.state == "FAULT"

    # -- what happened ---------------------------------------------------------------------------------------------

    def starts(self) -> Sequence[float]:
        """Return when the watchdog ran the restart command."""
        return [float(line.split()[0]) for line in self._starts.read_text().splitlines()]

    def client_ends(self) -> list[ClientEnd]:
        """Return how the clients ended, in order."""
        return sorted(
            (end for number in range(CLIENT_LOOPS + 1) for end in self._read(number)), key=lambda each: each.at
        )

    def _read(self, number: int) -> list[ClientEnd]:
        log = self._client_log(number)
        whole = log.read_text().rpartition("\n")[0] if log.exists() else ""
        lines = (line.split() for line in whole.splitlines())
        return [
            ClientEnd(float(at), int(pid), int(server), Outcome(how), float(in_fault_for))
            for at, pid, server, how, in_fault_for in lines
        ]
