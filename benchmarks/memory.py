"""Memory of the exporter with many clients, after many more have connected and exited."""

import statistics
import sys
import time
from collections.abc import Sequence

from benchmarks.measure import resident_mib
from benchmarks.programs import exporter
from benchmarks.report import Figure, arguments_parser, report
from benchmarks.standin_node import ROOM, StandInNode

TARGET_MIB = 80.0
TARGET_GROWTH_MIB = 1.0
"""Limit of the growth in the second half; smaller values are noise of allocators and of the kernel's counters."""

AT_ONCE = ROOM // 2


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and report."""
    parser = arguments_parser("memory", __doc__ or "", gpus=8, clients=48)
    parser.add_argument("--rate", type=float, default=50.0, help="so many of them a second (default: %(default)s)")
    parser.add_argument("--churn", type=int, default=10_000, help="clients that come and go (default: %(default)s)")
    options = parser.parse_args(words)
    if options.real:
        parser.error("a real GPU takes hours for so many clients; this is for stand-ins alone")
    with StandInNode(options.gpus, options.clients) as node, exporter(node, options.flag) as program:
        began = resident_mib(program.pid)
        samples: list[float] = []
        for passed in range(0, options.churn, AT_ONCE):
            # In a flood of log lines, the exporter would only count lines.
            next_at = time.monotonic() + AT_ONCE / options.rate
            count = min(AT_ONCE, options.churn - passed)
            node.pass_through(count)
            program.wait_until(rf"^cuda_mps_clients_disconnected_total{{.*}} {passed + count}(\.0)?$")
            samples.append(resident_mib(program.pid))
            time.sleep(max(0.0, next_at - time.monotonic()))
    second_half = samples[len(samples) // 2 :]
    slope, _ = statistics.linear_regression(range(len(second_half)), second_half)
    figures = [
        Figure(name="clients connected", value=len(node.clients)),
        Figure(name="clients that connected and exited", value=options.churn),
        Figure(name="resident before they did", value=began, unit="MiB"),
        Figure(name="resident half-way", value=second_half[0], unit="MiB"),
        Figure(name="resident at the end", value=samples[-1], unit="MiB", most=TARGET_MIB),
        Figure(
            name="growth over the second half (fitted)",
            value=slope * len(second_half),
            unit="MiB",
            most=TARGET_GROWTH_MIB,
        ),
    ]
    return report(f"Memory: {node.title}", figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
