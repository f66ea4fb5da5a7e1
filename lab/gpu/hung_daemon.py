"""A daemon that SIGSTOP stops, and a watchdog that waits before it restarts the daemon.

It takes two minutes, most of it waiting. So it runs in a thread during the other tests of the watchdog.
"""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from tests.eventually import eventually

from .clients import Clients
from .limited import LimitsInForce, NewClients, all_processors
from .mps import ControlDaemon, is_live_mps
from .timing import seconds_until
from .watchdog import Event, Watchdog

HUNG_AFTER_SECONDS = 90
PATIENCE_SECONDS = 150
CLIENTS = 2


@dataclass(frozen=True, kw_only=True)
class Hang:
    """Result of the hang. `taken` is in seconds since the signal."""

    stopped: psutil.Process
    successor: psutil.Process | None
    taken: Mapping[str, float]
    diagnosed: list[Event]
    done: list[str]
    saved: list[Path]


class HungDaemon:
    """One daemon, two clients, one watchdog."""

    def __init__(self, daemon: ControlDaemon, load_program: Path) -> None:
        self._daemon = daemon
        self._clients = Clients(load_program, daemon, daemon.directory / "clients")
        self._watchdog: Watchdog | None = None
        self._threads = ThreadPoolExecutor(max_workers=1)
        self._played: Future[Hang] | None = None
        self._ended = threading.Event()

    def begin(self) -> None:
        """Start in the background."""
        self._played = self._threads.submit(self._play)

    def over(self) -> Hang:
        """Wait for the end, and return the result."""
        assert self._played is not None
        return self._played.result(PATIENCE_SECONDS)

    def end(self) -> None:
        """End all processes, in any state."""
        self._ended.set()
        if self._watchdog is not None:
            self._watchdog.end()
        self._threads.shutdown()
        self._clients.end()
        self._daemon.end()

    def evidence(self) -> str:
        """Return text for the report of a failed test."""
        evidence = "" if self._watchdog is None else self._watchdog.evidence()
        return "\n".join([evidence, self._daemon.evidence(), self._clients.evidence()])

    def _play(self) -> Hang:
        self._daemon.start()
        everything = all_processors(self._clients)
        self._watchdog = watchdog = Watchdog(self._daemon, hung_after=HUNG_AFTER_SECONDS)
        for number in range(CLIENTS):
            self._clients.start_ready(f"client{number}", mib=64, seconds=600, busy_ms=2, every_ms=20)
        eventually(watchdog.is_well)
        stopped = self._daemon.process()
        assert stopped is not None
        limits, new_clients = LimitsInForce(self._daemon), NewClients(self._clients, everything)
        os.kill(stopped.pid, signal.SIGSTOP)
        signs: dict[str, Callable[[], bool]] = {
            "unresponsive": lambda: _is_unresponsive(watchdog),
            "gone": lambda: not is_live_mps(stopped),
            "answers": lambda: self._daemon.is_replaced(stopped),
            "client": lambda: not is_live_mps(stopped) and new_clients.one_is_limited(),
            "limits": limits,
        }
        taken = seconds_until(
            within=PATIENCE_SECONDS - 20, **{name: partial(self._unless_ended, sign) for name, sign in signs.items()}
        )
        eventually(watchdog.is_well)
        return Hang(
            stopped=stopped,
            successor=self._daemon.process(),
            taken=taken,
            diagnosed=watchdog.logged("daemon_diagnosed"),
            done=watchdog.done(),
            saved=watchdog.saved(),
        )

    def _unless_ended(self, sign: Callable[[], bool]) -> bool:
        if self._ended.is_set():
            raise RuntimeError("broken off")
        return sign()


def _is_unresponsive(watchdog: Watchdog) -> bool:
    return watchdog.exporter.scrape().state("cuda_mps_daemon_state") == "unresponsive"
