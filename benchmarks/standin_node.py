"""A node of stand-ins: a control daemon, an NVML library, and real processes as clients."""

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks import launching_client
from tests.libcuda_probes.standin import StandInCuda
from tests.standin.mps import MpsStandIn
from tests.standin.nvml import MEBIBYTE, Behaviour, Device, NvmlStandIn, Process, hangs

CLIENT = ("sleep", "infinity")
ROOM = 64
"""Free client slots, for clients that connect and exit."""


class StandInNode:
    """GPUs of one daemon, with clients on each."""

    constants: Mapping[str, Any] = MappingProxyType({"discovery": False})
    """Without discovery, because other daemons would be measured too. The environment names the directory."""

    def __init__(
        self, gpus: int, clients_each: int, command: Sequence[str] = CLIENT, *, launching: bool = False
    ) -> None:
        """`command` is the program of a client. If `launching`, it is one that launches kernels instead."""
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
        self._launching = launching
        self._clients_each = clients_each
        self._processes: list[subprocess.Popen[bytes]] = []
        self._bypassing: deque[subprocess.Popen[bytes]] = deque()

    def __enter__(self) -> "StandInNode":
        """Start all processes."""
        self._nvml.build()
        self._mps.start()
        if self._launching:
            library = StandInCuda(self.directory).library
            self._command = sys.executable, launching_client.__file__, str(library)
        for device in self._devices * self._clients_each:
            self._processes.append(subprocess.Popen(self._command))
            self._mps.connect_and_wait(self._processes[-1].pid, devices=(device.index,))
        self.clients = [process.pid for process in self._processes]
        self._write()
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes."""
        for process in (*self._processes, *self._bypassing):
            process.kill()
            process.wait()
        self._mps.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def log_directory(self) -> Path:
        """The directory of the daemon's logs."""
        return self._mps.log_directory

    @property
    def server_pid(self) -> int:
        """The PID of the daemon's server; 0 without one."""
        return self._mps.server_pid or 0

    def fault(self) -> None:
        """Cause a fault. All clients stay, so the server remains in FAULT."""
        self._mps.fault(self.clients[0])

    def adopt(self, pid: int) -> None:
        """Add a process of the caller as a client."""
        self._mps.connect_and_wait(pid)
        self.clients = [*self.clients, pid]
        self._write()

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that uses the stand-ins and no other daemon."""
        return self._mps.environment() | self._nvml.environment()

    @contextlib.contextmanager
    def daemon_hangs(self) -> Iterator[None]:
        """Let the daemon answer no command during the block."""
        self._mps.stop_signal()
        try:
            yield
        finally:
            self._mps.cont()

    @contextlib.contextmanager
    def nvml_hangs(self) -> Iterator[None]:
        """Let no call of NVML return during the block."""
        self._write(hangs("*"))
        try:
            yield
        finally:
            self._write()

    def pass_through(self, count: int) -> None:
        """Let more clients connect and exit."""
        passing = [subprocess.Popen(self._command) for _ in range(count)]
        for process in passing:
            self._mps.connect_and_wait(process.pid)
        for process in passing:
            process.kill()
            process.wait()

    def replace_bypassing(self, count: int) -> None:
        """End the oldest process outside MPS, and start others until there are `count`."""
        if self._bypassing:
            oldest = self._bypassing.popleft()
            oldest.kill()
            oldest.wait()
        while len(self._bypassing) < count:
            self._bypassing.append(subprocess.Popen(CLIENT))
        self._write()

    def _write(self, *behaviours: Behaviour) -> None:
        self._nvml.write([self._busy(device) for device in self._devices], behaviours)

    def _busy(self, device: Device) -> Device:
        """Return the device with its clients and the server, which has all utilization in NVML."""
        count = len(self._devices)
        clients = [Process(pid, 2048 * MEBIBYTE) for pid in self.clients[device.index :: count]]
        server = Process(self.server_pid, 66 * MEBIBYTE, in_mps_list=False, sm_percent=50)
        outside = [
            Process(each.pid, in_mps_list=False, sm_percent=1)
            for each in self._bypassing
            if each.pid % count == device.index
        ]
        readings = {"sm_utilization": 20.0, "dram_bandwidth": 10.0} if self._launching else {}
        return replace(
            device, processes=(server, *clients, *outside), gpu_percent=50, memory_percent=20, readings=readings
        )


def _uuid(index: int) -> str:
    return f"GPU-{index:08x}-b0ba-115c-7d58-bd5711d3de4b"
