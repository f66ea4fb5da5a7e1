"""A client that has exited while its children hold its connection: it is listed, they are named, their end recovers.

Ten trials, with one or two children, with and without a fault, and one with an exporter that starts after the exit:
`OUT=/tmp/out lab/gpu/run.sh -k exited`, about 3 minutes.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import eventually

from . import figures
from .child import Child, until_end
from .clients import Clients
from .mps import ControlDaemon
from .program import Exporter

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).with_name("forking.py")
WITHIN = 30


class Forking:
    """A client that has exited, and its children."""

    def __init__(self, daemon: ControlDaemon, children: int) -> None:
        self._child = Child(
            [sys.executable, "-W", "ignore::DeprecationWarning", str(PROGRAM), str(children)],
            output=daemon.directory / "forking.txt",
            environment=daemon.environment,
        )
        self.pid = self._child.pid
        self.children = sorted(map(int, eventually(self._report, within=40).split()[1:]))

    def exit(self) -> None:
        """Wait until it has exited."""
        assert self._child.wait() == 0, self.evidence()

    def end(self) -> None:
        """End its children."""
        for pid in self.children:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)

    def evidence(self) -> str:
        """Return its output."""
        return self._child.evidence()

    def _report(self) -> str:
        text = self._child.text()
        assert text.endswith("\n"), self.evidence()
        return text


@pytest.fixture(params=[1, 1, 1, 2], ids=["first", "second", "third", "two-children"])
def forking(request: pytest.FixtureRequest, daemon: ControlDaemon) -> Iterator[Forking]:
    yield from until_end(Forking(daemon, request.param))


def test_an_exited_client_is_listed_with_its_holder(
    daemon: ControlDaemon, exporter: Exporter, forking: Forking
) -> None:
    eventually(lambda: _lists(exporter, forking.pid), within=WITHIN)
    forking.exit()
    eventually(lambda: _is_held(exporter, forking), within=WITHIN)
    (memory,) = exporter.scrape().select("cuda_mps_client_memory_used_bytes")
    assert memory.value > 64 << 20
    forking.end()
    eventually(lambda: _lists(exporter), within=WITHIN)


def test_the_command_that_ends_the_holders_of_an_exited_client_recovers(
    daemon: ControlDaemon, exporter: Exporter, clients: Clients, forking: Forking
) -> None:
    eventually(lambda: _lists(exporter, forking.pid), within=WITHIN)
    forking.exit()
    eventually(lambda: _is_held(exporter, forking), within=WITHIN)
    cause = clients.start_ready("cause", fault="oob", fault_after=1)
    cause.fails()
    cause.leave()

    def shown() -> str:
        steps = [step for each in _status(exporter)["findings"] for step in each["steps"]]
        found = [command for step in steps for command in step["commands"]]
        assert found, exporter.status()
        return str(found[0])

    command = eventually(shown, within=WITHIN)
    assert command == f"kill -KILL {' '.join(map(str, forking.children))}"
    began = time.monotonic()
    subprocess.run(shlex.split(command), check=True)
    eventually(lambda: _is_active(exporter, daemon), within=WITHIN)
    figures.note(recovery_after_the_end_of_holders_seconds=round(time.monotonic() - began, 2))
    assert not [line for line in exporter.child.text().splitlines() if '"stuck"' in line]


@pytest.mark.parametrize("children", [1, 2])
def test_an_exporter_that_starts_later_names_the_holder_of_an_exited_client(
    daemon: ControlDaemon, children: int
) -> None:
    forking = Forking(daemon, children)
    try:
        forking.exit()
        exporter = Exporter(daemon, "--client-min-age=0s")
        try:
            exporter.wait()
            eventually(lambda: _is_held(exporter, forking), within=WITHIN)
        finally:
            exporter.end()
    finally:
        forking.end()


def _status(exporter: Exporter) -> Any:
    return json.loads(exporter.status("--json"))


def _lists(exporter: Exporter, *pids: int) -> None:
    assert exporter.scrape().listed_pids() == list(pids)


def _is_held(exporter: Exporter, forking: Forking) -> None:
    clients = [each for server in _status(exporter)["daemons"][0]["servers"] for each in server["clients"]]
    found = [(each["pid"], sorted(each.get("held_by") or ())) for each in clients]
    assert found == [(forking.pid, forking.children)], exporter.status()


def _is_active(exporter: Exporter, daemon: ControlDaemon) -> None:
    assert exporter.scrape().state("cuda_mps_server_state", server=str(daemon.server())) == "active"
