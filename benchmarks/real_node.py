"""A real node: the GPU of the machine, a control daemon in directories of its own, and clients that run CUDA."""

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

from tests.gpu import clients as load
from tests.gpu.clients import Clients
from tests.gpu.mps import ControlDaemon

LOAD = Path(__file__).parents[1] / "tests" / "gpu" / "load.cu"


class RealNode:
    """One GPU with so many clients, each of which launches a short kernel five times a second."""

    constants: Mapping[str, Any] = MappingProxyType({})
    """None: it is measured with default settings, on a machine without other daemons."""

    def __init__(self, clients: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="mps", dir="/tmp"))
        self.directory.chmod(0o755)
        self.title = _gpu()
        self.clients: Sequence[int] = ()
        self._count = clients
        self._daemon = ControlDaemon(self.directory / "daemon")
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> "RealNode":
        """Start everything."""
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
        """End everything."""
        self._closing.close()

    def adopt(self, pid: int) -> None:
        """One more client: a process of somebody else's that has this node's environment, and connects by itself."""
        self.clients = [*self.clients, pid]

    def environment(self) -> dict[str, str]:
        """What to set in a process that is to find the daemon."""
        return self._daemon.environment

    @contextlib.contextmanager
    def daemon_hangs(self) -> Iterator[None]:
        """For so long, the daemon answers nobody; those who are connected run on."""
        os.kill(self._daemon.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._daemon.pid, signal.SIGCONT)


def _gpu() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()[0]
