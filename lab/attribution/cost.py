"""Cost of the probes for a client: on and off, in turn.

    OUT=DIR python3 -m lab.attribution.cost

DIR gets `cost.json` and `cost.md`. It takes two and a half minutes.
"""

import ctypes
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from exporter.libcuda_probes.loader import Kernel
from exporter.libcuda_probes.probes import PROBE_POINTS, LibcudaProbes
from exporter.parse.elf import exported_functions
from lab.gpu.child import Child
from lab.gpu.clients import build
from lab.gpu.mps import ControlDaemon
from lab.gpu.program import Recorder
from tests.eventually import eventually

from .series import Series

PAIRS = 8
PHASE_SECONDS = 1.0
SETTLE_SECONDS = 0.15
SHIPPED_OFF_SECONDS, SHIPPED_ON_SECONDS = 3.0, 14.0
# Student's t, two-sided, 95 %, by number of pairs.
STUDENT = 2.365
SMS = 132


@dataclass(frozen=True, slots=True)
class Pace:
    """Launch rate of a client; 0 is as fast as possible. It computes for `work_us` before each launch."""

    name: str
    rate: int
    sync_every: int = 100
    work_us: float = 0.0

    def words(self) -> list[str]:
        """Return its arguments."""
        rate = ["--rate", str(self.rate)] if self.rate else []
        return [*rate, "--sync-every", str(self.sync_every), "--work-us", str(self.work_us)]


PACES = (
    Pace("1,000 launches/s", 1_000),
    Pace("10,000 launches/s", 10_000),
    Pace("30,000 launches/s", 30_000),
    Pace("100,000 launches/s", 100_000),
    Pace("10,000 launches/s, each synchronised", 10_000, sync_every=1),
    Pace("as many as it can", 0),
)
SHIPPED = (PACES[2], PACES[4])


@dataclass(frozen=True, slots=True)
class Phase:
    """Launches a second and CPU time of each launch, during some time."""

    per_second: float
    cpu_ns: float


@dataclass(frozen=True, slots=True)
class Bound:
    """A mean, and half of its 95 % interval."""

    mean: float
    half: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if self.half is None else f"{self.mean:.3f} ± {self.half:.3f}"


@dataclass(frozen=True, slots=True)
class Cost:
    """The result for one pace, from pairs of phases."""

    pace: str
    pairs: tuple[tuple[Phase, Phase], ...]

    def ratio(self, of: Callable[[Phase], float]) -> Bound:
        """Return the ratio of on to off."""
        ratios = [of(on) / of(off) for off, on in self.pairs]
        if len(ratios) < 2:
            return Bound(ratios[0])
        half = STUDENT * statistics.stdev(ratios) / len(ratios) ** 0.5
        return Bound(statistics.fmean(ratios), half)

    def mean(self, of: Callable[[Phase], float]) -> tuple[float, float]:
        """Return the means, off and on."""
        return statistics.fmean(of(off) for off, _ in self.pairs), statistics.fmean(of(on) for _, on in self.pairs)

    def row(self) -> str:
        """Return the row of the table."""
        rate, cpu = self.mean(lambda phase: phase.per_second), self.mean(lambda phase: phase.cpu_ns)
        cells = (
            self.pace,
            f"{rate[0]:,.0f}",
            f"{rate[1]:,.0f}",
            str(self.ratio(lambda phase: phase.per_second)),
            f"{cpu[0]:,.0f}",
            f"{cpu[1]:,.0f}",
            str(self.ratio(lambda phase: phase.cpu_ns)),
        )
        return f"| {' | '.join(cells)} |"


HEAD = """| client | launches/s, off | on | on/off | CPU ns a launch, off | on | on/off |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |"""


class Paced:
    """A running client. Several have different names."""

    def __init__(self, program: Path, pace: Pace, daemon: ControlDaemon, name: str = "paced") -> None:
        self.child = Child(
            [str(program), *pace.words()],
            output=daemon.directory / f"{name}.jsonl",
            environment=daemon.environment,
        )
        eventually(self._assert_counts, within=15)

    def phase(self, begin: int, end: int) -> Phase:
        """Return the values between two times."""
        launches, cpu = self._series("launches"), self._series("cpu_ns")
        number = launches.between(begin, end)
        return Phase(number / (end - begin) * 1e9, cpu.between(begin, end) / number)

    def _series(self, key: str) -> Series:
        events = (json.loads(line) for line in self.child.text().splitlines(keepends=True) if line.endswith("}\n"))
        return Series([(each["boot_ns"], each[key]) for each in events if each["event"] == "count"])

    def _assert_counts(self) -> None:
        assert '"count"' in self.child.text(), self.child.evidence()


def boot_ns() -> int:
    """Return the clients' clock."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def library() -> tuple[str, dict[str, int]]:
    """Return the node's libcuda and the offsets of its probe points."""
    ctypes.CDLL("libcuda.so.1")
    lines = Path("/proc/self/maps").read_text().splitlines()
    path = next(line.split()[-1] for line in lines if "libcuda.so" in line)
    with Path(path).open("rb") as file:
        names = [point.name for point in PROBE_POINTS]
        found = exported_functions(lambda at, size: os.pread(file.fileno(), size, at), names)
    return path, dict(found.offsets)


@contextmanager
def on(watcher: LibcudaProbes, path: str, offsets: dict[str, int]) -> Iterator[None]:
    """Attach the probes during the block."""
    watcher.begin()
    watcher.attach(path, offsets)
    try:
        yield
    finally:
        watcher.detach(path)


def stretch() -> tuple[int, int]:
    """Wait for one phase, and return its start and end."""
    time.sleep(SETTLE_SECONDS)
    begin = boot_ns()
    time.sleep(PHASE_SECONDS)
    return begin, boot_ns()


def alternated(paced: Paced, pace: Pace, watched: Callable[[], Any]) -> Cost:
    """Measure off and on in turn, with alternating order and without the rate limit."""
    stretches = []
    for pair in range(PAIRS):
        if pair % 2:
            with watched():
                while_on = stretch()
            while_off = stretch()
        else:
            while_off = stretch()
            with watched():
                while_on = stretch()
        stretches.append((while_off, while_on))
    time.sleep(2 * SETTLE_SECONDS)
    return Cost(pace.name, tuple((paced.phase(*off), paced.phase(*on)) for off, on in stretches))


def shipped(paced: Paced, pace: Pace, daemon: ControlDaemon) -> Cost:
    """Measure with the exporter's rate limit."""
    began = boot_ns()
    time.sleep(SHIPPED_OFF_SECONDS)
    off = began, boot_ns()
    recorder = Recorder(daemon, daemon.directory / "guarded.jsonl", "--attribution=bpf")
    try:
        eventually(lambda: _assert_read(recorder), within=15)
        began = boot_ns()
        time.sleep(SHIPPED_ON_SECONDS)
        ended = boot_ns()
    finally:
        recorder.end()
    return Cost(f"{pace.name}; the program's own pace", ((paced.phase(*off), paced.phase(began, ended)),))


def _assert_read(recorder: Recorder) -> None:
    assert '"source": "work"' in recorder.text(), recorder.evidence()


def measure(directory: Path) -> Iterator[Cost]:
    """Measure every pace. A failure does not stop the others."""
    program = build(Path(__file__).with_name("paced.cu"), directory / "paced")
    path, offsets = library()
    daemon = ControlDaemon(directory / "d")
    daemon.start()
    watcher = LibcudaProbes(Kernel(), boot_ns, SMS)
    try:
        for pace, measured in [*((each, False) for each in PACES), *((each, True) for each in SHIPPED)]:
            paced = Paced(program, pace, daemon)
            try:
                if measured:
                    yield shipped(paced, pace, daemon)
                else:
                    yield alternated(paced, pace, lambda: on(watcher, path, offsets))
            except Exception as problem:  # a pace that cannot be reached is reported
                print(f"{pace.name}: {problem!r}", flush=True)
            finally:
                paced.child.end()
    finally:
        watcher.close()
        daemon.end()


def main() -> int:
    """Run everything."""
    out = Path(os.environ["OUT"])
    costs = []
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as directory:
        for cost in measure(Path(directory)):
            costs.append(cost)
            print(cost.row(), flush=True)
            (out / "cost.json").write_text(json.dumps([asdict(each) for each in costs], indent=1) + "\n")
            (out / "cost.md").write_text("\n".join([HEAD, *(each.row() for each in costs)]) + "\n")
    return 0 if len(costs) == len(PACES) + len(SHIPPED) else 1


if __name__ == "__main__":
    sys.exit(main())
