"""Cost of a probed call of libcuda: with and without probes, in turn.

The library is a stand-in whose functions do almost nothing, so that the added time is visible. Run as root. On a
virtual machine, a probe may trap into the hypervisor and cost many times as much.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.report import STUDENT_95, Figure, report, upper_bound
from exporter.libcuda_probes.loader import BpfError, Kernel
from exporter.libcuda_probes.probes import LibcudaProbes
from tests.libcuda_probes.standin import StandInCuda, Work

SMS = 132
RATES = (1_000, 10_000, 100_000)


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.probed_call", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--pairs", type=int, default=10, help="watched and unwatched, so often (default: %(default)s)")
    parser.add_argument("--launches", type=int, default=20_000, help="each time so many (default: %(default)s)")
    options = parser.parse_args(words)
    if not 2 <= options.pairs <= len(STUDENT_95) + 1:
        parser.error(f"--pairs: from 2 to {len(STUDENT_95) + 1}")
    work = Work(launches=options.launches, nanoseconds=0, synchronise="cuStreamSynchronize")
    try:
        with tempfile.TemporaryDirectory() as directory:
            probed = _Probed(StandInCuda(Path(directory)))
            launches = [probed.pair(replace(work, each=options.launches)) for _ in range(options.pairs)]
            both = [probed.pair(replace(work, each=1)) for _ in range(options.pairs)]
    except BpfError as error:
        parser.error(str(error))
    figures = [*_figures("launch", launches), *_figures("launch and wait", both)]
    added = statistics.fmean(watched - unwatched for unwatched, watched in launches)
    figures += [
        Figure(name=f"of the time, {rate} launches a second", value=added * rate / 1e7, unit="%") for rate in RATES
    ]
    return report(f"A probed call, {options.pairs} pairs of {options.launches} launches", figures, options.json)


class _Probed:
    def __init__(self, cuda: StandInCuda) -> None:
        self._cuda = cuda
        self._offsets = cuda.offsets()
        self._kernel = Kernel()

    def pair(self, work: Work) -> tuple[float, float]:
        """Return nanoseconds a launch without and with probes, in random order, so that drift affects both equally."""
        taken = {watched: self._phase(work, watched=watched) for watched in random.sample((False, True), 2)}
        return taken[False], taken[True]

    def _phase(self, work: Work, *, watched: bool) -> float:
        if not watched:
            return self._nanoseconds(work)
        watcher = LibcudaProbes(self._kernel, lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME), SMS)
        try:
            watcher.attach(str(self._cuda.library), self._offsets)
            watcher.begin()
            return self._nanoseconds(work)
        finally:
            watcher.close()

    def _nanoseconds(self, work: Work) -> float:
        _, (truth,) = self._cuda.run(work)
        return truth.outer_ns / truth.kernels


def _figures(name: str, pairs: Sequence[tuple[float, float]]) -> list[Figure]:
    added = [watched - unwatched for unwatched, watched in pairs]
    return [
        Figure(name=f"{name}, unwatched, median", value=statistics.median(pair[0] for pair in pairs), unit="ns"),
        Figure(name=f"{name}, watched, median", value=statistics.median(pair[1] for pair in pairs), unit="ns"),
        Figure(name=f"{name}, added, mean", value=statistics.fmean(added), unit="ns"),
        Figure(name=f"{name}, added, upper 95 % bound", value=upper_bound(added), unit="ns"),
    ]


if __name__ == "__main__":
    sys.exit(main())
