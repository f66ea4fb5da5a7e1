"""A daemon that is stopped by a signal, and the watchdog that waits long enough before it restarts it.

It takes two minutes, most of it waiting: so it is played in a thread, beside the other tests of the watchdog.
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
from .limited import LimitsInForce, Newcomers, all_processors
from .mps import ControlDaemon, is_live_mps
from .race import seconds_until
from .watchdog import Said, Watchdog

HUNG_AFTER_SECONDS = 90
PATIENCE_SECONDS = 150
TENANTS = 2


@dataclass(frozen=True, kw_only=True)
class Hang:
    """What became of it; `taken` is in seconds from the signal on."""

    stopped: psutil.Process
    successor: psutil.Process | None
    taken: Mapping[str, float]
    diagnosed: list[Said]
    done: list[str]
    saved: list[Path]


class HungDaemon:
    """The scene: one daemon, two clients, one watchdog."""

    def __init__(self, daemon: ControlDaemon, load_program: Path) -> None:
        self._daemon = daemon
        self._clients = Clients(load_program, daemon, daemon.directory / "clients")
        self._watchdog: Watchdog | None = None
        self._threads = ThreadPoolExecutor(max_workers=1)
        self._played: Future[Hang] | None = None
        self._ended = threading.Event()

    def begin(self) -> None:
        """Let it take its course."""
        self._played = self._threads.submit(self._play)

    def over(self) -> Hang:
        """What became of it, once it is over."""
        assert self._played is not None
        return self._played.result(PATIENCE_SECONDS)

    def end(self) -> None:
        """Leave nobody behind, also where it is not over."""
        self._ended.set()
        if self._watchdog is not None:
            self._watchdog.end()
        self._threads.shutdown()
        self._clients.end()
        self._daemon.end()

    def evidence(self) -> str:
        """For the report of a failed test."""
        said = "" if self._watchdog is None else self._watchdog.evidence()
        return "\n".join([said, self._daemon.evidence(), self._clients.evidence()])

    def _play(self) -> Hang:
        self._daemon.start()
        everything = all_processors(self._clients)
        self._watchdog = watchdog = Watchdog(self._daemon, hung_after=HUNG_AFTER_SECONDS)
        for number in range(TENANTS):
            self._clients.start_ready(f"tenant{number}", mib=64, seconds=600, busy_ms=2, every_ms=20)
        eventually(watchdog.is_well)
        stopped = self._daemon.process()
        assert stopped is not None
        limits, newcomers = LimitsInForce(self._daemon), Newcomers(self._clients, everything)
        os.kill(stopped.pid, signal.SIGSTOP)
        signs: dict[str, Callable[[], bool]] = {
            "unresponsive": lambda: _is_unresponsive(watchdog),
            "gone": lambda: not is_live_mps(stopped),
            "answers": lambda: self._daemon.is_followed(stopped),
            "client": lambda: not is_live_mps(stopped) and newcomers.one_is_limited(),
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
            diagnosed=watchdog.said("daemon_diagnosed"),
            done=watchdog.done(),
            saved=watchdog.saved(),
        )

    def _unless_ended(self, sign: Callable[[], bool]) -> bool:
        if self._ended.is_set():
            raise RuntimeError("broken off")
        return sign()


def _is_unresponsive(watchdog: Watchdog) -> bool:
    return watchdog.exporter.scrape().state("cuda_mps_daemon_state") == "unresponsive"
