"""Effect on a daemon of another daemon with a flooded log or a hung log directory.

In each round, one client of daemon B faults, and then B is killed, in each of the conditions of daemon A.
"""

import contextlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path

from benchmarks.flooded import SERVER, log_lines
from benchmarks.measure import cpu
from benchmarks.programs import Program, free_port, running
from benchmarks.report import Figure, arguments_parser, report
from tests import program as tested
from tests.hanging import hangs
from tests.standin.mps import MpsStandIn, wait_until

A, B = "a", "b"
MOST_RATIO = 1.5
MOST_PERCENT = 15.0
MOST_BURST_SECONDS = 2.0

BYTES_A_SECOND = 1_000_000
STEP_SECONDS = 0.02
POLL_SECONDS = 0.02
SETTLE_SECONDS = 2.0
WRITTEN_SECONDS = 1.5
"""The watchdog does not restart a daemon that it has not observed before."""

WINDOW_SECONDS = 6.0
"""Seconds without a restart after which the next restart has no delay."""

FILL = "[2026-11-20 15:08:45.147 Server {server:5}] A line of an unknown kind, number {number}\n"
REPLIES = "[2026-11-20 15:08:45.147 Server {server:5}] Client process {number} disconnected\n"

CONFIGURATION = """
[watchdog]
mode = "act"
"""
CONSTANTS = {
    "discovery": False,
    "journal": False,
    "kmsg": "/nowhere",
    "pods": "/nowhere",
    "rules": {"restarts": 100, "window": 5.0},
}
DAEMON = """
[[daemons]]
name = "{name}"
pipe_directory = "{pipe}"
log_directory = "{logs}"
restart_command = {command}
"""
STARTER = """#!/bin/sh
date +%s.%N >>{starts}
exec nvidia-cuda-mps-control -d
"""
OURS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "PATH")


class Node:
    """Two daemons, each with a client, and the exporter's configuration."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.daemons = {name: MpsStandIn(directory / name) for name in (A, B)}
        self.clients: dict[str, subprocess.Popen[bytes]] = {}
        self.starts = directory / "starts"

    def open(self) -> None:
        """Start all processes."""
        command = self.directory / "start"
        command.write_text(STARTER.format(starts=self.starts))
        command.chmod(0o755)
        self.starts.touch()
        written = CONFIGURATION
        for name, mps in self.daemons.items():
            (self.directory / name).mkdir()
            mps.start()
            self.connect(name)
            variables = [f"{key}={value}" for key, value in mps.environment().items() if key not in OURS]
            written += DAEMON.format(
                name=name,
                pipe=mps.pipe_directory,
                logs=mps.log_directory,
                command=["env", *variables, str(command)],
            )
        (self.directory / "config.toml").write_text(written)

    def connect(self, name: str) -> None:
        """Start a client of a daemon."""
        self.clients[name] = subprocess.Popen(["sleep", "infinity"])
        self.daemons[name].connect_and_wait(self.clients[name].pid)

    def disconnect(self, name: str) -> None:
        """End the daemon's client."""
        client = self.clients.pop(name)
        client.kill()
        client.wait()

    def started(self) -> float | None:
        """Return when the exporter last started a daemon (Unix time)."""
        lines = self.starts.read_text().split()
        return float(lines[-1]) if lines else None

    def close(self) -> None:
        """End all processes."""
        for name in list(self.clients):
            self.disconnect(name)
        for mps in self.daemons.values():
            mps.close()

    def environment(self) -> Mapping[str, str]:
        """Return the environment for the exporter."""
        own = {"RUNTIME_DIRECTORY": str(self.directory / "run"), "STATE_DIRECTORY": str(self.directory / "state")}
        path = {"PATH": self.daemons[A].environment()["PATH"]}
        return {**path, **own, "CUDA_MPS_EXPORTER_CONFIG_FILE": str(self.directory / "config.toml")}


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and report."""
    parser = arguments_parser("isolation", __doc__ or "", gpus=1, clients=1)
    parser.add_argument("--rounds", type=int, default=10, help="how often in each condition (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="CPU is measured for so long (default: %(default)s)"
    )
    parser.add_argument("--burst", type=int, default=40_000_000, help="bytes in one write (default: %(default)s)")
    parser.add_argument("--settle", type=float, default=SETTLE_SECONDS, help="between two steps (default: %(default)s)")
    options = parser.parse_args(words)
    if options.real:
        parser.error("a real daemon cannot write so much; use stand-ins")
    with tempfile.TemporaryDirectory(prefix="mps-isolation-") as directory:
        node = Node(Path(directory))
        try:
            node.open()
            with _exporter(node, options.flag) as program:
                figures = list(_measured(node, program, options.rounds, options.seconds, options.burst, options.settle))
        finally:
            node.close()
    return report("A daemon beside one with a flooded or hung log: stand-ins", figures, options.json)


def _exporter(node: Node, flags: Sequence[str]) -> contextlib.AbstractContextManager[Program]:
    port = free_port()
    command = [sys.executable, *tested.command("serve", f"--web.listen-address=127.0.0.1:{port}", *flags, **CONSTANTS)]
    return running(command, port, node.environment(), node.directory / "exporter.log")


def _measured(node: Node, program: Program, rounds: int, seconds: float, burst: int, settle: float) -> Iterator[Figure]:
    _up(program, A)
    _up(program, B)
    conditions: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
        "quiet": contextlib.nullcontext,
        "a flood of unknown lines": lambda: _flood(node, _lines(node, FILL)),
        "a flood of known lines": lambda: _flood(node, _lines(node, REPLIES)),
        "a flood of all kinds": lambda: _flood(node, _log_lines(node)),
    }
    if _can_hang(node.directory):
        conditions["a directory that hangs"] = lambda: hangs(node.daemons[A].log_directory)
    for name, condition in conditions.items():
        with condition():
            time.sleep(settle)
            yield from _cost(name, program, seconds)
    yield from _ratios(node, program, conditions, rounds, settle)
    for name, lines in (("unknown", _lines(node, FILL)), ("known", _lines(node, REPLIES))):
        yield _burst(f"a fault after {burst / 1e6:g} MB of {name} lines", node, program, lines, burst, settle)


def _cost(name: str, program: Program, seconds: float) -> Iterator[Figure]:
    before, began = cpu(program.pid), time.monotonic()
    size = _own_log(program)
    time.sleep(seconds)
    spent, passed = cpu(program.pid).since(before).own, time.monotonic() - began
    yield Figure(name=f"CPU, {name}", value=100 * spent / passed, unit="% of a core", most=MOST_PERCENT)
    written = (_own_log(program) - size) / passed
    yield Figure(name=f"its own log, {name}", value=written, unit="bytes a second")


def _own_log(program: Program) -> int:
    return program.log.stat().st_size


def _ratios(
    node: Node,
    program: Program,
    conditions: Mapping[str, Callable[[], contextlib.AbstractContextManager[object]]],
    rounds: int,
    settle: float,
) -> Iterator[Figure]:
    """Measure the conditions in random order, so that a busy machine slows all of them."""
    faults: dict[str, list[float]] = {name: [] for name in conditions}
    restarts: dict[str, list[float]] = {name: [] for name in conditions}
    for _ in range(rounds):
        for name in random.sample(list(conditions), len(conditions)):
            with conditions[name]():
                time.sleep(settle)
                faults[name].append(_fault(node, program, B))
                node.disconnect(B)
                program.wait_until(f'cuda_mps_server_state{{.*daemon="{B}".*state="fault"}} 0', every=POLL_SECONDS)
                restarts[name].append(_restart(node, program, B))
                node.connect(B)
    for what, seconds in (("fault of B in the metrics", faults), ("restart of B", restarts)):
        quiet = statistics.median(seconds.pop("quiet"))
        yield Figure(name=f"{what}, quiet, median", value=quiet, unit="s")
        for name, measured in seconds.items():
            yield Figure(name=f"{what}, {name} / quiet", value=statistics.median(measured) / quiet, most=MOST_RATIO)


def _up(program: Program, daemon: str) -> None:
    program.wait_until(f'cuda_mps_daemon_up{{daemon="{daemon}"}} 1', every=POLL_SECONDS)


def _fault(node: Node, program: Program, daemon: str) -> float:
    """Return the seconds from a fault to the metrics."""
    fault = rf'cuda_mps_server_state{{.*daemon="{daemon}".*state="fault"}} 1'
    began = time.monotonic()
    node.daemons[daemon].fault(node.clients[daemon].pid)
    program.wait_until(fault, every=POLL_SECONDS)
    return time.monotonic() - began


def _restart(node: Node, program: Program, daemon: str) -> float:
    """Return the seconds from the death of a daemon to its restart."""
    _up(program, daemon)
    before = node.started()
    time.sleep(max(WRITTEN_SECONDS, (before or 0.0) + WINDOW_SECONDS - time.time()))
    began = time.time()
    node.daemons[daemon].kill()
    wait_until(lambda: node.started() != before, f"a start of {daemon}")
    seconds = (node.started() or 0.0) - began
    wait_until(lambda: _answers(node.daemons[daemon]), f"daemon {daemon}")
    _up(program, daemon)
    return seconds


def _answers(daemon: MpsStandIn) -> bool:
    try:
        daemon.outcome(1)
    except OSError:
        return False
    except RuntimeError:
        return True
    return True


def _burst(what: str, node: Node, program: Program, lines: Iterator[str], size: int, settle: float) -> Figure:
    """Return the time from a burst of lines with a fault at its end to the fault in the metrics."""
    time.sleep(settle)
    text = "".join(islice(lines, size // len(next(lines))))
    with (node.daemons[A].log_directory / SERVER).open("a") as file:
        file.write(text)
    seconds = _fault(node, program, A)
    node.disconnect(A)
    program.wait_until(f'cuda_mps_server_state{{.*daemon="{A}".*state="fault"}} 0', every=POLL_SECONDS)
    node.connect(A)
    return Figure(name=what, value=seconds, unit="s", most=MOST_BURST_SECONDS)


def _lines(node: Node, form: str) -> Iterator[str]:
    server = node.daemons[A].server_pid or 0
    return (form.format(server=server, number=4_200_000 + number % 100_000) for number in count())


def _log_lines(node: Node) -> Iterator[str]:
    while True:
        yield from (line for log, line in log_lines(node.daemons[A].server_pid or 0) if log == SERVER)


@contextlib.contextmanager
def _flood(node: Node, lines: Iterator[str]) -> Iterator[None]:
    """Write `BYTES_A_SECOND` into the server.log of daemon A during the block."""
    ended = threading.Event()

    def write() -> None:
        began, written = time.monotonic(), 0
        with (node.daemons[A].log_directory / SERVER).open("a") as file:
            while not ended.wait(STEP_SECONDS):
                while written < BYTES_A_SECOND * (time.monotonic() - began):
                    text = "".join(islice(lines, 50))
                    file.write(text)
                    written += len(text)
                file.flush()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _can_hang(directory: Path) -> bool:
    probe = directory / "hangs"
    probe.mkdir()
    try:
        with hangs(probe):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
