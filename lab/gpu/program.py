"""The exporter as a user runs it: `python3 -m exporter ...`, in a separate process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import program
from tests.eventually import eventually
from tests.ports import free_address

from .child import Child
from .mps import ControlDaemon
from .scrape import Scrape, fetch, page

SOURCE = Path(__file__).resolve().parents[2]
# Exit codes of a program that ends by an interrupt, in the shell and in Python, and 0.
INTERRUPTED = (0, 128 + signal.SIGINT)


def run(*arguments: str) -> str:
    """Run a command, and return its output."""
    return _succeeded(_done(*arguments, environment=_environment()))


def doctor(daemon: ControlDaemon) -> dict[str, Any]:
    """Return the output of `doctor --json` for a daemon. Its exit code is that of the worst finding."""
    done = _done("doctor", "--json", *_directories(daemon), environment=_environment())
    output: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == output["exit_code"], done.stderr
    return output


class Exporter:
    """`serve` of the checkout `source`, on a free port of the loopback address.

    It has the daemons of its configuration file, if the arguments name one, otherwise this one.
    """

    def __init__(self, daemon: ControlDaemon, *arguments: str, source: Path = SOURCE, **constants: Any) -> None:
        self.address = free_address()
        self.url = f"http://{self.address}/metrics"
        has_file = any(each.startswith("--config.file=") for each in arguments)
        directories = () if has_file else _directories(daemon)
        command = _command("serve", *directories, f"--web.listen-address={self.address}", *arguments, **constants)
        output = daemon.directory / "exporter.log"
        self._environment = {
            **_environment(source),
            "RUNTIME_DIRECTORY": str(daemon.directory / "run"),
            "STATE_DIRECTORY": str(daemon.directory / "state"),
        }
        self.child = Child(command, output=output, environment=self._environment, directory=source)

    def command(self, *words: str) -> str:
        """Run a command that uses its socket, such as `pause`, and return the output."""
        return _succeeded(_done(*words, environment=self._environment))

    def status(self, *words: str) -> str:
        """Return the output of `status`, for any exit code."""
        done = _done("status", *words, environment=self._environment)
        return done.stdout + done.stderr

    def incident(self, name: str) -> str:
        """Return the output of `incidents NAME`. Its exit code is 1 while the incident is open."""
        done = _done("incidents", name, environment=self._environment)
        assert done.stdout, done.stderr
        return done.stdout

    @property
    def pid(self) -> int:
        """The PID of the exporter."""
        return self.child.pid

    def wait(self) -> None:
        """Wait until it answers and reports its daemon."""
        eventually(self._assert_serves, within=20)

    def scrape(self) -> Scrape:
        """Return /metrics. If the exporter has exited, fail at once."""
        if self.child.exit_code is not None:
            raise RuntimeError(self.evidence())
        return fetch(self.url)

    def page(self, path: str) -> str:
        """Return another page."""
        return page(f"http://{self.address}{path}")

    def end(self) -> None:
        """End it as systemd would. Its log is copied to the directory in GPU_CAPTURES."""
        self.child.end()
        captures = os.environ.get("GPU_CAPTURES")
        if captures:
            name = f"exporter-{self.child.output.parent.name}-{self.pid}.log"
            Path(captures, name).write_text(self.child.text())

    def evidence(self) -> str:
        """Return its log and the state of its collectors, for the report of a failed test."""
        try:
            output = [line for line in fetch(self.url).text.splitlines() if line.startswith("cuda_mps_exporter_source")]
        except OSError as problem:
            output = [f"{self.url}: {problem}"]
        return "\n".join([self.child.evidence(), *output])

    def _assert_serves(self) -> None:
        try:
            scrape = self.scrape()
        except OSError as problem:
            raise AssertionError(f"{self.url} does not answer\n{self.evidence()}") from problem
        assert scrape.select("cuda_mps_daemon_up"), f"no word of the daemon\n{scrape.text}\n{self.evidence()}"


class Recorder:
    """`record FILE`, which runs until an interrupt. `environment` has more variables of it."""

    def __init__(
        self,
        daemon: ControlDaemon,
        file: Path,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        **constants: Any,
    ) -> None:
        self.file = file
        command = _command("record", str(file), *_directories(daemon), *arguments, **constants)
        output = daemon.directory / "recorder.log"
        variables = {**_environment(), **(environment or {})}
        self.child = Child(command, output=output, environment=variables, directory=SOURCE)

    def text(self) -> str:
        """Return the recording so far."""
        if self.child.exit_code not in (None, *INTERRUPTED):
            raise RuntimeError(self.evidence())
        return self.file.read_text() if self.file.exists() else ""

    def interrupt(self) -> None:
        """Send Ctrl-C, and wait for its end."""
        self.child.send(signal.SIGINT)
        assert self.child.wait() in INTERRUPTED, self.evidence()

    def interrupt_later(self) -> None:
        """Send Ctrl-C, and do not wait."""
        self.child.send(signal.SIGINT)

    def end(self) -> None:
        """End it as systemd would."""
        self.child.end()

    def evidence(self) -> str:
        """Return its log, for the report of a failed test."""
        return self.child.evidence()


def _command(*arguments: str, **constants: Any) -> list[str]:
    return [sys.executable, *program.command(*arguments, **constants)]


def _done(*arguments: str, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(_command(*arguments), env=environment, cwd=SOURCE, capture_output=True, text=True, timeout=60)


def _succeeded(done: "subprocess.CompletedProcess[str]") -> str:
    assert done.returncode == 0, f"{done.args}: exit code {done.returncode}\n{done.stderr}"
    return done.stdout


def _directories(daemon: ControlDaemon) -> tuple[str, str]:
    return f"--pipe-directory={daemon.pipe_directory}", f"--log-directory={daemon.log_directory}"


def _environment(source: Path = SOURCE) -> dict[str, str]:
    """Return the environment without the variables of MPS, because the options must be enough."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS_")}
    path = os.pathsep.join(filter(None, [str(source), own.get("PYTHONPATH")]))
    return {**own, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
