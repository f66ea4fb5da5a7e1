"""With the rights of its unit, the exporter discovers root's daemon and reads all of it.

GPU_SYSTEM_CALLS names a file with the numbers of the system calls that the unit's SystemCallFilter= leaves, as JSON;
without one, all are open.
"""

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.eventually import eventually

from . import figures
from .clients import Clients
from .device import Device
from .installed import InstalledExporter, install, with_rights_of_unit
from .mps import ControlDaemon
from .scrape import MIB, Scrape

pytestmark = pytest.mark.gpu

USER = pwd.getpwnam("nobody").pw_uid
CLIENT_MIB = 64
READ_WITHIN = 40


@pytest.fixture
def exporter(root: Path, daemon: ControlDaemon) -> Iterator[InstalledExporter]:
    """Yield an exporter without a configured daemon."""
    program = install(root / "program")
    exporter = InstalledExporter(program, daemon.directory / "unit", uid=USER, prefix=with_rights_of_unit(USER))
    yield exporter
    exporter.end()


def test_the_units_rights_are_enough(
    exporter: InstalledExporter, daemon: ControlDaemon, clients: Clients, gpu: Device
) -> None:
    client = clients.start_ready("present", mib=CLIENT_MIB, seconds=120)
    name = str(daemon.pipe_directory)

    def seen() -> Scrape:
        scrape = exporter.scrape()
        assert scrape.value("cuda_mps_daemon_up", daemon=name) == 1
        assert scrape.value("cuda_mps_gpu_up", gpu=gpu.uuid) == 1
        assert scrape.memory_by_pid().get(client.pid, 0) >= CLIENT_MIB * MIB
        assert scrape.value("cuda_mps_exporter_log_followed", daemon=name, file="control.log") == 1
        return scrape

    scrape = eventually(seen, within=READ_WITHIN)

    blind = {each.labels["source"] for each in scrape.select("cuda_mps_exporter_source_up") if each.value == 0}
    assert blind == set()
    figures.note(unit_system_calls_filtered="GPU_SYSTEM_CALLS" in os.environ)
