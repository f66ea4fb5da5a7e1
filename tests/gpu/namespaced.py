"""A real MPS control daemon in mount and PID namespaces of its own, with a client there, as a container has it."""

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
    """Its pipe directory is a file system of its own, that only its namespace has; its PIDs are others than ours."""

    def __init__(self, directory: Path, load_program: Path) -> None:
        super().__init__(directory)
        self._load_program = load_program
        self._init: Child | None = None

    def start(self) -> None:
        """Start it with its client, and wait until that client is at work."""
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
        """As the host has it."""
        return self._of("nvidia-cuda-mps-control").pid

    def server_in_it(self) -> int:
        """The host's PID of its server."""
        return self._of("nvidia-cuda-mps-server").pid

    def client_in_it(self) -> int:
        """The host's PID of its client."""
        return self._of(self._load_program.name).pid

    def end(self) -> None:
        """A PID namespace ends with its first process."""
        if self._init is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._init.pid, signal.SIGKILL)
            self._init.wait()

    def evidence(self) -> str:
        """Its logs, and what its namespace said."""
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
