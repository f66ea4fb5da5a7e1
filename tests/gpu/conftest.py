"""MPS, the program and its clients, each set up for a test and ended after it.

The fixtures have the scope of a class: the tests of a class look at one scene, and a test of its own has one to itself.
"""

import datetime
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pytest

from . import clients as load
from . import device, figures
from .clients import Clients
from .device import Device
from .hung_daemon import HungDaemon
from .mps import ControlDaemon
from .program import Exporter
from .watchdog import Watchdogs


@runtime_checkable
class Witness(Protocol):
    """What can say something about why a test failed."""

    def evidence(self) -> str:
        """Text for the report."""


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Iterator[None]:
    """A failure on a machine that will be gone in a minute must bring its evidence along."""
    outcome: Any = yield
    report: pytest.TestReport = outcome.get_result()
    if report.failed:
        # By identity: a daemon is there under two names, before and after its start.
        witnesses = {id(value): (name, value) for name, value in item.funcargs.items() if isinstance(value, Witness)}
        report.sections.extend((name, value.evidence()) for name, value in witnesses.values())


@pytest.fixture(scope="session")
def root() -> Iterator[Path]:
    """A short path, for the sockets' sake, which every user can traverse."""
    given = os.environ.get("GPU_TESTS_ROOT")
    if given is not None:
        yield Path(given)
        return
    directory = Path(tempfile.mkdtemp(prefix="mps", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def gpu() -> Device:
    found = device.the_device()
    figures.note(date=datetime.datetime.now(datetime.UTC).date().isoformat(), gpu=found.name, driver=found.driver)
    return found


@pytest.fixture(scope="session")
def load_program(root: Path) -> Path:
    if shutil.which("nvcc") is None:
        pytest.fail("nvcc is not on the PATH: without it there are no clients of known load")
    return load.build(Path(__file__).with_name("load.cu"), root / "load")


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    return itertools.count()


@pytest.fixture(scope="class")
def unstarted_daemon(root: Path, numbers: Iterator[int]) -> Iterator[ControlDaemon]:
    daemon = ControlDaemon(root / str(next(numbers)))
    yield daemon
    daemon.end()


@pytest.fixture(scope="class")
def daemon(unstarted_daemon: ControlDaemon) -> ControlDaemon:
    unstarted_daemon.start()
    return unstarted_daemon


@pytest.fixture(scope="class")
def exporter(daemon: ControlDaemon) -> Iterator[Exporter]:
    """The program, showing clients of any age."""
    exporter = Exporter(daemon, "--client-min-age=0s")
    try:
        exporter.wait()
        yield exporter
    finally:
        exporter.end()


@pytest.fixture(scope="class")
def clients(unstarted_daemon: ControlDaemon, load_program: Path) -> Iterator[Clients]:
    clients = Clients(load_program, unstarted_daemon, unstarted_daemon.directory / "clients")
    yield clients
    clients.end()


@pytest.fixture(scope="class")
def watchdogs(daemon: ControlDaemon) -> Iterator[Watchdogs]:
    watchdogs = Watchdogs(daemon)
    yield watchdogs
    watchdogs.end()


@pytest.fixture(scope="session")
def hung_daemon(root: Path, numbers: Iterator[int], load_program: Path) -> Iterator[HungDaemon]:
    """It hangs while the other tests of the watchdog run, which need only ask for it."""
    scene = HungDaemon(ControlDaemon(root / str(next(numbers))), load_program)
    scene.begin()
    yield scene
    scene.end()
