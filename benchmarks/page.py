"""How large the page at / is, and how long one rendering takes, beside one of the metrics; on a node made of values."""

import statistics
import sys
import time
from collections.abc import Callable, Sequence

from prometheus_client import generate_latest

from benchmarks import arguments
from benchmarks.report import Figure, report
from exporter.metrics.catalogue import NodeCollector
from exporter.page.page import Page
from exporter.view import View
from tests.page.scenes import full

MOST_KILOBYTES = 150.0
MOST_MILLISECONDS = 50.0


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and tell."""
    parser = arguments.parser("page", __doc__ or "", gpus=8, clients=48)
    parser.add_argument("--times", type=int, default=200, help="how often each is rendered (default: %(default)s)")
    told = parser.parse_args(words)
    sight = full(told.gpus, told.clients)
    page, collector = Page({"Metrics": "/metrics"}), NodeCollector(View(sight.node))
    size = len(page.node(sight))
    ours, metrics = [], []
    for _ in range(told.times):
        ours.append(_milliseconds(lambda: page.node(sight)))
        metrics.append(_milliseconds(lambda: generate_latest(collector)))
    spent = statistics.median(ours)
    figures = [
        Figure(name="size", value=size / 1000, unit="kB", most=MOST_KILOBYTES),
        Figure(
            name="one rendering, median of CPU time", value=statistics.median(ours), unit="ms", most=MOST_MILLISECONDS
        ),
        Figure(name="one rendering / one of the metrics", value=spent / statistics.median(metrics)),
    ]
    return report(f"The page: {told.gpus} GPUs with {told.clients} clients each", figures, told.json)


def _milliseconds(render: Callable[[], object]) -> float:
    before = time.thread_time()
    render()
    return 1000 * (time.thread_time() - before)


if __name__ == "__main__":
    sys.exit(main())
