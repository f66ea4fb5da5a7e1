"""Cost of the exporter compared with nvitop-exporter, on the same node at the same time."""

import random
import shutil
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.cpu import scrape_for
from benchmarks.measure import cpu, resident_mib
from benchmarks.nodes import Node, real_or_standin
from benchmarks.programs import Program, exporter, free_port, running
from benchmarks.report import Figure, arguments_parser, report

CPU_TARGET, SCRAPE_TARGET, MEMORY_TARGET = 0.15, 0.03, 1.27
MILLISECONDS = 1000


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and report."""
    parser = arguments_parser("against_nvitop", __doc__ or "", gpus=8, clients=48)
    parser.add_argument("--nvitop", type=Path, default=_installed(), help="nvitop-exporter (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="measure CPU for so long (default: %(default)s)")
    parser.add_argument("--settle", type=float, default=5.0, help="and so long before (default: %(default)s)")
    parser.add_argument("--scrapes", type=int, default=100, help="of each, in turn (default: %(default)s)")
    options = parser.parse_args(words)
    if options.nvitop is None:
        parser.error("nvitop-exporter is not installed: pip install '.[benchmarks]'")
    with real_or_standin(options) as node, exporter(node, options.flag) as ours, nvitop(node, options.nvitop) as theirs:
        theirs.wait_until(f'^process_gpu_memory.*pid="{node.clients[-1]}"')
        figures = [Figure(name="clients", value=len(node.clients)), *_compare(ours, theirs, options)]
    return report(f"Against nvitop-exporter: {node.title}", figures, options.json)


def nvitop(node: Node, executable: Path) -> AbstractContextManager[Program]:
    """Run nvitop-exporter with its defaults."""
    port = free_port()
    command = [str(executable), "--port", str(port)]
    return running(command, port, node.environment(), node.directory / "nvitop.log")


def _compare(ours: Program, theirs: Program, options: Namespace) -> Sequence[Figure]:
    programs = (ours, theirs)
    scrape_for(options.settle, *programs)
    before, began = [cpu(program.pid) for program in programs], time.monotonic()
    scrape_for(options.seconds, *programs)
    passed = time.monotonic() - began
    used = [cpu(program.pid).since(each).all for program, each in zip(programs, before, strict=True)]
    times: list[list[float]] = [[], []]
    for _ in range(options.scrapes):
        for which in random.sample(range(2), 2):
            times[which].append(programs[which].fetch().seconds * MILLISECONDS)
    scrape = [statistics.median(each) for each in times]
    resident = [resident_mib(program.pid) for program in programs]
    return [
        *_pair("CPU", "% of a core", [100 * each / passed for each in used], CPU_TARGET),
        *_pair("scrape, median", "ms", scrape, SCRAPE_TARGET),
        *_pair("resident memory", "MiB", resident, MEMORY_TARGET),
    ]


def _pair(name: str, unit: str, values: Sequence[float], target: float) -> Sequence[Figure]:
    ours, theirs = values
    return [
        Figure(name=f"{name}: ours", value=ours, unit=unit),
        Figure(name=f"{name}: nvitop-exporter's", value=theirs, unit=unit),
        Figure(name=f"{name}: ours / theirs", value=ours / theirs, most=target),
    ]


def _installed() -> Path | None:
    beside = shutil.which("nvitop-exporter", path=str(Path(sys.executable).parent)) or shutil.which("nvitop-exporter")
    return None if beside is None else Path(beside)


if __name__ == "__main__":
    sys.exit(main())
