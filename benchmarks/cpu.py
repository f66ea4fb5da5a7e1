"""CPU use of the exporter, scraped at Prometheus' default interval."""

import sys
import time
from collections.abc import Sequence

from benchmarks.measure import cpu
from benchmarks.nodes import real_or_standin
from benchmarks.programs import Program, exporter
from benchmarks.report import Figure, arguments_parser, report

TARGET_PERCENT = 1.0
SCRAPE_SECONDS = 15.0


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and report."""
    parser = arguments_parser("cpu", __doc__ or "", gpus=1, clients=48)
    parser.add_argument("--seconds", type=float, default=120.0, help="measure for so long (default: %(default)s)")
    parser.add_argument("--settle", type=float, default=15.0, help="but leave out so much of its start")
    parser.add_argument(
        "--attribution", action="store_true", help="with --attribution=bpf, and clients that launch kernels; as root"
    )
    options = parser.parse_args(words)
    flags = [*options.flag, *["--attribution=bpf"] * options.attribution]
    with real_or_standin(options, launching=options.attribution) as node, exporter(node, flags) as program:
        if options.attribution:
            program.wait_until('^cuda_mps_client_kernel_launches_total{.*kind="kernel"', times=len(node.clients))
        scrape_for(options.settle, program)
        before, began = cpu(program.pid), time.monotonic()
        scrape_for(options.seconds, program)
        used, seconds = cpu(program.pid).since(before), time.monotonic() - began
    percent = 100 / seconds
    figures = [
        Figure(name="clients", value=len(node.clients)),
        Figure(name="its own", value=used.own * percent, unit="% of a core"),
        Figure(name="control commands", value=used.children * percent, unit="% of a core"),
        Figure(name="both", value=used.all * percent, unit="% of a core", most=TARGET_PERCENT),
    ]
    return report(f"CPU over {seconds:.0f} s: {node.title}", figures, options.json)


def scrape_for(seconds: float, *programs: Program) -> None:
    """Scrape the programs at Prometheus' default interval for some seconds."""
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        for program in programs:
            program.fetch()
        time.sleep(min(SCRAPE_SECONDS, left))


if __name__ == "__main__":
    sys.exit(main())
