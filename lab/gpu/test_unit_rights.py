"""With the rights of its unit, the exporter discovers root's daemon and reads all of it.

GPU_SYSTEM_CALLS names a file with the numbers of the system calls that the unit's SystemCallFilter= leaves, as JSON;
without one, all are open.
"""

import importlib
import os
import pwd
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.eventually import eventually

from . import figures
from .child import Child
from .clients import Clients
from .device import Device
from .mps import ControlDaemon, interpreter
from .program import SOURCE
from .scrape import MIB, Scrape, fetch

pytestmark = pytest.mark.gpu

AS_UNIT = Path(__file__).with_name("as_unit.py")
USER = pwd.getpwnam("nobody").pw_uid
PACKAGES = ("jinja2", "markupsafe", "prometheus_client", "psutil", "pycxxfilt", "pynvml", "structlog", "tenacity")
ADDRESS = "127.0.0.1:10690"
CLIENT_MIB = 64
READ_WITHIN = 40


@pytest.fixture
def exporter(root: Path, daemon: ControlDaemon) -> Iterator[Child]:
    """Yield an exporter without a configured daemon, copied to a directory that its user can read."""
    program, private = root / "program", daemon.directory / "unit"
    shutil.copytree(SOURCE / "exporter", program / "exporter")
    for name in PACKAGES:
        _copy(name, program)
    private.mkdir()
    os.chown(private, USER, USER)
    calls = os.environ.get("GPU_SYSTEM_CALLS")
    numbers = "[]" if calls is None else Path(calls).read_text()
    python = interpreter(USER)
    serve = ("-m", "exporter", "serve", f"--web.listen-address={ADDRESS}")
    child = Child(
        [python, str(AS_UNIT), str(USER), numbers, python, *serve],
        output=daemon.directory / "unit.log",
        environment={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(program),
            "PYTHONDONTWRITEBYTECODE": "1",
            "RUNTIME_DIRECTORY": str(private),
            "STATE_DIRECTORY": str(private),
        },
    )
    yield child
    child.end()


@pytest.mark.usefixtures("exporter")
def test_the_units_rights_are_enough(daemon: ControlDaemon, clients: Clients, gpu: Device) -> None:
    client = clients.start_ready("present", mib=CLIENT_MIB, seconds=120)
    name = str(daemon.pipe_directory)

    def seen() -> Scrape:
        try:
            scrape = fetch(f"http://{ADDRESS}/metrics")
        except OSError as problem:
            raise AssertionError(problem) from problem
        assert scrape.value("cuda_mps_daemon_up", daemon=name) == 1
        assert scrape.value("cuda_mps_gpu_up", gpu=gpu.uuid) == 1
        assert scrape.memory_by_pid().get(client.pid, 0) >= CLIENT_MIB * MIB
        assert scrape.value("cuda_mps_exporter_log_followed", daemon=name, file="control.log") == 1
        return scrape

    scrape = eventually(seen, within=READ_WITHIN)

    blind = {each.labels["source"] for each in scrape.select("cuda_mps_exporter_source_up") if each.value == 0}
    assert blind == set()
    figures.note(unit_system_calls_filtered="GPU_SYSTEM_CALLS" in os.environ)


def _copy(package: str, to: Path) -> None:
    """Copy a package or a module."""
    found = Path(str(importlib.import_module(package).__file__))
    if found.name == "__init__.py":
        shutil.copytree(found.parent, to / package, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(found, to)
