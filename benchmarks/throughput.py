"""Slow-down of clients by the exporter: paired differences with and without it."""

import random
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Sequence

from benchmarks.counted import Crowd, crowd
from benchmarks.cpu import scrape_for
from benchmarks.nodes import Node
from benchmarks.programs import exporter
from benchmarks.real_node import RealNode
from benchmarks.report import STUDENT_95, Figure, arguments_parser, report, upper_bound
from benchmarks.standin_node import StandInNode

TARGET_PERCENT = 0.5


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and report."""
    parser = arguments_parser("throughput", __doc__ or "", gpus=1, clients=8)
    parser.add_argument("--pairs", type=int, default=10, help="with and without it, so often (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="each time for so long (default: %(default)s)")
    parser.add_argument("--settle", type=float, default=3.0, help="and so long before (default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=20_000, help="of each kernel; few, and it is launching that is measured"
    )
    options = parser.parse_args(words)
    if not 2 <= options.pairs <= len(STUDENT_95) + 1:
        parser.error(f"--pairs: from 2 to {len(STUDENT_95) + 1}")
    made = RealNode(clients=0) if options.real else StandInNode(options.gpus, clients_each=0)
    with made as node, crowd(node, options.clients, options.rounds) as clients:
        pairs = [_pair(node, clients, options) for _ in range(options.pairs)]
    losses = [100 * (without - beside) / without for without, beside in pairs]
    figures = [
        Figure(name="clients", value=options.clients),
        Figure(name="rounds of a kernel", value=options.rounds),
        Figure(name="kernels without it, median", value=statistics.median(pair[0] for pair in pairs), unit="a second"),
        Figure(name="kernels beside it, median", value=statistics.median(pair[1] for pair in pairs), unit="a second"),
        Figure(name="loss, mean", value=statistics.fmean(losses), unit="%"),
        Figure(name="loss, standard deviation", value=statistics.stdev(losses), unit="%"),
        Figure(name="loss, upper 95 % bound", value=upper_bound(losses), unit="%", most=TARGET_PERCENT),
    ]
    return report(f"Throughput, {options.pairs} pairs: {node.title}", figures, options.json)


def _pair(node: Node, clients: Crowd, options: Namespace) -> tuple[float, float]:
    """Return the rates without and with the exporter, in random order, so that drift affects both equally."""
    rates: dict[str, float] = {}
    for which in random.sample(("without", "beside"), 2):
        rates[which] = _without(clients, options) if which == "without" else _with(node, clients, options)
    return rates["without"], rates["beside"]


def _without(clients: Crowd, options: Namespace) -> float:
    time.sleep(options.settle)
    return clients.rate(lambda: time.sleep(options.seconds))


def _with(node: Node, clients: Crowd, options: Namespace) -> float:
    with exporter(node, options.flag) as program:
        scrape_for(options.settle, program)
        return clients.rate(lambda: scrape_for(options.seconds, program))


if __name__ == "__main__":
    sys.exit(main())
