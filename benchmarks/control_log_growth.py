"""Growth of a daemon's control.log in a day by the exporter's queries, on an idle node.

The service's own cycle, on a clock that runs as fast as the stand-in daemon can answer:
`python -m benchmarks.control_log_growth [--clients N] [--gpus N] [--hours N] [--json FILE]`
"""

import argparse
import json
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from exporter.collectors.control_client import ControlClient
from exporter.collectors.logs import DaemonLogs
from exporter.collectors.pipe_dir import on_host
from exporter.collectors.pool import CollectorPool, ControlPoller
from exporter.collectors.thread import CollectorThread, Inbox, Reading
from exporter.loop import CYCLE_SECONDS, Loop
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import GpuProcess, GpuReading
from exporter.model.settings import PollIntervals
from tests.standin.mps import MpsStandIn

DAY_SECONDS = 86_400
MOST_BYTES_A_DAY = 1_000_000
"""Number of clients by default. More clients make longer lists."""
DEFAULT_CLIENTS = 8
WARM_UP_SECONDS = 120
"""Seconds before the measurement: the exporter sends more queries after its start and about new clients."""
FIRST_PID = 4_100_000
"""No process has such a PID. The stand-in accepts any."""


@dataclass(slots=True)
class FastClock:
    """A clock that the script advances."""

    at: float = 1_000_000.0

    def now(self) -> float:
        """Return seconds since the epoch."""
        return self.at

    def monotonic(self) -> float:
        """Return the same value."""
        return self.at

    def step(self) -> float:
        """Return 0: the clock is never set."""
        return 0.0


class ImmediateCollector(CollectorThread):
    """A collector without a thread: `trigger` collects."""

    def start(self) -> None:
        """Start no thread."""

    def trigger(self, *, report: bool = False) -> None:
        """Collect now."""
        self._collect_once()


@dataclass(slots=True)
class QuietNode:
    """A stand-in daemon with idle clients, and the main loop that monitors it."""

    standin: MpsStandIn
    pids: Sequence[int]
    gpus: Sequence[str]
    clock: FastClock = field(default_factory=FastClock)

    def watch(self, hours: float) -> str:
        """Return the text added to control.log in these hours, after the settling time."""
        location = on_host(self._name, self.standin.pipe_directory, self.standin.log_directory)
        logs = DaemonLogs(location, self.clock)
        inbox: Inbox = Inbox()
        follower = self._thread("log", logs.collect, inbox)
        cycle = self._cycle(follower, inbox)
        cycle.once(timeout=0)
        self._turn(cycle, follower, WARM_UP_SECONDS)
        before = len(self.standin.control_log)
        self._turn(cycle, follower, hours * 3600)
        logs.close()
        if len(cycle.node.daemons[self._name].clients) != len(self.pids):
            raise RuntimeError("the cycle does not see the clients that there are")
        return self.standin.control_log[before:]

    @property
    def _name(self) -> str:
        return str(self.standin.pipe_directory)

    def _turn(self, cycle: Loop, follower: CollectorThread, seconds: float) -> None:
        end = self.clock.at + seconds
        while self.clock.at < end:
            self.clock.at += CYCLE_SECONDS
            follower.trigger()
            cycle.once(timeout=0)

    def _thread(self, name: str, collect: Callable[[], Reading], inbox: Inbox) -> CollectorThread:
        return ImmediateCollector(name, collect, period=None, deadline=60.0, inbox=inbox, clock=self.clock)

    def _cycle(self, follower: CollectorThread, inbox: Inbox) -> Loop:
        location = on_host(self._name, self.standin.pipe_directory, self.standin.log_directory)
        control = ControlClient(
            location,
            executable="nvidia-cuda-mps-control",
            deadline=60.0,
            clock=self.clock,
            path=self.standin.environment()["PATH"],
        )
        asking, nvml = self._thread("control", control.collect, inbox), self._thread("nvml", self._read_gpus, inbox)
        daemon = Daemon(name=self._name, pipe_directory=self._name, log_directory=str(self.standin.log_directory))
        return Loop(
            Node(daemons={self._name: daemon}),
            CollectorPool(
                (nvml, follower),
                locate=lambda _daemons: {self._name: location},
                poller=lambda _location: ControlPoller(control, asking),
                nvml=nvml,
            ),
            inbox=inbox,
            clock=self.clock,
            intervals=PollIntervals(),
            publish=lambda _node: None,
        )

    def _read_gpus(self) -> Reading:
        """Return readings in which every client uses every GPU."""
        processes = tuple(GpuProcess(pid=pid, used_bytes=1 << 30) for pid in self.pids)
        readings = (
            GpuReading(at=self.clock.at, gpu=gpu, index=index, compute_processes=processes, mps_processes=processes)
            for index, gpu in enumerate(self.gpus)
        )
        return Reading(tuple(readings))


def measure(clients: int, gpus: int, hours: float) -> Mapping[str, tuple[int, int]]:
    """Monitor an idle node. Return the number and bytes a day of each kind of command."""
    uuids = [f"GPU-{number:08x}-0000-4000-8000-000000000000" for number in range(gpus)]
    pids = range(FIRST_PID, FIRST_PID + clients)
    with tempfile.TemporaryDirectory() as directory, MpsStandIn(Path(directory), gpus=uuids) as standin:
        standin.start()
        for gpu in range(gpus):
            standin.ask(f"set_default_device_pinned_mem_limit {gpu} 3G")
        for pid in pids:
            standin.connect_and_wait(pid, devices=range(gpus))
        written = QuietNode(standin, pids, uuids).watch(hours)
    a_day = DAY_SECONDS / (hours * 3600)
    return {
        kind: (round(times * a_day), round(size * a_day)) for kind, (times, size) in bytes_by_command(written).items()
    }


def table(by_command: Mapping[str, tuple[int, int]], clients: int = DEFAULT_CLIENTS) -> Iterable[str]:
    """Yield a row for each kind of command, the sum and, up to `clients` clients, whether it reaches the target."""
    total = sum(size for _, size in by_command.values())
    yield f"{'a day':40} {'times':>6} {'bytes':>9}"
    yield from (f"{kind:40} {times:6} {size:9}" for kind, (times, size) in by_command.items())
    verdict = "pass" if total <= MOST_BYTES_A_DAY else "falls short"
    yield f"{'all':40} {sum(times for times, _ in by_command.values()):6} {total:9}"
    if clients <= DEFAULT_CLIENTS:
        yield f"at most {MOST_BYTES_A_DAY}: {verdict}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="control_log_growth", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=DEFAULT_CLIENTS)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--hours", type=float, default=2.0, help="hours of the fast clock to watch (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    figures = measure(options.clients, options.gpus, options.hours)
    print("\n".join(table(figures, options.clients)))
    if options.json is not None:
        written = {
            "clients": options.clients,
            "gpus": options.gpus,
            "bytes_a_day": {k: v for k, (_, v) in figures.items()},
        }
        options.json.write_text(json.dumps(written) + "\n")


def bytes_by_command(log: str) -> Mapping[str, tuple[int, int]]:
    """Return the number and the bytes of the sessions of each kind of command."""
    times: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    size, kind = 0, "nothing"
    for line in log.splitlines(keepends=True):
        size += len(line.encode())
        text = line.partition("] ")[2].rstrip("\n")
        if text.startswith("Cmd:"):
            kind = text.removeprefix("Cmd:").partition(" ")[0]
        if text == "UI closed":
            times[kind] += 1
            sizes[kind] += size
            size = 0
    return {kind: (times[kind], sizes[kind]) for kind in sorted(sizes, key=sizes.__getitem__, reverse=True)}


if __name__ == "__main__":
    main()
