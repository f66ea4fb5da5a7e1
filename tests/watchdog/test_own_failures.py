"""A failure of the exporter's own calls is no fact about a daemon: nothing ends, nothing is restarted."""

import builtins
import errno
import io
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from exporter.app import Assembly
from exporter.collectors.thread import CollectorThread, Inbox
from exporter.config.settings import Config, DaemonConfig
from exporter.loop import Loop, Watchdog
from exporter.model.action import Action
from exporter.model.daemon import Daemon, DaemonState, Declaration
from exporter.model.event import Event, EventName
from exporter.model.node import CollectorName, Node
from exporter.model.settings import AllowedAction, Mode
from tests.clocks import HandClock
from tests.conftest import Starter
from tests.program import constants
from tests.standin.mps import MpsStandIn

NAME = "node"
ROUNDS = 7
"""Rounds of one second with a failure: longer than any recheck, and than a daemon that has ended is unexplained."""

FAILURES: Mapping[str, tuple[int, ...]] = {
    "open": (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EIO),
    "listdir": (errno.EMFILE, errno.ENOMEM, errno.EACCES, errno.ENOENT),
    "scandir": (errno.EMFILE, errno.ENOENT),
    "stat": (errno.ENOMEM, errno.EACCES, errno.EIO),
    "readlink": (errno.ENOMEM, errno.EACCES, errno.ENOENT),
    "read": (errno.EIO, errno.ENOMEM),
    "pidfd_open": (errno.EMFILE, errno.ENOMEM, errno.ENOSYS),
    "kill": (errno.EPERM,),
    "socket": (errno.EMFILE, errno.ENOMEM, errno.EACCES),
    "fork": (errno.EMFILE, errno.ENOMEM, errno.EAGAIN),
    "thread": (errno.EAGAIN,),
}
"""Errors of each kind of call that say nothing about a daemon."""


class Faults:
    """Lets calls of this thread fail."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._thread = threading.current_thread()
        self._failing: Mapping[str, int] = {}
        self._only_below = ""
        for module, name, kind in (
            (os, "open", "open"),
            (builtins, "open", "open"),
            (io, "open", "open"),
            (os, "listdir", "listdir"),
            (os, "scandir", "scandir"),
            (os, "stat", "stat"),
            (os, "lstat", "stat"),
            (os, "readlink", "readlink"),
            (os, "read", "read"),
            (os, "pidfd_open", "pidfd_open"),
            (os, "kill", "kill"),
            (subprocess, "_fork_exec", "fork"),
            (threading.Thread, "start", "thread"),
        ):
            patch.setattr(module, name, self._wrapped(getattr(module, name), kind))
        patch.setattr(socket.socket, "__init__", self._wrapped(socket.socket.__init__, "socket"))

    @contextmanager
    def failing(self, errors: Mapping[str, int], only_below: str = "") -> Iterator[None]:
        """Let these kinds of calls fail inside; if `only_below`, those with a path below it."""
        self._failing, self._only_below = errors, only_below
        try:
            yield
        finally:
            self._failing = {}

    def _wrapped(self, function: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            code = self._failing.get(kind) if threading.current_thread() is self._thread else None
            path = arguments[0] if arguments and isinstance(arguments[0], (str, Path)) else ""
            if code is None or not str(path).startswith(self._only_below):
                return function(*arguments, **options)
            if kind == "thread":
                raise RuntimeError("can't start new thread")
            raise OSError(code, os.strerror(code))

        return call


class Service:
    """The collectors, the reducer and the watchdog that may act, without threads, on a clock that the test advances."""

    def __init__(self, mps: MpsStandIn, patch: pytest.MonkeyPatch, directory: Path) -> None:
        patch.setattr(CollectorThread, "start", lambda _thread: None)
        patch.setenv("PATH", mps.environment()["PATH"])
        self.clock = HandClock(time.time())
        self.events: list[Event] = []
        self.actions: list[Action] = []
        config = Config(
            daemons=(
                DaemonConfig(
                    label=NAME,
                    pipe_directory=mps.pipe_directory,
                    log_directory=mps.log_directory,
                    restart_command=("true",),
                ),
            ),
            runtime_directory=directory / "run",
            state_directory=directory / "state",
            watchdog=Mode.ACT,
            watchdog_allow=frozenset(AllowedAction),
            constants=constants({"journal": False}),
        )
        inbox = Inbox()
        self.assembly = Assembly(config, self.clock, inbox, process_wait=0.0)
        self.pool = self.assembly.pool()
        pipe, log = str(mps.pipe_directory), str(mps.log_directory)
        daemon = Daemon(name=NAME, pipe_directory=pipe, log_directory=log, declared=Declaration(expected=True))
        watchdog = Watchdog(config, self.clock, runner=self, chance=lambda: 0.0)
        self.loop = Loop(
            Node(daemons={NAME: daemon}),
            self.pool,
            inbox=inbox,
            clock=self.clock,
            intervals=config.constants.intervals,
            publish=lambda _node: None,
            watchdog=watchdog,
        )
        self.loop.put()

    def do(self, action: Action, _node: Node) -> None:
        self.actions.append(action)

    def break_off(self) -> None:
        """Do nothing."""

    def once(self) -> None:
        """Collect with every collector that is due, and run a cycle."""
        for thread in self.pool._all():
            due = thread.period is not None or thread._triggered.is_set()
            if due and thread.name not in (CollectorName.NVML, CollectorName.NVML_EVENTS):
                thread._triggered.clear()
                thread._collect_once()
        for _ in range(3):
            self.loop.put()
            self.events += self.loop.once(0.0)

    def seconds(self, rounds: int) -> None:
        """Let time pass."""
        for _ in range(rounds):
            self.clock.time += 1.0
            self.once()

    @property
    def state(self) -> DaemonState | None:
        return self.loop.node.daemons[NAME].state

    def lost(self) -> list[str]:
        """Return the false facts since the last call, and what the watchdog did."""
        wrong = [event.event.value for event in self.events if event.event in WRONG]
        wrong += [f"action {action.kind.value}" for action in self.actions]
        if self.loop.node.daemons[NAME].ended:
            wrong.append(f"state {self.state}")
        self.events, self.actions = [], []
        return wrong


WRONG = {
    EventName.DAEMON_LOST,
    EventName.DAEMON_STOPPED,
    EventName.DAEMON_UNRESPONSIVE,
    EventName.SERVER_EXITED,
    EventName.CLIENT_DISCONNECTED,
    EventName.WATCHDOG_ACTS,
}


@pytest.fixture
def service(mps: MpsStandIn, start: Starter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Service]:
    """A service with a daemon that has a client, and all of them known."""
    mps.start()
    client = start()
    mps.connect_and_wait(client.pid)
    service = Service(mps, monkeypatch, tmp_path)
    service.seconds(12)
    assert service.state is DaemonState.UP
    assert service.loop.node.daemons[NAME].clients.keys() == {client.pid}
    service.lost()
    yield service
    service.assembly.close()


def test_no_failure_of_a_call_ends_anything(service: Service, mps: MpsStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = Faults(monkeypatch)
    trials: list[tuple[str, Mapping[str, int], str]] = [
        (f"{kind} {errno.errorcode[code]}", {kind: code}, "") for kind, codes in FAILURES.items() for code in codes
    ]
    for code in (errno.EMFILE, errno.ENOMEM, errno.EIO):
        trials += [(f"everything {errno.errorcode[code]}", dict.fromkeys(FAILURES, code), "")]
    below_proc = dict.fromkeys(("open", "listdir", "scandir", "stat", "readlink"), errno.ENOENT)
    trials += [("/proc is not mounted", below_proc, "/proc"), ("hidepid", below_proc, "/proc/")]
    wrong: dict[str, list[str]] = {}
    for name, errors, below in trials:
        with faults.failing(errors, below):
            service.seconds(ROUNDS)
        service.seconds(2)
        if found := service.lost():
            wrong[name] = found
    assert not wrong

    service.seconds(40)
    assert service.state is DaemonState.UP
    pid = mps.pid
    mps.kill()
    with faults.failing({"open": errno.EMFILE, "listdir": errno.EMFILE}):
        service.seconds(1)
        assert service.state is DaemonState.DOWN, f"the exit of {pid} was not seen"
    service.seconds(10)
    assert [action.daemon for action in service.actions] == [NAME]
