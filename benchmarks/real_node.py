"""A real node: the GPU of the machine, a control daemon in its own directories, and CUDA clients."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lab.gpu import clients as load
from lab.gpu.clients import Clients
from lab.gpu.mps import ControlDaemon

LOAD = Path(__file__).parents[1] / "tests" / "gpu" / "load.cu"


class RealNode:
    """One GPU with clients that each launch a short kernel five times a second."""

    constants: Mapping[str, Any] = MappingProxyType({})
    """Empty: the exporter has default settings, on a machine without other daemons."""

    def __init__(self, clients: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="mps", dir="/tmp"))
        self.directory.chmod(0o755)
        self.title = _gpu()
        self.clients: Sequence[int] = ()
        self._count = clients
        self._daemon = ControlDaemon(self.directory / "daemon")
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> "RealNode":
        """Start all processes."""
        with contextlib.ExitStack() as starting:
            starting.callback(shutil.rmtree, self.directory, ignore_errors=True)
            starting.callback(self._daemon.end)
            self._daemon.start()
            program = load.build(LOAD, self.directory / "load")
            clients = Clients(program, self._daemon, self.directory / "clients")
            starting.callback(clients.end)
            started = [
                clients.start(f"c{number}", seconds=3600, busy_ms=1, every_ms=200) for number in range(self._count)
            ]
            for client in started:
                client.ready()
            self.clients = [client.pid for client in started]
            self._closing = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes."""
        self._closing.close()

    def adopt(self, pid: int) -> None:
        """Add a process of the caller as a client. It has this node's environment and connects by itself."""
        self.clients = [*self.clients, pid]

    def environment(self) -> dict[str, str]:
        """Return the environment of a client."""
        return self._daemon.environment

    @contextlib.contextmanager
    def daemon_hangs(self) -> Iterator[None]:
        """Let the daemon answer no command during the block. Connected clients continue."""
        os.kill(self._daemon.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._daemon.pid, signal.SIGCONT)


def _gpu() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()[0]
