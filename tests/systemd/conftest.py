"""One machine for all of these tests, with a running daemon and exporter."""

import os
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.ports import free_address
from tests.tools import needed, not_here

from .machine import NAMESPACES, Machine
from .node import GUIDE, PAGE, Node

PROGRAMS = ("unshare", "nsenter", "setpriv", "systemctl", "dbus-daemon", "logrotate")
SYSTEMD = Path("/lib/systemd/systemd")
POLKIT = Path("/usr/lib/polkit-1/polkitd")


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that is set up by the guide. It lasts for the session, because the files run in any order."""
    for program in PROGRAMS:
        needed(program)
    for program in (SYSTEMD, POLKIT):
        if not program.exists():
            not_here(f"{program} is not installed")
    if os.geteuid() != 0 or subprocess.run(["unshare", *NAMESPACES, "--fork", "true"], check=False).returncode:
        not_here("only root can boot a systemd, and only where namespaces can be made")
    directory = tmp_path_factory.mktemp("systemd")
    (directory / "root").mkdir()
    machine = Machine(directory / "root")
    try:
        installed = Node(machine, free_address(), directory)
        installed.follow(GUIDE, "The daemon")
        installed.follow(PAGE, "Install")
        yield installed
    finally:
        machine.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the machine's journal to the report of a failure."""
    report = yield
    node = item.funcargs.get("node")
    if report.failed and isinstance(node, Node):
        report.sections.append(("journal", node.machine.run("journalctl", "--no-pager", "--lines=200").stdout))
    return report


@pytest.fixture
def at_work(node: Node) -> None:
    """Wait until both run before a test."""
    node.settles()
