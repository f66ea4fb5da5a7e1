"""Duration of a scrape in several conditions, compared with a static body of the same size."""

import contextlib
import json
import random
import statistics
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from benchmarks.measure import percentile
from benchmarks.nodes import Node, real_or_standin
from benchmarks.programs import Program, exporter
from benchmarks.report import Figure, arguments_parser, report
from benchmarks.standin_node import StandInNode

TARGET = 3.0
PAGES = ("/metrics", "/static")
MILLISECONDS = 1000

PATIENCE_SECONDS = 120.0
"""The daemon gets a query every 30 s, with a deadline."""

NOTHING = ""
DAEMON_DOWN = r"^cuda_mps_daemon_up{.*} 0"
NVML_DOWN = r'^cuda_mps_exporter_source_up{source="nvml"} 0'


@dataclass(frozen=True, slots=True)
class Case:
    """A condition, and the metrics that show it."""

    begins: Callable[[], AbstractContextManager[object]]
    noticed: str = NOTHING


def cases(node: Node) -> dict[str, Case]:
    """Return the possible conditions of a node. A real driver cannot be made to hang."""
    found = {"at rest": Case(contextlib.nullcontext), "daemon hangs": Case(node.daemon_hangs, DAEMON_DOWN)}
    if isinstance(node, StandInNode):
        found["NVML hangs"] = Case(node.nvml_hangs, NVML_DOWN)
        found["clients come and go"] = Case(lambda: _churn(node))
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and report."""
    parser = arguments_parser("scrape", __doc__ or "", gpus=8, clients=48)
    parser.add_argument("--requests", type=int, default=1000, help="of each page, in each case (default: %(default)s)")
    parser.add_argument("--case", action="append", metavar="NAME", help="this one alone; can be given again")
    options = parser.parse_args(words)
    figures: list[Figure] = []
    with real_or_standin(options) as node, exporter(node, options.flag, "benchmarks.served") as program:
        figures.append(Figure(name="clients", value=len(node.clients)))
        figures.append(Figure(name="size of a scrape, packed", value=len(program.fetch().body), unit="bytes"))
        program.fetch("/static")
        for name, case in cases(node).items():
            if options.case is None or name in options.case:
                with case.begins():
                    program.wait_until(case.noticed, PATIENCE_SECONDS)
                    figures.extend(_compare(program, name, options.requests))
        figures.extend(_renderings(program))
    return report(f"Scrapes: {node.title}", figures, options.json)


def _compare(program: Program, case: str, requests: int) -> Iterator[Figure]:
    """Fetch both pages in pairs of random order, so that both meet the same load."""
    seconds: dict[str, list[float]] = {page: [] for page in PAGES}
    for _ in range(requests):
        for page in random.sample(PAGES, len(PAGES)):
            seconds[page].append(program.fetch(page).seconds)
    metrics, static = (percentile(seconds[page], 99) for page in PAGES)
    median = statistics.median(seconds["/metrics"])
    yield Figure(name=f"{case}: median of a scrape", value=median * MILLISECONDS, unit="ms")
    yield Figure(name=f"{case}: p99 of a scrape", value=metrics * MILLISECONDS, unit="ms")
    yield Figure(name=f"{case}: p99 of the static body", value=static * MILLISECONDS, unit="ms")
    yield Figure(name=f"{case}: p99 of a scrape / of the static body", value=metrics / static, most=TARGET)


def _renderings(program: Program) -> Iterator[Figure]:
    seconds = json.loads(program.fetch("/renderings").body)
    yield Figure(name="one rendering, median of CPU time", value=statistics.median(seconds) * MILLISECONDS, unit="ms")
    yield Figure(name="renderings", value=len(seconds))


@contextlib.contextmanager
def _churn(node: StandInNode) -> Iterator[None]:
    """Let clients connect and exit, so that there is always something to publish."""
    enough = threading.Event()

    def come_and_go() -> None:
        while not enough.is_set():
            node.pass_through(1)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
