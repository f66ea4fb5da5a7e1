"""Pace of a launch-bound PyTorch client beside `serve --attribution=bpf`, compared with its pace without an exporter.

    OUT=DIR python3 -m lab.attribution.pace

DIR gets `pace.json`. It takes less than five minutes. The client synchronises after each 1,000 small kernels. Phases
without an exporter alternate with whole cycles of the probes: from the begin of one pause to that of the next.
"""

import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.gpu.child import Child
from lab.gpu.mps import ControlDaemon
from lab.gpu.program import Exporter
from lab.gpu.scrape import Scrape
from tests.eventually import eventually

from .cost import PAIRS, STUDENT, Bound, boot_ns
from .frameworks import SMALL_KERNELS
from .series import Series

OFF_SECONDS, SETTLE_SECONDS = 6.0, 0.5
# A pause is longer than PAUSE_SECONDS; a cycle lasts at least CYCLE_SECONDS, with 40,000 launches a second or more.
PAUSE_SECONDS, CYCLE_SECONDS = 3.0, 6.0
LONGEST_SECONDS, POLL_SECONDS = 45.0, 0.1

LAUNCHES = "cuda_mps_client_kernel_launches_total"


@dataclass(frozen=True, slots=True)
class Cycle:
    """Launches a second beside an exporter; those that it counted; its ratios at the end."""

    began: int
    ended: int
    per_second: float
    counted_per_second: float
    watched_ratio: float
    client_sm: float
    gpu_sm: float


class Client:
    """The running client."""

    def __init__(self, daemon: ControlDaemon) -> None:
        going = daemon.directory / "going"
        going.touch()
        self.child = Child(
            [sys.executable, "-m", "lab.attribution.frameworks", "torch_small", str(going)],
            output=daemon.directory / "client.txt",
            environment=daemon.environment,
            directory=Path(__file__).resolve().parents[2],
        )
        eventually(self._assert_works, within=60)

    def per_second(self, began: int, ended: int) -> float:
        """Return the launches a second between two times."""
        lines = [line.split() for line in self.child.text().splitlines(keepends=True) if line.endswith("\n")]
        steps = Series([(int(line[0]), int(line[1])) for line in lines if len(line) == 2])
        return SMALL_KERNELS * steps.between(began, ended) / (ended - began) * 1e9

    def _assert_works(self) -> None:
        assert "ready" in self.child.text(), self.child.evidence()


def value(scrape: Scrape, name: str) -> float:
    """Return the value of the only sample of a family; NaN if it is absent."""
    return next((sample.value for sample in scrape.select(name)), math.nan)


def counted(exporter: Exporter) -> float:
    """Return the kernels that the exporter counted so far."""
    return sum(sample.value for sample in exporter.scrape().select(LAUNCHES, kind="kernel"))


def growths(exporter: Exporter, least: float) -> Iterator[tuple[int, float]]:
    """Yield when and to what the count grew, at each poll, by at least so much: after each second with probes."""
    last, at = counted(exporter), boot_ns()
    deadline = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < deadline:
        now = counted(exporter)
        if now >= last + least:
            last, at = now, boot_ns()
        yield at, last
        time.sleep(POLL_SECONDS)
    raise AssertionError(f"no pause in {LONGEST_SECONDS} s\n{exporter.evidence()}")


def cycle(client: Client, daemon: ControlDaemon, pace: float) -> Cycle:
    """Run an exporter until a long pause of the probes, and measure until the next one.

    The probes also count for a moment before the first reading, and after the last one.
    """
    least = pace / 2
    exporter = Exporter(daemon, "--attribution=bpf", "--client-min-age=0s")
    try:
        exporter.wait()
        began, before = next(
            (at, count)
            for at, count in growths(exporter, least)
            if count >= least and boot_ns() - at > PAUSE_SECONDS * 1e9
        )
        ended, after = next(
            (at, count)
            for at, count in growths(exporter, least)
            if count >= before + least and at - began > CYCLE_SECONDS * 1e9
        )
        time.sleep(2 * SETTLE_SECONDS)  # the client reports ten times a second
        scrape = exporter.scrape()
        return Cycle(
            began=began,
            ended=ended,
            per_second=client.per_second(began, ended),
            counted_per_second=(after - before) / (ended - began) * 1e9,
            watched_ratio=value(scrape, "cuda_mps_client_watched_ratio"),
            client_sm=value(scrape, "cuda_mps_client_sm_utilization_ratio"),
            gpu_sm=value(scrape, "cuda_mps_gpu_sm_utilization_ratio"),
        )
    finally:
        exporter.end()


def without(client: Client) -> float:
    """Return the launches a second without an exporter."""
    time.sleep(SETTLE_SECONDS)
    began = boot_ns()
    time.sleep(OFF_SECONDS)
    ended = boot_ns()
    time.sleep(SETTLE_SECONDS)
    return client.per_second(began, ended)


def measure(directory: Path, out: Path) -> None:
    """Measure all pairs, and print and write each. A cycle is compared with the phases before and after it."""
    daemon = ControlDaemon(directory / "d")
    daemon.start()
    client = Client(daemon)
    try:
        off, cycles = [without(client)], list[Cycle]()
        for _ in range(PAIRS):
            cycles.append(cycle(client, daemon, off[-1]))
            off.append(without(client))
            on = cycles[-1]
            ratios = [each.per_second / statistics.fmean(off[at : at + 2]) for at, each in enumerate(cycles)]
            half = STUDENT * statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else None
            print(
                f"{off[-1]:,.0f} launches/s without, {on.per_second:,.0f} with: ratio {ratios[-1]:.4f}, "
                f"counted {on.counted_per_second / on.per_second:.3f} in {(on.ended - on.began) / 1e9:.1f} s, "
                f"watched ratio {on.watched_ratio:.3f}, SMs {on.client_sm:.4f} of {on.gpu_sm:.4f}; "
                f"all ratios {Bound(statistics.fmean(ratios), half)}",
                flush=True,
            )
            found = {"off": off, "cycles": [asdict(each) for each in cycles], "ratios": ratios, "half_95": half}
            (out / "pace.json").write_text(json.dumps(found, indent=1) + "\n")
    finally:
        client.child.end()
        daemon.end()


def main() -> int:
    """Run everything."""
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as directory:
        measure(Path(directory), Path(os.environ["OUT"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
