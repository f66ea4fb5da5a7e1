"""The MPS stand-in for tests: start a control daemon, control its clients, stop it, kill it, query it.

The program under test sees it through ``environment()``: its command, its pipe and log directories.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from .mps_daemon import sockets
from .mps_daemon.control import ERRORS, TRUTH
from .mps_daemon.names import CONTROL_NAME, pid_file
from .mps_daemon.settings import ASKED_BY
from .mps_daemon.side_channel import NAME as SIDE_CHANNEL

BIN = Path(__file__).resolve().parent / "bin"
DEFAULT_GPU = "GPU-1efa3f60-b0ba-115c-7d58-bd5711d3de4b"
PATIENCE_SECONDS = 120.0
"""Timeout of failures. A passing test never waits this long."""


class RequestError(RuntimeError):
    """The side channel of a daemon refuses a request."""


class NotInTimeError(AssertionError):
    """A condition did not become true in time."""


def wait_until(condition: Callable[[], object], what: str = "the condition", seconds: float = PATIENCE_SECONDS) -> None:
    """Poll until ``condition()`` is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise NotInTimeError(f"{what} did not come about within {seconds:g} s")
        time.sleep(0.01)


@dataclass(frozen=True, slots=True)
class Truth:
    """A real event of a server: see ``mps_daemon.logs.TruthFile``."""

    at: float
    what: str
    server: int
    kind: str = ""
    pid: int = 0
    victims: tuple[int, ...] = ()

    @classmethod
    def parse(cls, line: str) -> "Truth":
        """Read a line of the file."""
        at, what, server, *details = line.split()
        kind, pid, *victims = details or ("", "0")
        return cls(float(at), what, int(server), kind, int(pid), tuple(map(int, victims)))


class MpsStandIn:
    """One control daemon with its directories under ``directory``; a context manager that leaves no process behind.

    The daemon answers only this process and those that it started. It ignores other exporters of the machine, which
    find it in /proc: they cannot collide with a test's commands, or add lines to control.log.

    Args:
        directory: where the pipe and log directories are made.
        gpus: the UUIDs of the daemon's GPUs, in the order of its ordinals.
        max_clients: the number of clients that its server accepts.
        variables: more of the daemon's environment, e.g. ``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE``.
        options: more options of the daemon, e.g. ``-S``.
        driver: the branch of the driver in the words of which the daemon writes its logs.
    """

    def __init__(
        self,
        directory: Path,
        *,
        gpus: Sequence[str] = (DEFAULT_GPU,),
        max_clients: int = 48,
        variables: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        driver: int = 580,
    ) -> None:
        self.pipe_directory = directory / "pipe"
        self.log_directory = directory / "log"
        self.standard_output = directory / "daemon.stdout"
        """Output of a daemon in the foreground: both logs."""
        self._variables = {
            "STANDIN_MPS_GPUS": ",".join(gpus),
            "STANDIN_MPS_MAX_CLIENTS": str(max_clients),
            "STANDIN_MPS_DRIVER": str(driver),
            ASKED_BY: this_process(os.getpid()),
            **(variables or {}),
        }
        self._gpus = tuple(gpus)
        self._options = tuple(options)
        self._children: list[subprocess.Popen[str]] = []

    # -- start and end of the daemon -------------------------------------------------------------------------------

    def start(self, foreground: bool = False) -> None:
        """Start a daemon (``-d``, or ``-f``) in existing directories, and wait until it answers."""
        self.pipe_directory.mkdir(parents=True, exist_ok=True)
        self.log_directory.mkdir(parents=True, exist_ok=True)
        environment = self._full_environment() | {"CUDA_VISIBLE_DEVICES": ",".join(self._gpus)}
        if foreground:
            self._start_in_foreground(environment)
        else:
            self._start_in_background(environment)

    def _start_in_foreground(self, environment: Mapping[str, str]) -> None:
        with self.standard_output.open("a") as output:
            child = subprocess.Popen([_command(), "-f", *self._options], env=environment, stdout=output, text=True)
        self._children.append(child)
        wait_until(lambda: self._pid_in_file() == child.pid, "the daemon's PID file")

    def _start_in_background(self, environment: Mapping[str, str]) -> None:
        result = subprocess.run(
            [_command(), "-d", *self._options],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        if result.returncode != 0:
            raise RuntimeError(f"the daemon did not start: {result.stdout.strip()} {result.stderr.strip()}")

    @property
    def pid(self) -> int:
        """The daemon's PID in the pid file."""
        pid = self._pid_in_file()
        if pid is None:
            raise RuntimeError("there is no daemon")
        return pid

    @property
    def server_pid(self) -> int | None:
        """The PID of its server, if there is one, without a query."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return int(children[0]) if children else None

    def is_running(self) -> bool:
        """Whether a daemon process runs."""
        pid = self._pid_in_file()
        return pid is not None and is_alive(pid)

    def kill(self) -> None:
        """Send SIGKILL. The server ends too, unless it was stopped; the files remain."""
        self._end(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM, like systemd. The daemon ends at once."""
        self._end(signal.SIGTERM)

    def stop_signal(self) -> None:
        """Send SIGSTOP, and wait until all threads are stopped. Every command then hangs."""
        os.kill(self.pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(self.pid), "the stop of all threads")

    def cont(self) -> None:
        """Send SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        pid, server = self.pid, self.server_pid
        os.kill(pid, number)
        wait_until(lambda: not is_alive(pid), "the daemon's end")
        wait_until(lambda: server is None or not is_alive(server) or is_stopped(server), "the server's end")
        self._reap_children()

    def close(self) -> None:
        """Kill all processes of these directories, and wait for their end."""
        for child in self._children:
            if child.stdin is not None:
                with contextlib.suppress(OSError):
                    child.stdin.close()
        wait_until(self._nothing_left_to_kill, "the end of every process of the stand-in")
        for child in self._children:
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
            if child.stderr is not None:
                child.stderr.close()
        self._assert_no_errors()

    def _assert_no_errors(self) -> None:
        """Fail if the stand-in itself had an error, so that it does not look like a dead daemon."""
        errors = _text(self.pipe_directory / ERRORS)
        if errors:
            raise RuntimeError(f"the stand-in's daemon broke:\n{errors}")

    def _nothing_left_to_kill(self) -> bool:
        """Kill the processes of these directories. Return True if there were none; new ones may have started."""
        pids = _processes_of(self.pipe_directory)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(is_alive(pid) for pid in pids), "the end of what was killed")
        self._reap_children()
        return not pids

    def _reap_children(self) -> None:
        for child in self._children:
            child.poll()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- queries ---------------------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that uses this daemon, or starts it again, over ``os.environ``.

        The folder of this Python comes second in PATH: the command begins with ``env python3``.
        """
        path = [str(BIN), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        return {
            "PATH": os.pathsep.join(path),
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_directory),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log_directory),
            **self._variables,
        }

    def ask(self, command: str, timeout: float = PATIENCE_SECONDS) -> subprocess.CompletedProcess[str]:
        """Send a command, or several lines of them, in one session.

        Raises:
            subprocess.TimeoutExpired: no answer in time.
        """
        return subprocess.run(
            [_command()],
            input=f"{command}\n",
            env=self._full_environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def ask_in_background(self, command: str) -> "subprocess.Popen[str]":
        """Send a command without waiting: for several at the same time, or for one that hangs."""
        child = self._client()
        _input_of(child).write(f"{command}\n")
        _input_of(child).close()
        child.stdin = None
        return child

    @contextlib.contextmanager
    def held_session(self) -> Iterator[None]:
        """Hold an administrator's session open during the block, so that all other commands are refused."""
        child = self._open_prompt()
        try:
            yield
        finally:
            _input_of(child).close()
            child.wait(PATIENCE_SECONDS)
        wait_until(lambda: self._request("session") != str(child.pid), "the end of the session")

    def _open_prompt(self) -> "subprocess.Popen[str]":
        """Open a session; try again if another command has one."""
        child = self._client()
        wait_until(lambda: self._holds_session(child) or child.poll() is not None, "the session")
        return child if child.poll() is None else self._open_prompt()

    def _holds_session(self, child: "subprocess.Popen[str]") -> bool:
        return self._request("session") == str(child.pid)

    def _client(self) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        child = subprocess.Popen(
            [_command()], env=self._full_environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        self._children.append(child)
        return child

    def _full_environment(self) -> dict[str, str]:
        return os.environ | self.environment()

    def _pid_in_file(self) -> int | None:
        try:
            return int(Path(pid_file(self.pipe_directory)).read_text())
        except (OSError, ValueError):
            return None

    # -- logs ------------------------------------------------------------------------------------------------------

    @property
    def control_log(self) -> str:
        """The text of control.log."""
        return _text(self.log_directory / "control.log")

    @property
    def server_log(self) -> str:
        """The text of server.log."""
        return _text(self.log_directory / "server.log")

    @property
    def truth(self) -> list[Truth]:
        """The real events in order, of all daemons of these directories. No log proves anything."""
        return [Truth.parse(line) for line in _text(self.pipe_directory / TRUTH).splitlines()]

    def truth_size(self) -> int:
        """Return a number that grows when something is added to it."""
        return (self.pipe_directory / TRUTH).stat().st_size

    # -- clients ---------------------------------------------------------------------------------------------------

    def connect(self, pid: int, uid: int = 0, devices: Sequence[int] = (0,), command: str = "") -> None:
        """Connect a process as a client on these devices (the daemon's ordinals), at once or when a server is ready.

        The end of a real process is detected. An unused PID stays until it is disconnected. `command` is the
        argv[0] that `ps` shows of such a PID; of a real process it shows the process's own.
        """
        self._request(f"connect {pid} {uid} {','.join(map(str, devices))} {command}")

    def connect_and_wait(self, pid: int, uid: int = 0, devices: Sequence[int] = (0,), command: str = "") -> None:
        """Connect a client, and wait until it is accepted."""
        self.connect(pid, uid, devices, command)
        wait_until(lambda: self.outcome(pid) == "active", f"client {pid}")

    def outcome(self, pid: int) -> str:
        """Return the state of a process that connected: pending, active, refused or gone."""
        return self._request(f"outcome {pid}")

    def limits_of(self, pid: int) -> str:
        """Return a client's limits: its percentage, and each device with its memory, as in ``40.0 0=2G``."""
        return self._request(f"limits {pid}")

    def disconnect(self, pid: int) -> None:
        """Let a client exit normally, also one that a fault affected."""
        self._request(f"disconnect {pid}")

    def kill_client(self, pid: int) -> None:
        """Let a client die while its kernel runs. Kill a real process after this."""
        self._request(f"kill {pid}")

    def fault(self, pid: int, kind: str = "memory") -> None:
        """Cause a fatal fault (`memory` or `trap`) of a client and its failure domain.

        No line names the cause as such. The clients stay until they disconnect.
        """
        self._request(f"fault {pid} {kind}")

    def slow(self, seconds: float) -> None:
        """Delay every reply by this time, during which all other commands are refused."""
        self._request(f"slow {seconds}")

    def deaf(self, deaf: bool = True) -> None:
        """Let every command succeed with an empty reply."""
        self._request(f"deaf {'on' if deaf else 'off'}")

    def say(self, log: str, text: str) -> None:
        """Write any line into the ``control`` or ``server`` log."""
        self._request(f"say {log} {text}")

    def _request(self, request: str) -> str:
        return ask_side_channel(self.pipe_directory, request, PATIENCE_SECONDS)


def ask_side_channel(pipe_directory: str | Path, request: str, seconds: float) -> str:
    """Return the answer of a daemon's side channel.

    Raises:
        OSError: there is no daemon; TimeoutError: it hangs.
        RequestError: the request is not possible now.
    """
    with sockets.connect(pipe_directory, SIDE_CHANNEL, timeout=seconds) as connection:
        connection.send(request.encode())
        answer = connection.recv(sockets.LARGEST_MESSAGE).decode()
    if not answer:
        raise ConnectionResetError(request)
    if not answer.startswith("ok"):
        raise RequestError(answer)
    return answer.removeprefix("ok").strip()


def _command() -> str:
    return str(BIN / CONTROL_NAME)


def _input_of(child: "subprocess.Popen[str]") -> IO[str]:
    if child.stdin is None:
        raise RuntimeError("its input is closed")
    return child.stdin


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not, but one whose first thread alone has ended does."""
    fields = _stat(pid)
    return bool(fields) and not (fields[0] == "Z" and int(fields[17]) <= 1)


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped all threads of a process; False if it has ended."""
    try:
        threads = [thread.name for thread in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False
    return all(_stat(int(thread))[:1] == ["T"] for thread in threads)


def this_process(pid: int) -> str:
    """Return a process as STANDIN_MPS_ASKED_BY names it: its PID and start time."""
    return f"{pid}:{_stat(pid)[19]}"


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none if there is no process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _processes_of(pipe_directory: Path) -> list[int]:
    """Return the daemons, servers and clients of a pipe directory."""
    variable = f"CUDA_MPS_PIPE_DIRECTORY={pipe_directory}".encode()
    return [pid for pid in _pids() if _is_ours(pid, variable) and is_alive(pid)]


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _is_ours(pid: int, variable: bytes) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    names = [word.rpartition(b"/")[2] for word in words[:2]]
    return any(name.startswith(b"nvidia-cuda-mps-") for name in names) and variable in environment
