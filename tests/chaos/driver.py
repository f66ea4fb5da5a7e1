"""The GPUs' driver: it lists the clients of the harness's daemons, and raises an Xid for each fault that happens."""

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.chaos.poller import Poller
from tests.standin.mps import MpsStandIn, is_alive
from tests.standin.mps_daemon.names import pid_file
from tests.standin.nvml import Device, NvmlStandIn, Process

LOOK_SECONDS = 0.04
REPAIR_SECONDS = 5.0
"""An operator repairs a PID file that has been wrong for so long."""

XIDS = {"memory": 31, "trap": 43}
"""The Xid of each kind of fault, as measured on an H200."""

SECOND_GPU = Device(index=1, uuid="GPU-87f188b6-25f1-39ad-ceb7-643fc637f1b2", bus_id="0000:00:07.0")


class Driver(Poller):
    """A thread that follows the stand-in daemon.

    Args:
        directory: where the NVML library and its state are.
        mps: the daemon on the first GPU.
        beside: returns the server on the second GPU and its clients.
        now: returns the present server and its clients, as the daemon last said.
        daemon: returns the PID of the control daemon that runs, if there is one.
    """

    def __init__(
        self,
        directory: Path,
        mps: MpsStandIn,
        beside: Callable[[], Iterable[int]],
        now: Callable[[], tuple[int, Iterable[int]] | None],
        daemon: Callable[[], int | None],
    ) -> None:
        super().__init__(LOOK_SECONDS)
        self._nvml = NvmlStandIn(directory)
        self._mps = mps
        self._beside, self._now, self._daemon = beside, now, daemon
        self._raised = self._read = 0
        self._shown: tuple[Device, ...] = ()
        self._wrong_for = 0.0

    def environment(self) -> dict[str, str]:
        """What to set in a process that is to load this driver's library."""
        return self._nvml.environment()

    def open(self) -> None:
        """Build the library and begin."""
        self._nvml.build()
        self._follow()
        super().open()

    def pid_file_is_right(self) -> bool:
        """Return whether the control program finds the daemon."""
        try:
            return int(Path(pid_file(self._mps.pipe_directory)).read_text()) == self._daemon()
        except (OSError, ValueError):
            return False

    def look(self) -> None:
        """Show what has changed, and repair the PID file."""
        self._follow()
        self._repair()

    def _follow(self) -> None:
        first = self._now()
        server, clients = (0, ()) if first is None else first
        beside, *their_clients = self._beside()
        devices = (_device(Device(), server, clients), _device(SECOND_GPU, beside, their_clients))
        if devices != self._shown:
            self._nvml.write(devices)
            self._shown = devices
        if (size := self._mps.truth_size()) != self._read:
            self._read = size
            faults = [each for each in self._mps.truth if each.what == "fault"]
            for each in faults[self._raised :]:
                self._nvml.raise_xid(0, XIDS[each.kind])
            self._raised = len(faults)

    def _repair(self) -> None:
        """Repair a file that was tampered with, not one that was removed or is of a dead daemon."""
        daemon, path = self._daemon(), Path(pid_file(self._mps.pipe_directory))
        wrong = daemon is not None and path.exists() and not self.pid_file_is_right()
        self._wrong_for = self._wrong_for + LOOK_SECONDS if wrong else 0.0
        if self._wrong_for > REPAIR_SECONDS:
            with contextlib.suppress(OSError):
                path.write_text(f"{daemon}\n")


def _device(device: Device, server: int, clients: Iterable[int]) -> Device:
    """The server in the compute list alone, its clients in both lists, as far as they live."""
    processes = [Process(server, used_bytes=66 << 20, in_mps_list=False, sm_percent=30)] if _living(server) else []
    processes += [Process(pid) for pid in sorted(clients) if _living(pid)]
    return Device(index=device.index, uuid=device.uuid, bus_id=device.bus_id, processes=tuple(processes))


def _living(pid: int) -> bool:
    return pid > 0 and is_alive(pid)
