"""The NVML stand-in for tests: build the library, set the driver's state, let it fail or hang.

The program under test loads it through the real nvidia-ml-py, in a process started with ``environment()``.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY_NAME = "libnvidia-ml.so.1"

NOT_SUPPORTED = 3
NO_PERMISSION = 4
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
GPU_IS_LOST = 15
UNKNOWN = 999

MEBIBYTE = 1 << 20
DRIVER = "580.159.04"

LATEST_XIDS = 64
"""Number of Xids in the state file. Its reader has room for 256; older ones were delivered."""


class CompilerMissingError(RuntimeError):
    """The library cannot be built without gcc."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a device in NVML's lists.

    An MPS client is in both lists and has no utilisation of its own; the server is in the compute list alone, and
    NVML gives it the whole SM utilisation; a process beside MPS is in the compute list, with its own percentage.
    """

    pid: int
    used_bytes: int = 516 * MEBIBYTE
    in_mps_list: bool = True
    sm_percent: int | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU and its processes."""

    index: int = 0
    uuid: str = "GPU-1efa3f60-b0ba-115c-7d58-bd5711d3de4b"
    name: str = "NVIDIA H200"
    bus_id: str = "0000:00:06.0"
    compute_capability: tuple[int, int] = (9, 0)
    memory_total_bytes: int = 150_754_820_096
    memory_used_bytes: int = 645_070_848
    energy_millijoules: int = 0
    gpu_percent: int = 0
    memory_percent: int = 0
    compute_mode: int = 0
    readings: Mapping[str, float] = field(default_factory=dict)
    """Values by the names in ``nvml.c``. A missing one is not supported."""
    processes: tuple[Process, ...] = ()
    instances: tuple["Instance", ...] = ()
    """MIG instances. The GPU is in MIG mode if its readings have `mig` = 1."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance: its profile, such as 1g.18gb, its numbers, and what NVML reports of it as a device."""

    uuid: str
    profile: str
    gpu_instance: int
    compute_instance: int = 0
    sms: int = 16
    memory_total_bytes: int = 18 << 30
    memory_used_bytes: int = 64 * MEBIBYTE
    readings: Mapping[str, float] = field(default_factory=dict)
    processes: tuple[Process, ...] = ()

    def device(self, parent: Device, position: int) -> Device:
        """Return it as a device with an index of its own."""
        return Device(
            index=FIRST_MIG_DEVICE + 8 * parent.index + position,
            uuid=self.uuid,
            name=f"{parent.name} MIG {self.profile}",
            bus_id=parent.bus_id,
            compute_capability=parent.compute_capability,
            memory_total_bytes=self.memory_total_bytes,
            memory_used_bytes=self.memory_used_bytes,
            readings=self.readings,
            processes=self.processes,
        )


FIRST_MIG_DEVICE = 100


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Failure of a function, on one device or (``device=None``) on all. ``function`` may be ``*``."""

    function: str
    kind: str
    value: int = 0
    device: int | None = None


def fails(function: str, code: int, device: int | None = None) -> Behaviour:
    """Let the function return this error code."""
    return Behaviour(function, "error", code, device)


def hangs(function: str, device: int | None = None) -> Behaviour:
    """Let the function hang until a state without this is written."""
    return Behaviour(function, "hang", 0, device)


def slow(function: str, milliseconds: int, device: int | None = None) -> Behaviour:
    """Delay the function, as NVML does while clients start or exit."""
    return Behaviour(function, "slow", milliseconds, device)


@dataclass(frozen=True, slots=True)
class _State:
    devices: tuple[Device, ...] = ()
    behaviours: tuple[Behaviour, ...] = ()
    xids: tuple[tuple[int, int], ...] = ()
    driver: str = DRIVER
    cuda: int = 13000

    def lines(self) -> list[str]:
        """Return the state in the format of ``nvml.c``."""
        lines = [f"driver {self.driver} {self.cuda}"]
        instances = [
            (device, position, instance)
            for device in self.devices
            for position, instance in enumerate(device.instances)
        ]
        for parent, position, instance in instances:
            number = instance.device(parent, position).index
            numbers = f"{instance.gpu_instance} {instance.compute_instance} {instance.sms}"
            lines.append(f"mig {parent.index} {position} {number} {numbers}")
        for device in (*self.devices, *(instance.device(parent, position) for parent, position, instance in instances)):
            lines.append(_device_line(device))
            lines.extend(f"reading {device.index} {name} {value}" for name, value in device.readings.items())
            lines.extend(_process_line(device.index, process) for process in device.processes)
        xids = list(enumerate(self.xids, start=1))[-LATEST_XIDS:]
        lines.extend(f"xid {number} {device} {xid}" for number, (device, xid) in xids)
        lines.extend(_behaviour_line(behaviour) for behaviour in self.behaviours)
        return lines


class NvmlStandIn:
    """A stand-in driver with its library and state file in ``directory``.

    Args:
        directory: directory of the library and the state file.
        without: symbols that this driver lacks, e.g. ``("nvmlDeviceGetMPSComputeRunningProcesses_v3",)``.
        version: the one driver version with which this library works; by default it works with all.
        libraries: directory of libraries that several stand-ins share.
    """

    def __init__(
        self,
        directory: Path,
        without: Sequence[str] = (),
        version: str | None = None,
        libraries: Path | None = None,
    ) -> None:
        self._directory = directory
        self._libraries = directory if libraries is None else libraries
        self._flags = [f"-D{symbol}=absent_{symbol}" for symbol in without]
        if version is not None:
            self._flags.append(f'-DVERSION="{version}"')
        self._state = _State()
        self.state_file = directory / "nvml-state"
        self.device_file = directory / "nvidia0"

    @property
    def library(self) -> Path:
        """Path of the library. Another source or other flags have another directory."""
        recipe = SOURCE.read_bytes() + " ".join(self._flags).encode()
        return self._libraries / f"nvml-{hashlib.sha256(recipe).hexdigest()[:12]}" / LIBRARY_NAME

    def build(self) -> Path:
        """Compile the library unless it exists, and write an empty state if there is none.

        Raises:
            CompilerMissingError: gcc is not installed.
        """
        if not self.state_file.exists():
            self.write(())
        self.device_file.touch()
        if not self.library.exists():
            self._compile()
        return self.library

    def _compile(self) -> None:
        compiler = shutil.which("gcc")
        if compiler is None:
            raise CompilerMissingError("the NVML stand-in is a C library, and gcc is not installed here")
        self.library.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.library.with_suffix(".building")
        options = ["-shared", "-fPIC", "-O1", "-pthread", "-Wall", "-Wextra", f"-Wl,-soname,{LIBRARY_NAME}"]
        command = [compiler, *options, *self._flags, "-o", str(unfinished), str(SOURCE)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"gcc could not build the NVML stand-in:\n{result.stderr}")
        unfinished.replace(self.library)

    def write(self, devices: Sequence[Device], behaviours: Sequence[Behaviour] = ()) -> None:
        """Set the driver's devices and failures. Raised Xids stay raised."""
        self._publish(replace(self._state, devices=tuple(devices), behaviours=tuple(behaviours)))

    def install_driver(self, version: str, cuda: int = 13000) -> None:
        """Set the version of the driver in the kernel and of its CUDA. Libraries of other versions then fail."""
        self._publish(replace(self._state, driver=version, cuda=cuda))

    def raise_xid(self, device: int, number: int) -> None:
        """Raise an Xid. Every event set that is registered for the device gets the event."""
        self._publish(replace(self._state, xids=(*self._state.xids, (device, number))))

    def _publish(self, state: _State) -> None:
        """Replace the file in one step, so that no call reads a partial file."""
        self._state = state
        self._directory.mkdir(parents=True, exist_ok=True)
        unfinished = self.state_file.with_suffix(".new")
        unfinished.write_text("\n".join(state.lines()) + "\n", errors="surrogateescape")
        unfinished.replace(self.state_file)
        self._hangs.unlink(missing_ok=True)

    @property
    def _hangs(self) -> Path:
        return self.state_file.with_name(f"{self.state_file.name}.hangs")

    def a_call_hangs(self) -> bool:
        """Return whether a call hangs, or has hung since the state was last written."""
        return self._hangs.exists()

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that loads this library, over ``os.environ``."""
        paths = [str(self.library.parent), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            "LD_LIBRARY_PATH": os.pathsep.join(path for path in paths if path),
            "STANDIN_NVML_STATE": str(self.state_file),
            "STANDIN_NVML_DEVICE": str(self.device_file),
        }


def without_driver(directory: Path) -> dict[str, str]:
    """Return the environment of a process that finds no NVML library, also on a machine with one."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / LIBRARY_NAME).write_text("no library")
    return {"LD_LIBRARY_PATH": str(directory)}


def _device_line(device: Device) -> str:
    major, minor = device.compute_capability
    return (
        f"device {device.index} {device.uuid} {device.bus_id} {major} {minor} {device.memory_total_bytes} "
        f"{device.memory_used_bytes} {device.energy_millijoules} {device.gpu_percent} {device.memory_percent} "
        f"{device.compute_mode} {device.name}"
    )


def _process_line(device: int, process: Process) -> str:
    sm_percent = -1 if process.sm_percent is None else process.sm_percent
    return f"process {device} {process.pid} {process.used_bytes} {process.in_mps_list:d} {sm_percent}"


def _behaviour_line(behaviour: Behaviour) -> str:
    device = "*" if behaviour.device is None else behaviour.device
    return f"behaviour {behaviour.function} {device} {behaviour.kind} {behaviour.value}"
