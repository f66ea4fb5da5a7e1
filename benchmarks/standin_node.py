"""A node of stand-ins: a control daemon with clients that are real processes, and an NVML library."""

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.standin.mps import MpsStandIn
from tests.standin.nvml import MEBIBYTE, Behaviour, Device, NvmlStandIn, Process, hangs

CLIENT = ("sleep", "infinity")
ROOM = 64
"""How many more clients the server takes than there are: for those that come and go."""


class StandInNode:
    """So many GPUs, which one daemon serves, with so many clients on each."""

    constants: Mapping[str, Any] = MappingProxyType({"discovery": False})
    """Other daemons of the machine would be measured too. The daemon's directory is in the environment."""

    def __init__(self, gpus: int, clients_each: int, command: Sequence[str] = CLIENT) -> None:
        """`command` is what a client runs."""
        self.directory = Path(tempfile.mkdtemp(prefix="mps-node-"))
        self.title = f"stand-ins, {gpus} GPU" + "s" * (gpus != 1)
        self.clients: Sequence[int] = ()
        self._devices = [
            Device(index=index, uuid=_uuid(index), bus_id=f"0000:{index + 1:02x}:00.0") for index in range(gpus)
        ]
        self._mps = MpsStandIn(
            self.directory, gpus=[device.uuid for device in self._devices], max_clients=gpus * clients_each + ROOM
        )
        self._nvml = NvmlStandIn(self.directory)
        self._command = command
        self._clients_each = clients_each
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "StandInNode":
        """Start everything."""
        self._nvml.build()
        self._mps.start()
        for device in self._devices * self._clients_each:
            self._processes.append(subprocess.Popen(self._command))
            self._mps.connect_and_wait(self._processes[-1].pid, devices=(device.index,))
        self.clients = [process.pid for process in self._processes]
        self._write()
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._mps.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def log_directory(self) -> Path:
        """Where the daemon's logs are."""
        return self._mps.log_directory

    @property
    def server_pid(self) -> int:
        """The PID of the daemon's server; 0 where it has none."""
        return self._mps.server_pid or 0

    def fault(self) -> None:
        """A client does something fatal; all stay, and the server remains in FAULT."""
        self._mps.fault(self.clients[0])

    def adopt(self, pid: int) -> None:
        """One more client: a process of somebody else's, which stays."""
        self._mps.connect_and_wait(pid)
        self.clients = [*self.clients, pid]
        self._write()

    def environment(self) -> dict[str, str]:
        """What to set in a process that is to find the stand-ins, and no other daemon of the machine."""
        return self._mps.environment() | self._nvml.environment()

    @contextlib.contextmanager
    def daemon_hangs(self) -> Iterator[None]:
        """For so long, the daemon answers nobody."""
        self._mps.stop_signal()
        try:
            yield
        finally:
            self._mps.cont()

    @contextlib.contextmanager
    def nvml_hangs(self) -> Iterator[None]:
        """For so long, no call of NVML returns."""
        self._write(hangs("*"))
        try:
            yield
        finally:
            self._write()

    def pass_through(self, count: int) -> None:
        """So many more clients come, and go."""
        passing = [subprocess.Popen(self._command) for _ in range(count)]
        for process in passing:
            self._mps.connect_and_wait(process.pid)
        for process in passing:
            process.kill()
            process.wait()

    def _write(self, *behaviours: Behaviour) -> None:
        self._nvml.write([self._busy(device) for device in self._devices], behaviours)

    def _busy(self, device: Device) -> Device:
        """The device with its clients, and the server, to which NVML gives all their use."""
        count = len(self._devices)
        clients = [Process(pid, 2048 * MEBIBYTE) for pid in self.clients[device.index :: count]]
        server = Process(self.server_pid, 66 * MEBIBYTE, in_mps_list=False, sm_percent=50)
        return replace(device, processes=(server, *clients), gpu_percent=50, memory_percent=20)


def _uuid(index: int) -> str:
    return f"GPU-{index:08x}-b0ba-115c-7d58-bd5711d3de4b"
