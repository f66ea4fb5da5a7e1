"""What the clients' work suffers when the exporter runs beside them: paired differences, with it and without."""

import random
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Sequence

from benchmarks import arguments
from benchmarks.counted import Crowd, crowd
from benchmarks.cpu import scrape_for
from benchmarks.paired import STUDENT_95, upper_bound
from benchmarks.programs import exporter
from benchmarks.real_node import RealNode
from benchmarks.report import Figure, report
from benchmarks.standin_node import StandInNode

TARGET_PERCENT = 0.5


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and tell."""
    parser = arguments.parser("throughput", __doc__ or "", gpus=1, clients=8)
    parser.add_argument("--pairs", type=int, default=10, help="with and without it, so often (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="each time for so long (default: %(default)s)")
    parser.add_argument("--settle", type=float, default=3.0, help="and so long before (default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=20_000, help="of each kernel; few, and it is launching that is measured"
    )
    told = parser.parse_args(words)
    if not 2 <= told.pairs <= len(STUDENT_95) + 1:
        parser.error(f"--pairs: from 2 to {len(STUDENT_95) + 1}")
    made = RealNode(clients=0) if told.real else StandInNode(told.gpus, clients_each=0)
    with made as node, crowd(node, told.clients, told.rounds) as clients:
        pairs = [_pair(node, clients, told) for _ in range(told.pairs)]
    losses = [100 * (without - beside) / without for without, beside in pairs]
    figures = [
        Figure(name="clients", value=told.clients),
        Figure(name="rounds of a kernel", value=told.rounds),
        Figure(name="kernels without it, median", value=statistics.median(pair[0] for pair in pairs), unit="a second"),
        Figure(name="kernels beside it, median", value=statistics.median(pair[1] for pair in pairs), unit="a second"),
        Figure(name="loss, mean", value=statistics.fmean(losses), unit="%"),
        Figure(name="loss, standard deviation", value=statistics.stdev(losses), unit="%"),
        Figure(name="loss, upper 95 % bound", value=upper_bound(losses), unit="%", most=TARGET_PERCENT),
    ]
    return report(f"Throughput, {told.pairs} pairs: {node.title}", figures, told.json)


def _pair(node: RealNode | StandInNode, clients: Crowd, told: Namespace) -> tuple[float, float]:
    """Rates without the exporter and beside it, in an order left to chance, so that no drift favours either."""
    rates: dict[str, float] = {}
    for which in random.sample(("without", "beside"), 2):
        rates[which] = _without(clients, told) if which == "without" else _beside(node, clients, told)
    return rates["without"], rates["beside"]


def _without(clients: Crowd, told: Namespace) -> float:
    time.sleep(told.settle)
    return clients.rate(lambda: time.sleep(told.seconds))


def _beside(node: RealNode | StandInNode, clients: Crowd, told: Namespace) -> float:
    with exporter(node, told.flag) as program:
        scrape_for(told.settle, program)
        return clients.rate(lambda: scrape_for(told.seconds, program))


if __name__ == "__main__":
    sys.exit(main())
