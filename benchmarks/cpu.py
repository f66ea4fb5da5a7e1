"""CPU use of the exporter, scraped at Prometheus' default interval."""

import functools
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks.measure import cpu
from benchmarks.nodes import real_or_standin
from benchmarks.programs import Program, exporter
from benchmarks.report import Figure, arguments_parser, report
from benchmarks.standin_node import StandInNode

TARGET_PERCENT = 1.0
SCRAPE_SECONDS = 15.0
DURING_SECONDS = 0.5


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and report."""
    parser = arguments_parser("cpu", __doc__ or "", gpus=1, clients=48)
    parser.add_argument("--seconds", type=float, default=120.0, help="measure for so long (default: %(default)s)")
    parser.add_argument("--settle", type=float, default=15.0, help="but leave out so much of its start")
    parser.add_argument(
        "--attribution", action="store_true", help="with --attribution=bpf, and clients that launch kernels; as root"
    )
    parser.add_argument(
        "--bypassing",
        type=int,
        default=0,
        help="stand-in processes outside MPS, of which one is replaced twice a second",
    )
    options = parser.parse_args(words)
    flags = [*options.flag, *["--attribution=bpf"] * options.attribution]
    with real_or_standin(options, launching=options.attribution) as node, exporter(node, flags) as program:
        if options.attribution:
            program.wait_until('^cuda_mps_client_kernel_launches_total{.*kind="kernel"', times=len(node.clients))
        during = None
        if options.bypassing and isinstance(node, StandInNode):
            during = functools.partial(node.replace_bypassing, options.bypassing)
        scrape_for(options.settle, program, during=during)
        before, began = cpu(program.pid), time.monotonic()
        scrape_for(options.seconds, program, during=during)
        used, seconds = cpu(program.pid).since(before), time.monotonic() - began
    percent = 100 / seconds
    figures = [
        Figure(name="clients", value=len(node.clients)),
        Figure(name="its own", value=used.own * percent, unit="% of a core"),
        Figure(name="control commands", value=used.children * percent, unit="% of a core"),
        Figure(name="both", value=used.all * percent, unit="% of a core", most=TARGET_PERCENT),
    ]
    return report(f"CPU over {seconds:.0f} s: {node.title}", figures, options.json)


def scrape_for(seconds: float, *programs: Program, during: Callable[[], None] | None = None) -> None:
    """Scrape the programs at Prometheus' default interval for some seconds. Call `during` twice a second."""
    ends, next_scrape = time.monotonic() + seconds, 0.0
    while (left := ends - time.monotonic()) > 0:
        if time.monotonic() >= next_scrape:
            next_scrape = time.monotonic() + SCRAPE_SECONDS
            for program in programs:
                program.fetch()
        if during is not None:
            during()
        time.sleep(max(0.0, min(next_scrape - time.monotonic() if during is None else DURING_SECONDS, left)))


if __name__ == "__main__":
    sys.exit(main())
