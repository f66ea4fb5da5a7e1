"""Duration of a scrape of many daemons on a busy machine, and of fewer clients during attacks of web clients.

The service runs on simulated observations.
"""

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.measure import percentile
from benchmarks.programs import Program, free_port, running
from benchmarks.report import Figure, arguments_parser, report
from exporter.view import View

MOST_MEDIAN, MOST_P99 = 5.0, 100.0
"""Milliseconds."""
SETTLE_SECONDS = 2.0
SCRAPERS = 32
BUSY = "while True: pass"
ATTACKED = 8, 48
"""Daemons, and clients of each, during the attacks."""


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and report."""
    parser = arguments_parser("crowded", __doc__ or "", gpus=8, clients=16)
    parser.add_argument("--daemons", type=int, default=64, help="with so many clients each (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=50.0, help="scrapes a second (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="measure each for so long (default: %(default)s)")
    options = parser.parse_args(words)
    if options.real:
        parser.error("no real node has so many daemons; use the simulated one")
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="crowded-") as directory, contextlib.ExitStack() as busy:
        log = Path(directory) / "log"
        with _service(options.daemons, options.clients, log) as program:
            for _ in range(2):
                busy.enter_context(running([sys.executable, "-c", BUSY], 0, {}, Path(os.devnull)))
            figures.extend(_figures("many daemons", scrapes(program, options.rate, options.seconds), MOST_MEDIAN))
        busy.close()
        with (
            _service(*ATTACKED, log) as program,
            running([sys.executable, "-m", "benchmarks.attack", str(program.port)], 0, {}, Path(os.devnull)),
        ):
            figures.extend(_figures("attacks", scrapes(program, options.rate, options.seconds)))
    title = f"Scrapes: {options.daemons} daemons with {options.clients} clients each, busy machine; attacks"
    return report(title, figures, options.json)


@contextlib.contextmanager
def _service(daemons: int, clients: int, log: Path) -> Iterator[Program]:
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.crowded_service", *map(str, (port, daemons, clients))]
    with running(command, port, {}, log) as program:
        program.wait_until("^cuda_mps_client_info", times=min(daemons * clients, View.max_clients))
        yield program


def scrapes(program: Program, rate: float, seconds: float) -> Sequence[float]:
    """Return the milliseconds of scrapes that begin at this rate, whether or not the earlier ones have ended."""
    time.sleep(SETTLE_SECONDS)
    taken: list[float] = []
    ends = time.monotonic() + seconds

    def scrape(first: float) -> None:
        for at in (first + number * SCRAPERS / rate for number in range(int(seconds * rate / SCRAPERS) + 1)):
            time.sleep(max(0.0, at - time.monotonic()))
            if at < ends:
                taken.append(1000 * program.fetch().seconds)

    began = time.monotonic()
    scrapers = [threading.Thread(target=scrape, args=(began + number / rate,)) for number in range(SCRAPERS)]
    for each in scrapers:
        each.start()
    for each in scrapers:
        each.join()
    return taken


def _figures(case: str, taken: Sequence[float], most_median: float | None = None) -> Iterator[Figure]:
    yield Figure(name=f"{case}: scrapes", value=len(taken))
    yield Figure(name=f"{case}: median of a scrape", value=percentile(taken, 50), unit="ms", most=most_median)
    yield Figure(name=f"{case}: p99 of a scrape", value=percentile(taken, 99), unit="ms", most=MOST_P99)


if __name__ == "__main__":
    sys.exit(main())
