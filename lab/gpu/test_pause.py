"""While paused, the exporter has nothing of the driver open, so modules can be unloaded and GPUs reset."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from tests.eventually import eventually

from . import figures
from .clients import Clients
from .device import Device
from .program import Exporter

pytestmark = pytest.mark.gpu

READ_WITHIN = 25


def test_pause_closes_the_driver_and_resume_opens_it(exporter: Exporter, gpu: Device, clients: Clients) -> None:
    clients.start_ready("present", mib=64, seconds=120)

    def read() -> None:
        scrape = exporter.scrape()
        assert scrape.value("cuda_mps_gpu_up", gpu=gpu.uuid) == 1
        assert scrape.value("cuda_mps_exporter_paused") == 0

    eventually(read, within=READ_WITHIN)
    held = _open_devices(exporter.pid)
    assert held

    exporter.command("pause")

    assert _open_devices(exporter.pid) == []
    figures.note(driver_handles_before_pause=len(held), driver_handles_while_paused=0)

    def paused() -> None:
        scrape = exporter.scrape()
        assert scrape.value("cuda_mps_exporter_paused") == 1
        assert scrape.value("cuda_mps_gpu_up", gpu=gpu.uuid) == 0
        assert not scrape.select("cuda_mps_gpu_memory_used_bytes")
        assert scrape.value("cuda_mps_daemon_up") == 1

    eventually(paused)
    assert _open_devices(exporter.pid) == []

    exporter.command("resume")

    eventually(read, within=READ_WITHIN)


def _open_devices(pid: int) -> list[str]:
    """Return the device files of the driver that a process has open."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found.append(os.readlink(descriptor))
    return [path for path in found if path.startswith("/dev/nvidia")]
