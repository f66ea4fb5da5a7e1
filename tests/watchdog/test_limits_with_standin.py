"""Limits put in force on the stand-in: by its own answers and logs, with the commands that come of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.model.daemon import Daemon
from exporter.model.event import Event
from exporter.model.node import Node
from exporter.model.observation import ControlReply, DaemonProcess, LogFile, LogLine, Observation
from exporter.model.settings import Limits, Mode, PollIntervals
from exporter.model.values import replace
from exporter.model.watchdog import WatchdogState
from exporter.reducer import reduce
from exporter.state import poll_schedule
from exporter.watchdog import limit_enforcement
from tests.builders import AT, DAEMON, node
from tests.standin.mps import MpsStandIn
from tests.watchdog.limits_setup import commands_of

FIRST, SECOND = 4_000_001, 4_000_002
WANTED = Limits(active_thread_percentage=40.0, pinned_memory={0: 2 << 30}, client_priority=1)
ROUND_SECONDS = 0.25


class Life:
    """Looks at the stand-in four times a second, by a clock of its own, and does what is to be done."""

    def __init__(self, mps: MpsStandIn, configured: Limits) -> None:
        self._mps = mps
        self._configured = configured
        self._read = {"control.log": 0, "server.log": 0}
        self.node: Node = node()
        self.watch = WatchdogState()
        self.events: list[Event] = []

    @property
    def daemon(self) -> Daemon:
        """As it is known."""
        return self.node.daemons[DAEMON]

    def live(self, rounds: int = 1) -> None:
        """Let time pass."""
        for _ in range(rounds):
            at = max(self.node.at, AT) + ROUND_SECONDS
            process = DaemonProcess(at=at, daemon=DAEMON, pid=self._mps.pid, start_ticks=self._mps.pid, uid=0)
            for seen in (process, *self._logs(at)):
                self.node, _ = reduce(self.node, seen)
            for command in poll_schedule.commands(self.node, DAEMON, PollIntervals()):
                self._ask(command, at)
            watch, events, action = limit_enforcement.enforce(
                self.node, self.daemon, self.watch, self._configured, Mode.ACT, at
            )
            self.watch, self.node = watch, replace(self.node, watches={DAEMON: watch})
            self.events += events
            for command in () if action is None else commands_of(action):
                self._ask(command, at)

    def _ask(self, command: str, at: float) -> None:
        if command == "-v":
            return
        done = self._mps.ask(command)
        observed = ControlReply(
            at=at,
            daemon=DAEMON,
            command=command,
            exit_code=done.returncode,
            stdout=done.stdout,
            stderr=done.stderr,
            seconds=0.002,
        )
        self.node, _ = reduce(self.node, observed)

    def _logs(self, at: float) -> Iterator[Observation]:
        for file, text in (("control.log", self._mps.control_log), ("server.log", self._mps.server_log)):
            lines = text.splitlines()
            yield LogFile(at=at, daemon=DAEMON, file=file)
            yield from (LogLine(at=at, daemon=DAEMON, file=file, line=line) for line in lines[self._read[file] :])
            self._read[file] = len(lines)


@pytest.fixture
def mps(tmp_path: Path) -> Iterator[MpsStandIn]:
    """A daemon with its percentage from its environment, as the unit gives it."""
    with MpsStandIn(tmp_path, variables={"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}) as daemon:
        daemon.start()
        yield daemon


def test_sets_limits_of_the_running_and_the_next_server(mps: MpsStandIn) -> None:
    mps.connect_and_wait(FIRST)
    life = Life(mps, WANTED)
    life.live(8)
    mps.connect_and_wait(SECOND)
    assert (mps.limits_of(FIRST), mps.limits_of(SECOND)) == ("40.0", "40.0 0=2G")
    assert life.watch.bypassed == 1
    assert life.watch.enforcement.in_force


def test_restores_the_limits_for_clients_of_a_new_daemon(mps: MpsStandIn) -> None:
    life = Life(mps, WANTED)
    life.live(4)
    mps.kill()
    mps.start()
    life.live(2)
    mps.connect_and_wait(FIRST)
    assert mps.limits_of(FIRST) == "40.0 0=2G"
    life.live(4)
    assert life.daemon.servers[mps.server_pid or 0].limits.client_priority == 1
    assert life.watch.enforcement.in_force


def test_sends_no_command_while_the_limits_are_in_force(mps: MpsStandIn) -> None:
    """Its own commands in its log, too, raise no question without end."""
    life = Life(mps, WANTED)
    mps.connect_and_wait(FIRST)
    life.live(20)
    before = mps.control_log
    life.live(40)
    assert mps.control_log == before
