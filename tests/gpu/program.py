"""The program under test as a user runs it: `python3 -m exporter ...`, in a process of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import program
from tests.eventually import eventually

from .child import Child
from .mps import ControlDaemon
from .scrape import Scrape, fetch

SOURCE = Path(__file__).resolve().parents[2]
# How the shell and Python name a program that leaves because of an interrupt, beside an ordinary 0.
INTERRUPTED = (0, 128 + signal.SIGINT)


def run(*arguments: str) -> str:
    """A command that ends by itself: what it prints."""
    done = subprocess.run(
        _command(*arguments), env=_environment(), cwd=SOURCE, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"{arguments}: exit code {done.returncode}\n{done.stderr}"
    return done.stdout


def doctor(daemon: ControlDaemon) -> dict[str, Any]:
    """What the preflight says of a daemon, by its own look; its exit code is the worst finding's."""
    command = _command("doctor", "--json", *_directories(daemon))
    done = subprocess.run(command, env=_environment(), cwd=SOURCE, capture_output=True, text=True, timeout=60)
    told: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == told["exit_code"], done.stderr
    return told


class Exporter:
    """`serve`, on a free port of this machine's loopback."""

    def __init__(self, daemon: ControlDaemon, *arguments: str, **constants: Any) -> None:
        self.address = f"127.0.0.1:{_free_port()}"
        self.url = f"http://{self.address}/metrics"
        command = _command(
            "serve", *_directories(daemon), f"--web.listen-address={self.address}", *arguments, **constants
        )
        output = daemon.directory / "exporter.log"
        self._environment = {
            **_environment(),
            "RUNTIME_DIRECTORY": str(daemon.directory / "run"),
            "STATE_DIRECTORY": str(daemon.directory / "state"),
        }
        self.child = Child(command, output=output, environment=self._environment, directory=SOURCE)

    def command(self, *words: str) -> str:
        """Give it a command by its socket, as `pause` and `resume` do: what that prints."""
        done = subprocess.run(
            _command(*words), env=self._environment, cwd=SOURCE, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{words}: exit code {done.returncode}\n{done.stderr}"
        return done.stdout

    def status(self, *words: str) -> str:
        """How it says that the node is, well or not."""
        done = subprocess.run(
            _command("status", *words), env=self._environment, cwd=SOURCE, capture_output=True, text=True, timeout=60
        )
        return done.stdout + done.stderr

    @property
    def pid(self) -> int:
        """For those who measure it."""
        return self.child.pid

    def wait(self) -> None:
        """Until it answers, and says something of its daemon."""
        eventually(self._assert_serves, within=20)

    def scrape(self) -> Scrape:
        """What /metrics says now. A program that has died does not come back by asking again."""
        if self.child.exit_code is not None:
            raise RuntimeError(self.evidence())
        return fetch(self.url)

    def end(self) -> None:
        """As systemd would end it. Its whole log is kept, where GPU_CAPTURES says."""
        self.child.end()
        captures = os.environ.get("GPU_CAPTURES")
        if captures:
            name = f"exporter-{self.child.output.parent.name}-{self.pid}.log"
            Path(captures, name).write_text(self.child.text())

    def evidence(self) -> str:
        """Its log, and what it says of its own eyes, for the report of a failed test."""
        try:
            told = [line for line in fetch(self.url).text.splitlines() if line.startswith("cuda_mps_exporter_source")]
        except OSError as problem:
            told = [f"{self.url}: {problem}"]
        return "\n".join([self.child.evidence(), *told])

    def _assert_serves(self) -> None:
        try:
            scrape = self.scrape()
        except OSError as problem:
            raise AssertionError(f"{self.url} does not answer\n{self.evidence()}") from problem
        assert scrape.select("cuda_mps_daemon_up"), f"no word of the daemon\n{scrape.text}\n{self.evidence()}"


class Recorder:
    """`record FILE`, which runs until it is interrupted."""

    def __init__(self, daemon: ControlDaemon, file: Path, *arguments: str) -> None:
        self.file = file
        command = _command("record", str(file), *_directories(daemon), *arguments)
        output = daemon.directory / "recorder.log"
        self.child = Child(command, output=output, environment=_environment(), directory=SOURCE)

    def text(self) -> str:
        """What is in the recording so far."""
        if self.child.exit_code not in (None, *INTERRUPTED):
            raise RuntimeError(self.evidence())
        return self.file.read_text() if self.file.exists() else ""

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.child.send(signal.SIGINT)
        assert self.child.wait() in INTERRUPTED, self.evidence()

    def interrupt_later(self) -> None:
        """Ctrl-C, without waiting for what it does then."""
        self.child.send(signal.SIGINT)

    def end(self) -> None:
        """As systemd would end it."""
        self.child.end()

    def evidence(self) -> str:
        """Its log, for the report of a failed test."""
        return self.child.evidence()


def _command(*arguments: str, **constants: Any) -> list[str]:
    return [sys.executable, *program.command(*arguments, **constants)]


def _directories(daemon: ControlDaemon) -> tuple[str, str]:
    return f"--pipe-directory={daemon.pipe_directory}", f"--log-directory={daemon.log_directory}"


def _environment() -> dict[str, str]:
    """Without the variables that name a daemon: the options must be enough."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS_")}
    path = os.pathsep.join(filter(None, [str(SOURCE), own.get("PYTHONPATH")]))
    return {**own, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
