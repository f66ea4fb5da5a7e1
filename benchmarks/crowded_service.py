"""The service on simulated observations: the arguments are port, number of daemons, and clients of each."""

import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from exporter.clock import SystemClock
from exporter.collectors.pool import CollectorPool
from exporter.collectors.thread import CollectorThread, Inbox, Reading
from exporter.commands.serve import pause_threads_less, use_few_arenas
from exporter.config.settings import Config
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.service import Service
from tests.builders import at_work, clients, exited, gpu_reading, looks, node, process, reduced, reply

GPUS = 8
FIRST_PID = 1_000_000
PASSING = 2
"""Clients that connect, and others that exit, in each second."""


def main() -> int:
    """Serve until a signal."""
    port, daemons, each = map(int, sys.argv[1:])
    use_few_arenas()
    pause_threads_less()
    clock, inbox = SystemClock(), Inbox()
    crowd = Crowd(daemons, each)
    collector = CollectorThread("crowd", crowd.collect, period=1.0, deadline=5.0, inbox=inbox, clock=clock)
    config = replace(Config(), listen=(("127.0.0.1", port),), client_min_age=0.0)
    return Service(config, crowd.node, CollectorPool((collector,)), inbox, clock).run()


class Crowd:
    """Daemons with clients."""

    def __init__(self, daemons: int, each: int) -> None:
        self._pids = itertools.count(FIRST_PID)
        self._clients = {f"/run/mps/{number}": [next(self._pids) for _ in range(each)] for number in range(daemons)}
        self._turns = itertools.cycle(self._clients)
        now = time.time()
        seen = [seen for number in range(daemons) for seen in self._first(number, now)]
        self.node: Node = reduced(*seen, *self._gpus(now), *looks(at=now), start=node(*self._clients)).node

    def collect(self) -> Reading:
        """Return what a second brings: clients that pass, and the readings of all GPUs."""
        now = time.time()
        return Reading((*self._passing(now), *self._gpus(now)))

    def _first(self, number: int, now: float) -> Iterator[Observation]:
        daemon, server = f"/run/mps/{number}", 500 + number
        pids = self._clients[daemon]
        yield from at_work(*pids, server=server, daemon=daemon, at=now)
        yield reply("device_query --csv", f"0,00:00.0,{_gpu(number)},NVIDIA H200\n", daemon=daemon, at=now)
        for pid in pids:
            yield _process(pid, now)

    def _passing(self, now: float) -> Iterator[Observation]:
        for daemon in itertools.islice(self._turns, PASSING):
            pids = self._clients[daemon]
            yield exited(pids[0], at=now)
            pids[:] = [*pids[1:], next(self._pids)]
            yield _process(pids[-1], now)
            yield clients(*pids, server=500 + int(daemon.rpartition("/")[2]), daemon=daemon, at=now)

    def _gpus(self, now: float) -> Iterator[Observation]:
        everyone = list(self._clients.values())
        for index in range(GPUS):
            pids = [pid for each in everyone[index::GPUS] for pid in each]
            yield gpu_reading(
                dict.fromkeys(pids, 1500),
                server=500 + index,
                gpu=_gpu(index),
                index=index,
                at=now,
                power_milliwatts=300_000 + int(now) % 100_000,
                gpu_percent=int(now) % 100,
            )


def _process(pid: int, now: float) -> Observation:
    cgroup = f"0::/system.slice/slurmstepd.scope/job_{pid}\n"
    return process(pid, user=f"user{pid % 7}", command="python3.11", cgroup=cgroup, at=now)


def _gpu(number: int) -> str:
    return f"GPU-{number % GPUS:08x}-b0ba-115c-7d58-bd5711d3de4b"


if __name__ == "__main__":
    sys.exit(main())
