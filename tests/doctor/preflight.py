"""A node of stand-ins, and the preflight on it, in one process: a library is loaded once for a whole process."""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.standin.mps import BIN, MpsStandIn
from tests.standin.nvml import MEBIBYTE, Behaviour, Device, NvmlStandIn, Process

PROGRAM = """
    import contextlib, io, json, os, sys
    from tests.program import main

    begun = dict(os.environ)
    for line in sys.stdin:
        arguments, environment = json.loads(line)
        os.environ.clear()
        os.environ.update(begun | environment)
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            code = main(["doctor", "--config.file=", *arguments])
        sys.__stdout__.write(json.dumps([code, told.getvalue()]) + "\\n")
        sys.__stdout__.flush()
"""

EXCLUSIVE_PROCESS = 3
HEALTHY = Device(compute_mode=EXCLUSIVE_PROCESS, readings={"persistence": 1, "mig": 0})

Told = dict[str, Any]


class Preflight:
    """A healthy node: a driver, a GPU in EXCLUSIVE_PROCESS, a daemon, and one client; and `doctor` to look at it."""

    def __init__(self, directory: Path, nvml: NvmlStandIn) -> None:
        self.directory = directory
        self.mps = MpsStandIn(directory)
        self.nvml = nvml
        self.bin = directory / "bin"
        self.environment = self._environment()
        self._process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM)],
            env=os.environ | self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _environment(self) -> dict[str, str]:
        self.bin.mkdir()
        (self.bin / "nvidia-cuda-mps-control").symlink_to(BIN / "nvidia-cuda-mps-control")
        server = self.bin / "nvidia-cuda-mps-server"
        server.write_text("#!/bin/sh\n")
        server.chmod(0o755)
        own = {name: str(self.directory / name) for name in ("run", "state")}
        return {
            **self.mps.environment(),
            **self.nvml.environment(),
            "PATH": f"{self.bin}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "RUNTIME_DIRECTORY": own["run"],
            "STATE_DIRECTORY": own["state"],
            "CUDA_MPS_EXPORTER_WEB_LISTEN_ADDRESS": "127.0.0.1:0",
        }

    def see(self, *processes: Process, device: Device = HEALTHY, behaviours: tuple[Behaviour, ...] = ()) -> None:
        """The driver sees these processes on its GPU, and the server of the daemon, where it has one."""
        server = self.mps.server_pid if self.mps.is_running() else None
        serving = [] if server is None else [Process(server, 66 * MEBIBYTE, in_mps_list=False)]
        self.nvml.write([replace(device, processes=(*serving, *processes))], behaviours)

    def run(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """The exit code of `doctor`, and what it says."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([arguments, self.environment | environment]) + "\n")
        self._process.stdin.flush()
        code, said = json.loads(self._process.stdout.readline())
        return code, said

    def told(self, *arguments: str, **environment: str) -> Told:
        """What it says as an object."""
        code, said = self.run("--json", *arguments, **environment)
        told: Told = json.loads(said)
        assert code == told["exit_code"]
        return told

    def close(self) -> None:
        """End all of it."""
        self._process.kill()
        self._process.communicate()
        self.mps.close()


@contextmanager
def preflight(libraries: Path) -> Iterator[Preflight]:
    """A node whose directories other users may pass, as those of a real one."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        directory.chmod(0o755)
        nvml = NvmlStandIn(directory, libraries=libraries)
        nvml.build()
        node = Preflight(directory, nvml)
        try:
            yield node
        finally:
            node.close()


def by_id(told: Told) -> Mapping[str, list[Told]]:
    """The findings by their ids."""
    found: dict[str, list[Told]] = {}
    for finding in told["findings"]:
        found.setdefault(finding["id"], []).append(finding)
    return found
