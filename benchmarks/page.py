"""Size of the page at / and duration of a rendering, compared with a client's page and metrics, on a simulated node."""

import statistics
import sys
import time
from collections.abc import Callable, Sequence

from prometheus_client import generate_latest

from benchmarks.report import Figure, arguments_parser, report
from exporter.metrics.catalogue import NodeCollector
from exporter.page.page import Page
from exporter.view import View
from tests.page.inputs import full

MOST_KILOBYTES = 120.0
MOST_MILLISECONDS = 30.0
MOST_OF_CLIENT = 0.5


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and report."""
    parser = arguments_parser("page", __doc__ or "", gpus=8, clients=48)
    parser.add_argument("--times", type=int, default=200, help="how often each is rendered (default: %(default)s)")
    options = parser.parse_args(words)
    sight = full(options.gpus, options.clients)
    page, collector = Page({"Metrics": "/metrics"}), NodeCollector(View(sight.node))
    size = len(page.node(sight))
    _, _, client = View(sight.node).clients[0]
    ours, of_client, metrics = [], [], []
    for _ in range(options.times):
        ours.append(_milliseconds(lambda: page.node(sight)))
        of_client.append(_milliseconds(lambda: page.client(sight, client)))
        metrics.append(_milliseconds(lambda: generate_latest(collector)))
    spent, of_one = statistics.median(ours), statistics.median(of_client)
    figures = [
        Figure(name="size", value=size / 1000, unit="kB", most=MOST_KILOBYTES),
        Figure(name="one rendering, median of CPU time", value=spent, unit="ms", most=MOST_MILLISECONDS),
        Figure(name="page of a client / one rendering", value=of_one / spent, most=MOST_OF_CLIENT),
        Figure(name="one rendering / one of the metrics", value=spent / statistics.median(metrics)),
    ]
    return report(f"The page: {options.gpus} GPUs with {options.clients} clients each", figures, options.json)


def _milliseconds(render: Callable[[], object]) -> float:
    before = time.thread_time()
    render()
    return 1000 * (time.thread_time() - before)


if __name__ == "__main__":
    sys.exit(main())
