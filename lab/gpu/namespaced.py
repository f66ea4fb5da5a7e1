"""A real MPS control daemon with a client in their own mount and PID namespaces, as in a container."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil

from tests.eventually import eventually

from .child import Child
from .mps import ControlDaemon

_SCRIPT = """
mount -t tmpfs tmpfs "$CUDA_MPS_PIPE_DIRECTORY" || exit
nvidia-cuda-mps-control -d || exit
"$1" --mib 64 --seconds 300 &
wait $!
sleep 300
"""


class NamespacedDaemon(ControlDaemon):
    """Only its mount namespace has its pipe directory, and its PIDs differ from the host's."""

    def __init__(self, directory: Path, load_program: Path) -> None:
        super().__init__(directory)
        self._load_program = load_program
        self._init: Child | None = None

    def start(self, **variables: str) -> None:
        """Start it with its client, and wait until the client launches kernels."""
        self._init = Child(
            [
                "unshare",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount",
                "--mount-proc",
                "sh",
                "-c",
                _SCRIPT,
                "sh",
                str(self._load_program),
            ],
            output=self.directory / "namespace.log",
            environment=self.environment,
        )
        eventually(self._assert_at_work, within=40)

    @property
    def pid(self) -> int:
        """The host's PID."""
        return self._of("nvidia-cuda-mps-control").pid

    def server_in_it(self) -> int:
        """Return the host's PID of its server."""
        return self._of("nvidia-cuda-mps-server").pid

    def client_in_it(self) -> int:
        """Return the host's PID of its client."""
        return self._of(self._load_program.name).pid

    def end(self) -> None:
        """End the first process of the PID namespace, and so the namespace."""
        if self._init is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._init.pid, signal.SIGKILL)
            self._init.wait()

    def evidence(self) -> str:
        """Return its logs and the output of its namespace."""
        return super().evidence() + ("" if self._init is None else self._init.evidence())

    def _of(self, name: str) -> psutil.Process:
        assert self._init is not None
        for process in psutil.Process(self._init.pid).children(recursive=True):
            with suppress(psutil.Error):
                if Path(process.cmdline()[0]).name == name:
                    return process
        raise AssertionError(f"no {name} in the namespace")

    def _assert_at_work(self) -> None:
        assert '"ready"' in (self._init.text() if self._init is not None else "")
        assert self.server_in_it()
