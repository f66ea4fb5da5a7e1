"""Cost of a flood of log lines, whether each line is read or counted, and the delay of a fault during the flood."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

from benchmarks.flooded import log_lines
from benchmarks.measure import cpu, resident_mib
from benchmarks.programs import Program, exporter
from benchmarks.report import Figure, arguments_parser, report
from benchmarks.standin_node import StandInNode
from exporter.collectors.pipe_dir import FILES
from exporter.loop import IDLE_INTERVAL_SECONDS

MOST_SECONDS = 1.0
"""Limit in seconds from a fault in the log to the metrics, and from the end of the flood to its last line."""
MOST_PERCENT = 15.0
MOST_GROWTH = 1.05
"""Limit of resident memory at the end divided by that half-way; the rest is noise of allocators."""

STEP_SECONDS = 0.01
POLL_SECONDS = 0.02
PATIENCE_SECONDS = 120.0
FAULT = 'cuda_mps_server_state{.*state="fault"} 1'
READ, LOST = "cuda_mps_exporter_log_lines_total", "cuda_mps_exporter_log_lines_lost_total"


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and report."""
    parser = arguments_parser("flood", __doc__ or "", gpus=1, clients=8)
    parser.add_argument("--seconds", type=float, default=60.0, help="flood for so long (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=10_000, help="lines a second (default: %(default)s)")
    parser.add_argument(
        "--settle", type=float, default=IDLE_INTERVAL_SECONDS, help="begin when nothing was written for so long"
    )
    options = parser.parse_args(words)
    if options.real:
        parser.error("a real daemon cannot write so much; use stand-ins")
    with StandInNode(options.gpus, options.clients) as node, exporter(node, options.flag) as program:
        figures = list(_flooded(node, program, options.rate, options.seconds, options.settle))
    return report(f"A flood of {options.rate} lines a second: {node.title}", figures, options.json)


def _flooded(node: StandInNode, program: Program, rate: int, seconds: float, settle: float) -> Iterator[Figure]:
    quiet = _unfollowed(node, program, settle)
    before, began = cpu(program.pid), time.monotonic()
    memory = [resident_mib(program.pid)]
    write(node, rate, seconds / 2)
    memory.append(resident_mib(program.pid))
    with _watched(node, program) as noticed:
        write(node, rate, seconds / 2)
    ended = time.monotonic()
    used = cpu(program.pid).since(before).own
    written = _all_read(node, program, quiet)
    caught_up, lines = time.monotonic() - ended, rate * seconds
    memory.append(resident_mib(program.pid))
    yield Figure(name="lines a second, as written", value=lines / (ended - began))
    accounted = _counted(program, READ) + _counted(program, LOST)
    yield Figure(name="lines neither read nor counted as lost", value=abs(written - accounted - quiet), most=0)
    yield Figure(name="lines over the budget", value=100 * _counted(program, LOST) / lines, unit="% of the flood")
    yield Figure(name="the last line, after the flood's end", value=caught_up, unit="s", most=MOST_SECONDS)
    yield Figure(name="CPU", value=100 * used / (ended - began), unit="% of a core", most=MOST_PERCENT)
    yield Figure(name="CPU, by line", value=1e6 * used / lines, unit="microseconds")
    for when, mebibytes in zip(("before", "half-way", "at the end"), memory, strict=True):
        yield Figure(name=f"resident {when}", value=mebibytes, unit="MiB")
    yield Figure(name="resident at the end / half-way", value=memory[2] / memory[1], most=MOST_GROWTH)
    yield Figure(name="a fault during the flood until the metrics", value=noticed[0], unit="s", most=MOST_SECONDS)


def write(node: StandInNode, rate: int, seconds: float) -> None:
    """Write lines evenly into both logs of the node's daemon."""
    lines = cycle(log_lines(node.server_pid))
    began, written = time.monotonic(), 0
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context((node.log_directory / name).open("a", buffering=1 << 20)) for name in FILES}
        while written < rate * seconds:
            due = min(rate * seconds, rate * (time.monotonic() - began)) - written
            for name, line in islice(lines, int(due)):
                files[name].write(line)
            for file in files.values():
                file.flush()
            written += int(due)
            time.sleep(STEP_SECONDS)


@contextlib.contextmanager
def _watched(node: StandInNode, program: Program) -> Iterator[list[float]]:
    """Cause a fault. The yielded list has its delay in the metrics in seconds at the end of the block."""
    seconds: list[float] = []

    def watch() -> None:
        began = time.monotonic()
        node.fault()
        with contextlib.suppress(RuntimeError):
            program.wait_until(FAULT, PATIENCE_SECONDS, every=POLL_SECONDS)
            seconds.append(time.monotonic() - began)

    thread = threading.Thread(target=watch)
    thread.start()
    yield seconds
    thread.join()
    seconds.append(float("inf"))


def _unfollowed(node: StandInNode, program: Program, settle: float) -> float:
    """Wait until all lines are read. Return the number of lines before the exporter started to follow the logs."""
    before, now = (-1.0, -1.0), (0.0, 0.0)
    while before != now:
        before = now
        time.sleep(settle)
        now = (_lines(node), _counted(program, READ))
    return now[0] - now[1]


def _all_read(node: StandInNode, program: Program, quiet: float) -> float:
    """Wait until all lines are read, or no more are. Return the number of lines."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while (lines := _lines(node)) != _counted(program, READ) + _counted(
        program, LOST
    ) + quiet and time.monotonic() < ends:
        time.sleep(POLL_SECONDS)
    return lines


def _lines(node: StandInNode) -> int:
    return sum(_newlines(node.log_directory / name) for name in FILES)


def _newlines(file: Path) -> int:
    with file.open("rb") as stream:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: stream.read(1 << 20), b""))


def _counted(program: Program, family: str) -> float:
    samples = [line.rpartition(" ") for line in program.fetch().text.splitlines() if line.startswith(family)]
    return sum(float(value) for _, _, value in samples)


if __name__ == "__main__":
    sys.exit(main())
