"""The measured programs, each in its own process."""

import compileall
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.measure import PATIENCE_SECONDS, Fetched, fetch
from benchmarks.nodes import Node

ROOT = Path(__file__).resolve().parents[1]


class Program:
    """A program that serves metrics."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log

    @property
    def pid(self) -> int:
        """The PID."""
        return self.process.pid

    def fetch(self, path: str = "/metrics") -> Fetched:
        """Send one GET."""
        return fetch(self.port, path)

    def wait_until(
        self, pattern: str, seconds: float = PATIENCE_SECONDS, times: int | None = None, every: float = 0.1
    ) -> None:
        """Wait until the metrics match a pattern, `times` times if given; RuntimeError if they never do."""
        found = 0
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError):
                found = len(re.findall(pattern, self.fetch().text, re.MULTILINE))
                if found == times or (times is None and found):
                    return
            time.sleep(every)
        raise RuntimeError(f"{pattern}: {found} times, not {times}; its log ends:\n{self.log.read_text()[-2000:]}")


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _own() -> dict[str, str]:
    """Return this process's environment without settings of MPS and of the exporter."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS_")}


@contextlib.contextmanager
def running(command: Sequence[str], port: int, environment: Mapping[str, str], log: Path) -> Iterator[Program]:
    """Run a program during the block."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, env={**_own(), **environment}, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
        )
    try:
        yield Program(process, port, log)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def exporter(node: Node, flags: Sequence[str] = (), module: str = "tests.program") -> Iterator[Program]:
    """Run the exporter with the node's flags and these. Wait until it shows all clients and their memory.

    Its modules are compiled, as in each installation: a process that compiles them takes 7 MiB more. Its environment
    is that of the unit and of the image.
    """
    compileall.compile_dir(ROOT / "exporter", quiet=2)
    compileall.compile_file(ROOT / "tests" / "program.py", quiet=2)
    port = free_port()
    run, state, settings = (node.directory / name for name in ("run", "state", "config.toml"))
    for directory in (run, state):
        directory.mkdir(exist_ok=True)
    settings.touch()
    own = {"RUNTIME_DIRECTORY": str(run), "STATE_DIRECTORY": str(state), "CUDA_MPS_EXPORTER_CONFIG_FILE": str(settings)}
    environment = {"PYTHONNODEBUGRANGES": "1", **node.environment(), **own}
    address = f"--web.listen-address=127.0.0.1:{port}"
    command = [sys.executable, "-m", module, json.dumps(dict(node.constants)), "serve", address, *flags]
    daemon = re.escape(environment["CUDA_MPS_PIPE_DIRECTORY"])
    with running(command, port, environment, node.directory / "exporter.log") as program:
        for family in ("cuda_mps_client_info", "cuda_mps_client_memory_used_bytes"):
            program.wait_until(f'^{family}{{.*daemon="{daemon}"', times=len(node.clients))
        yield program
