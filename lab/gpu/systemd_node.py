"""A systemd in namespaces of the GPU machine, with MPS' own daemon and the exporter as their shipped units."""

import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.eventually import eventually
from tests.ports import free_address
from tests.systemd.machine import Machine
from tests.systemd.node import CONFIGURATION, GUIDE, NAME, PAGE, Node

from .clients import events_of
from .installed import install
from .mps import interpreter

INSTALL = Path(__file__).with_name("install_systemd.sh")
DEFAULTS = "/etc/default/nvidia-cuda-mps"
NOBODY = 65534
COMMAND_SECONDS = 30
DEVICE = re.compile(r"nvidia(?:\d+|ctl|-modeset|-uvm|-uvm-tools|-caps/.+)")


class Service:
    """A load program as a transient service of the machine."""

    def __init__(self, node: Node, name: str, options: Mapping[str, object]) -> None:
        self.unit = f"{name}.service"
        self._machine, self._output = node.machine, f"/tmp/{name}.jsonl"
        words = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]
        output = f"--property=StandardOutput=file:{self._output}"
        self._machine.do("systemd-run", "--quiet", "--collect", f"--unit={self.unit}", output, "/opt/load", *words)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return its events of a kind so far."""
        file = self._machine.root / self._output.lstrip("/")
        return events_of(file.read_text() if file.exists() else "", kind)

    def ready(self) -> dict[str, Any]:
        """Wait for its context and its memory, and return what it reported. Its PID is that in the machine."""

        def reported() -> dict[str, Any]:
            found = self.events("ready")
            assert found, self.events("error")
            return found[0]

        return eventually(reported, within=30)

    def errors(self) -> list[int]:
        """Wait for its first CUDA error, and return its errors."""

        def reported() -> list[int]:
            found = [int(each["code"]) for each in self.events("error")]
            assert found
            return found

        return eventually(reported, within=30)

    def stop(self) -> None:
        """Let it exit, if it runs."""
        self._machine.run("systemctl", "stop", self.unit)


class GpuMachine(Machine):
    """A machine with a time limit for each command."""

    def __init__(self, archive: Path, load_program: Path, directory: Path) -> None:
        (directory / "root").mkdir(parents=True)
        self._patience_ends = time.monotonic() + COMMAND_SECONDS
        program, python = install(directory / "program"), interpreter(NOBODY)
        super().__init__(directory / "root", install=("sh", INSTALL, archive, program, python, load_program))
        _make_devices(self.root / "dev")

    def _assert_booted(self) -> None:
        try:
            super()._assert_booted()
        except AssertionError as problem:
            if time.monotonic() < self._patience_ends:
                raise
            self._unshare.kill()
            raise RuntimeError(self._boot_log()) from problem

    def _boot_log(self) -> str:
        return (self._directory.parent / "boot.log").read_text()

    def run(self, *words: str, user: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Run a command in the machine. One that takes too long fails."""
        return super().run("timeout", str(COMMAND_SECONDS), *words, user=user)


class GpuNode(Node):
    """A node that is set up by the guides, with the GPU of this machine."""

    def __init__(self, machine: GpuMachine, directory: Path) -> None:
        super().__init__(machine, free_address(), directory)
        self.settings += "[clients]\nmin_age_seconds = 0\n"
        self.write_configuration("")
        self._services: list[Service] = []

    def set_up(self) -> None:
        """Install both units."""
        self.follow(GUIDE, "The daemon")
        self.follow(PAGE, "Install")

    def serve(self, name: str, **options: object) -> Service:
        """Start a load program as a service."""
        service = Service(self, name, options)
        self._services.append(service)
        return service

    def limit(self, percentage: int | None) -> None:
        """Set the limit of the daemon's environment file, which counts from its next start."""
        text = "" if percentage is None else f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percentage}\n"
        self.machine.write(DEFAULTS, text)

    def write_configuration(self, daemons: str) -> None:
        """Set the exporter's configuration, which counts from its next start."""
        self.machine.write(CONFIGURATION, self.settings + daemons)

    def processors(self) -> int:
        """Return the number of SMs of the GPU, from a program without MPS."""
        words = ("env", "CUDA_MPS_PIPE_DIRECTORY=/nonexistent", "/opt/load", "--seconds", "0")
        (ready,) = events_of(self.machine.do(*words), "ready")
        return int(ready["processors"])

    def counted(self, result: str) -> float:
        """Return the number of restarts with a result."""
        return self.value("cuda_mps_watchdog_restarts_total", daemon=NAME, result=result) or 0

    def leave(self) -> None:
        """End all services."""
        for service in self._services:
            service.stop()
        self._services.clear()

    def evidence(self) -> str:
        """Return the journal, for the report of a failed test."""
        return self.machine.run("journalctl", "--no-pager", "--lines=80", "--output=short-precise").stdout


def _make_devices(directory: Path) -> None:
    """Make the GPUs' device files, because a systemd has a /dev of its own."""
    for path in Path("/dev").rglob("nvidia*"):
        for device in [path] if not path.is_dir() else path.iterdir():
            name = str(device.relative_to("/dev"))
            status = device.stat()
            if DEVICE.fullmatch(name) and stat.S_ISCHR(status.st_mode):
                made = directory / name
                made.parent.mkdir(exist_ok=True)
                if not made.exists():
                    os.mknod(made, status.st_mode, status.st_rdev)
                    made.chmod(stat.S_IMODE(status.st_mode))
                    sys.stdout.write(f"made {made}\n")
