"""Fixtures: MPS, the exporter and clients, started for a test and ended after it.

Fixtures have class scope: the tests of a class share one setup, and a single test has its own.
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
from .child import until_end
from .clients import Clients
from .device import Device
from .hung_daemon import HungDaemon
from .mps import ControlDaemon
from .program import Exporter
from .watchdog import Watchdogs


@runtime_checkable
class EvidenceSource(Protocol):
    """A fixture with text that can explain why a test failed."""

    def evidence(self) -> str:
        """Return text for the report."""


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Iterator[None]:
    """Add evidence to the report of a failed test, because the machine may not exist later."""
    outcome: Any = yield
    report: pytest.TestReport = outcome.get_result()
    if report.failed:
        # By identity: two fixtures have the same daemon, before and after its start.
        witnesses = {
            id(value): (name, value) for name, value in item.funcargs.items() if isinstance(value, EvidenceSource)
        }
        report.sections.extend((name, value.evidence()) for name, value in witnesses.values())


@pytest.fixture(scope="session")
def root() -> Iterator[Path]:
    """Yield a directory that every user can traverse. Its path is short enough for sockets."""
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
    return load.build(load.LOAD_PROGRAM, root / "load")


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    return itertools.count()


@pytest.fixture(scope="class")
def unstarted_daemon(root: Path, numbers: Iterator[int]) -> Iterator[ControlDaemon]:
    yield from until_end(ControlDaemon(root / str(next(numbers))))


@pytest.fixture(scope="class")
def daemon(unstarted_daemon: ControlDaemon) -> ControlDaemon:
    unstarted_daemon.start()
    return unstarted_daemon


@pytest.fixture(scope="class")
def exporter(daemon: ControlDaemon) -> Iterator[Exporter]:
    """Yield an exporter that shows clients of any age."""
    exporter = Exporter(daemon, "--client-min-age=0s")
    try:
        exporter.wait()
        yield exporter
    finally:
        exporter.end()


@pytest.fixture(scope="class")
def clients(unstarted_daemon: ControlDaemon, load_program: Path) -> Iterator[Clients]:
    yield from until_end(Clients(load_program, unstarted_daemon, unstarted_daemon.directory / "clients"))


@pytest.fixture(scope="class")
def watchdogs(daemon: ControlDaemon) -> Iterator[Watchdogs]:
    yield from until_end(Watchdogs(daemon))


@pytest.fixture(scope="session")
def hung_daemon(root: Path, numbers: Iterator[int], load_program: Path) -> Iterator[HungDaemon]:
    """Yield a daemon that hangs while the other tests of the watchdog run."""
    hung = HungDaemon(ControlDaemon(root / str(next(numbers))), load_program)
    hung.begin()
    yield from until_end(hung)
