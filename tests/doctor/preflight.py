"""A node of stand-ins, and `doctor` in one process for all runs: a process loads a library only once."""

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

    initial = dict(os.environ)
    for line in sys.stdin:
        arguments, environment = json.loads(line)
        os.environ.clear()
        os.environ.update(initial | environment)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            code = main(["doctor", "--config.file=", *arguments])
        sys.__stdout__.write(json.dumps([code, output.getvalue()]) + "\\n")
        sys.__stdout__.flush()
"""

EXCLUSIVE_PROCESS = 3
CORRECT = Device(compute_mode=EXCLUSIVE_PROCESS, readings={"persistence": 1, "mig": 0})

Report = dict[str, Any]


class Preflight:
    """A correct node with a driver, a GPU in EXCLUSIVE_PROCESS and a daemon, and a process that runs `doctor`."""

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

    def set_processes(
        self, *processes: Process, device: Device = CORRECT, behaviours: tuple[Behaviour, ...] = ()
    ) -> None:
        server = self.mps.server_pid if self.mps.is_running() else None
        serving = [] if server is None else [Process(server, 66 * MEBIBYTE, in_mps_list=False)]
        self.nvml.write([replace(device, processes=(*serving, *processes))], behaviours)

    def run(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Run `doctor` with these options and variables. Return its exit code and its output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([arguments, self.environment | environment]) + "\n")
        self._process.stdin.flush()
        code, output = json.loads(self._process.stdout.readline())
        return code, output

    def report(self, *arguments: str, **environment: str) -> Report:
        code, output = self.run("--json", *arguments, **environment)
        report: Report = json.loads(output)
        assert code == report["exit_code"]
        return report

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self.mps.close()


@contextmanager
def preflight(libraries: Path) -> Iterator[Preflight]:
    """Yield a node. Other users can enter its directories, as on a real one."""
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


def by_code(report: Report) -> Mapping[str, list[Report]]:
    found: dict[str, list[Report]] = {}
    for finding in report["findings"]:
        found.setdefault(finding["code"], []).append(finding)
    return found
