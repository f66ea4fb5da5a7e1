"""A real MPS control daemon in its own directories."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.eventually import eventually

# The names end in -control or -server; the kernel has 15 characters of them.
COMM = "nvidia-cuda-mps"
# Length of the longest path of a Unix socket, without the terminating zero.
SOCKET_PATH_LIMIT = 107
EVIDENCE_LINES = 40


def chosen_gpu() -> dict[str, str]:
    """Return the variable of a daemon that has only the GPU with the index in GPU (0)."""
    return {"CUDA_VISIBLE_DEVICES": os.environ.get("GPU", "0")}


class ControlDaemon:
    """A daemon that can be started again in the directories that the previous one left.

    `uid` is its user, if it is not the user of the tests. `options` are added to `-d`. It starts with `variables`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        uid: int | None = None,
        options: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.variables = variables or {}
        self._uid = uid
        self._options = options
        self.pipe_directory = directory / "pipe"
        self.log_directory = directory / "log"
        assert len(str(self.pipe_directory / "control_privileged")) <= SOCKET_PATH_LIMIT
        for each in (directory, self.pipe_directory, self.log_directory):
            each.mkdir(exist_ok=True)
            each.chmod(0o755)
            if uid is not None:
                os.chown(each, uid, uid)

    @property
    def environment(self) -> dict[str, str]:
        """The environment that makes a CUDA program a client of this daemon."""
        directories = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_directory),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log_directory),
        }
        return {**os.environ, **directories}

    @property
    def control_log(self) -> Path:
        """The daemon's log. It has five lines for each query."""
        return self.log_directory / "control.log"

    @property
    def server_log(self) -> Path:
        """The log of all its servers."""
        return self.log_directory / "server.log"

    @property
    def pid(self) -> int:
        """The PID in the pid file. The file remains after SIGKILL, so it does not prove that the daemon runs."""
        text = (self.pipe_directory / "nvidia-cuda-mps-control.pid").read_text()
        return int(text.strip())

    def process(self) -> psutil.Process | None:
        """Return the running daemon, if there is one."""
        try:
            found = psutil.Process(self.pid)
            return found if is_live_mps(found) else None
        except (OSError, ValueError, psutil.NoSuchProcess):
            return None

    def servers(self) -> list[int]:
        """Return its child processes. A query would collide with those of the exporter."""
        daemon = self.process()
        if daemon is None:
            return []
        return sorted(child.pid for child in daemon.children() if is_live_mps(child))

    def server(self) -> int:
        """Return the PID of its only server."""
        (only,) = self.servers()
        return only

    def clients(self) -> set[int]:
        """Return the clients that it lists."""
        replies = [self.command(f"get_client_list {server}") for server in self.servers()]
        return {int(word) for reply in replies for word in reply.split() if word.isdigit()}

    def start(self, **variables: str) -> None:
        """Start it with these variables, and wait until it answers."""
        with (self.directory / "start.log").open("ab") as output:
            subprocess.run(
                ["nvidia-cuda-mps-control", "-d", *self._options],
                env={**self.environment, **self.variables, **variables},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=True,
                timeout=20,
                **as_user(self._uid),
            )
        eventually(self._assert_answers, within=15)

    def command(self, text: str, within: float = 10) -> str:
        """Return the reply to a command. A command that collides with another session is repeated."""
        return eventually(lambda: self._ask(text), within=within)

    def is_replaced(self, former: psutil.Process) -> bool:
        """Return whether that daemon has exited and another one answers one query."""
        return not is_live_mps(former) and self.answers()

    def answers(self, within: float = 2) -> bool:
        """Return whether it answers one query."""
        try:
            self._ask("get_server_list", within)
        except (AssertionError, subprocess.TimeoutExpired):
            return False
        return True

    def quit(self) -> None:
        """End it with `quit`, as an operator does."""
        daemon = self.process()
        assert daemon is not None
        self.command("quit")
        eventually(lambda: self._assert_gone(daemon), within=20)

    def kill(self) -> None:
        """Send SIGKILL. Server and clients end, too."""
        daemon = self.process()
        assert daemon is not None
        daemon.kill()

    def end(self) -> None:
        """End all processes of this daemon, in any state."""
        if self.process() is not None:
            with suppress(AssertionError, subprocess.SubprocessError):
                self._ask("quit -t 2")
                eventually(self._assert_all_gone, within=5)
        for process in self._members():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def evidence(self) -> str:
        """Return the end of both logs, for the report of a failed test."""
        return "\n".join(f"{log}\n{_tail(log)}" for log in (self.control_log, self.server_log))

    def _ask(self, text: str, within: float = 10) -> str:
        reply = subprocess.run(
            ["nvidia-cuda-mps-control"],
            input=text + "\n",
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=within,
        )
        assert reply.returncode == 0, f"{text}: {reply.stderr.strip()}"
        return reply.stdout

    def _assert_answers(self) -> None:
        assert self.process() is not None
        self._ask("get_server_list")

    def _assert_gone(self, daemon: psutil.Process) -> None:
        assert not daemon.is_running() or not is_live_mps(daemon)

    def _assert_all_gone(self) -> None:
        assert not self._members()

    def _members(self) -> list[psutil.Process]:
        """Return all processes with this pipe directory in their environment: daemon, servers, clients."""
        return [process for process in psutil.process_iter() if self._owns(process)]

    def _owns(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("CUDA_MPS_PIPE_DIRECTORY") == str(self.pipe_directory)
        except (psutil.Error, OSError):
            return False


def as_user(uid: int | None) -> dict[str, Any]:
    """Return arguments for subprocess to run as that user; None: as the present user."""
    return {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}


def is_live_mps(process: psutil.Process) -> bool:
    """Return whether the process is MPS and not a zombie."""
    try:
        return process.name().startswith(COMM) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _tail(log: Path) -> str:
    if not log.exists():
        return "(does not exist)"
    return "\n".join(log.read_text(errors="replace").splitlines()[-EVIDENCE_LINES:])


def interpreter(uid: int | None) -> str:
    """Return a Python that the user can start. That of the tests may be in a private directory."""
    system = shutil.which("python3", path=os.defpath)
    candidates = [sys.executable, *([system] if system else [])]
    for candidate in candidates:
        if _starts(candidate, uid):
            return candidate
    raise RuntimeError(f"user {uid} can start none of {candidates}")


def _starts(python: str, uid: int | None) -> bool:
    try:
        subprocess.run([python, "-c", ""], cwd="/", check=True, capture_output=True, **as_user(uid))
    except (OSError, subprocess.CalledProcessError):
        return False
    return True
