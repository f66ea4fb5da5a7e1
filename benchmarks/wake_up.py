"""Delay from a written log line to its observation by the service's collector thread."""

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.measure import PATIENCE_SECONDS
from benchmarks.report import Figure, arguments_parser, report
from exporter.clock import SystemClock
from exporter.collectors.file_changes import FileChanges
from exporter.collectors.logs import PERIOD, LogCollector
from exporter.collectors.pipe_dir import FILES, on_host
from exporter.collectors.thread import Inbox, close
from exporter.model.observation import LogLine

MOST_SECONDS = 0.2


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and report."""
    parser = arguments_parser("wake_up", __doc__ or "", gpus=0, clients=0)
    parser.add_argument("--lines", type=int, default=200, help="how many are written (default: %(default)s)")
    parser.add_argument("--daemons", type=int, default=24, help="number of daemons (default: %(default)s)")
    options = parser.parse_args(words)
    if options.real:
        parser.error("a log is a log: it is written here")
    with tempfile.TemporaryDirectory(prefix="mps-logs-") as directory:
        seconds = list(_seconds(Path(directory), options.daemons, options.lines))
    figures = [
        Figure(
            name="from a line's being written to its being observed, median", value=statistics.median(seconds), unit="s"
        ),
        Figure(name="the same, worst", value=max(seconds), unit="s", most=MOST_SECONDS),
    ]
    return report(f"Wake-up: {options.lines} lines, logs of {options.daemons} daemons", figures, options.json)


def _seconds(directory: Path, daemons: int, lines: int) -> Iterator[float]:
    """Yield the delay of each line, written at random times into random logs."""
    directories = {f"daemon{number}": directory / f"daemon{number}" for number in range(daemons)}
    files = [each / file for each in directories.values() for file in FILES]
    for each in files:
        each.parent.mkdir(exist_ok=True)
        each.touch()
    inbox, clock, changes = Inbox(), SystemClock(), FileChanges()
    collectors = [
        LogCollector("log", on_host(name, each, each), inbox=inbox, clock=clock, changes=changes, deadline=1.0)
        for name, each in directories.items()
    ]
    for collector in collectors:
        collector.thread.start()
    for _ in range(lines):
        time.sleep(random.uniform(PERIOD, 2 * PERIOD))
        began = time.monotonic()
        with random.choice(files).open("a") as file:
            file.write("line\n")
        while not any(isinstance(each, LogLine) for each in inbox.get(timeout=PATIENCE_SECONDS)):
            pass
        yield time.monotonic() - began
    close([collector.thread for collector in collectors], PATIENCE_SECONDS)
    changes.close()


if __name__ == "__main__":
    sys.exit(main())
