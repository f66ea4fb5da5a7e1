"""Faults in kernels of known names, with the incidents of `serve` and a recording.

    OUT=DIR python3 -m lab.kernels.trials [--seconds S] [--seed N] [--limit N] [--work SHORTEST LONGEST] [--fast]

As root, with MPS and nvcc. DIR gets `trials.jsonl.gz`, a line with truth and answers for each trial,
`recording.jsonl.gz` of `record --attribution=bpf` for all of them, and the report `trials.txt` (score.py). A trial
takes about 8 s: 2 to 8 clients work for some seconds (faulty.cu), then one causes a fault in a kernel whose name is
drawn anew for each trial. With another seed, the trials are others. `--fast` adds a client that launches as much as it
can.
"""

import argparse
import glob
import gzip
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.fault_address.trials import NO_LAYOUT, KernelLog
from lab.fault_trials.kinds import CORE_DUMPS
from lab.gpu.child import Child
from lab.gpu.clients import NO_DAEMON
from lab.gpu.mps import ControlDaemon
from lab.gpu.program import Recorder

from .score import report
from .service import Service, compiled, events, shown_kernels, wait_for

KERNELS = (
    *("attend", "normalise", "embed", "project", "activate", "gather", "scatter", "reduce_rows", "sort_keys"),
    *("transpose", "quantise", "dropout", "sample_next", "merge_heads", "rotate", "accumulate"),
)
"""Those of faulty.cu."""

KINDS = ("address", "null", "random", "trap", "assert")
DUMPS = ("none", "none", "none", "cause", "all")
ALIKE = "alike"  # an address, where all clients have the same address ranges, as forked workers have
PAIRS = (*((kind, dumps) for kind in KINDS for dumps in DUMPS), *[(ALIKE, "none")] * 3)
HABITS = ("each", "batch", "rare", "graph", "late", "batch")
ORDINARY = 6
START_SECONDS = 1.6  # until all clients are ready
NEAR_SECONDS = 0.05  # from a fault to the first launch of a new kernel by an innocent
AFTERMATH_SECONDS, CONTAINED_SECONDS = 1.0, 1.2
FAREWELL_SECONDS, RECOVERY_SECONDS = 2.0, 4.0
LAST_WORD_SECONDS = 3.5  # an incident is final two seconds after its detection
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A client: its habit, its ordinary kernels, a kernel that it launches late, and how long it survives an error."""

    habit: str
    kernels: tuple[str, ...]
    late: str | None
    hold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Clients, of which the one at `cause` faults in `kernel`, which is one of its ordinary ones, or `fresh`."""

    number: int
    kind: str
    dumps: str
    fresh: bool
    kernel: str
    cause: int
    parts: tuple[Part, ...]
    work_seconds: float
    late_seconds: float
    seed: int

    @property
    def name(self) -> str:
        """What it varies, in a word."""
        return f"{self.kind}{'' if self.dumps == 'none' else f'+dumps-{self.dumps}'}"


def plan(seed: int, work: tuple[float, float], *, fast: bool = False) -> Iterator[Trial]:
    """Yield trials without end. Each round of 28 has all kinds with all core dumps, in another order."""
    draw, number = random.Random(seed), 0
    while True:
        for kind, dumps in draw.sample(PAIRS, len(PAIRS)):
            count, fresh = draw.choice((2, 3, 3, 4, 4, 6, 8)), draw.random() < 0.5
            cause = draw.randrange(count)
            parts = [_part(draw, draw.choice(HABITS)) for _ in range(count)]
            if fast:
                parts[(cause + 1) % count] = _part(draw, "fast")
            if parts[cause].habit == "late":
                parts[cause] = _part(draw, "batch")
            ordinary = parts[cause].kernels
            yield Trial(
                number=number,
                kind=kind,
                dumps=dumps,
                fresh=fresh,
                kernel=draw.choice([each for each in KERNELS if each not in ordinary] if fresh else ordinary),
                cause=cause,
                parts=tuple(parts),
                work_seconds=draw.uniform(*work),
                late_seconds=draw.uniform(-NEAR_SECONDS, NEAR_SECONDS),
                seed=draw.randrange(1 << 30),
            )
            number += 1


def _part(draw: random.Random, habit: str) -> Part:
    *kernels, other = draw.sample(KERNELS, ORDINARY + 1)
    return Part(
        habit=habit,
        kernels=tuple(kernels),
        late=other if habit == "late" else None,
        hold=draw.choice((0.0, 0.0, 0.1, 0.8)),
    )


def words(trial: Trial, index: int, fault_at: float) -> list[str]:
    """Return the arguments of a client."""
    part = trial.parts[index]
    found = [part.habit, ",".join(part.kernels), "--seed", str(trial.seed + index), "--hold", str(part.hold)]
    if part.late is not None:
        found += ["--late", part.late, f"{fault_at + trial.late_seconds:.6f}"]
    if index == trial.cause:
        how = "fresh" if trial.fresh else "once"
        kind = "address" if trial.kind == ALIKE else trial.kind
        found += ["--fault", kind, trial.kernel, f"{fault_at:.6f}", how]
    return found


class Poller(threading.Thread):
    """Asks for incidents 20 times a second, and reads the kernel log. It stores what each incident was, and when."""

    def __init__(self, service: Service) -> None:
        super().__init__(daemon=True)
        self.incidents: dict[str, dict[str, Any]] = {}
        self.lines: list[tuple[float, str]] = []
        self.over = threading.Event()
        self._service = service
        try:
            self._log: KernelLog | None = KernelLog([""])
        except OSError:
            self._log = None

    def run(self) -> None:
        """Poll until `over`."""
        while not self.over.wait(POLL_SECONDS):
            try:
                self._poll()
            except Exception:
                traceback.print_exc()
                time.sleep(1)

    def _poll(self) -> None:
        if self._log is not None:
            self.lines += [(time.time(), line) for line in self._log.read()]
        for incident in self._service.incidents(4):
            now = time.time()
            known = self.incidents.setdefault(incident["id"], {"first_at": now, "named_at": {}})
            if known.get("last") == incident:
                continue
            known["last"] = incident
            for pid in {each["pid"] for each in (*incident["affected"], *incident["suspects"])}:
                for name in shown_kernels(incident, pid):
                    known["named_at"].setdefault(str(pid), {}).setdefault(name, now)

    def between(self, begin: float, end: float) -> dict[str, Any]:
        """Return the incidents that were first seen in this time, and the lines of the kernel log."""
        found = [each for each in [*self.incidents.values()] if begin <= each["first_at"] <= end]
        return {"incidents": found, "lines": [line for line in self.lines if begin <= line[0] <= end]}


class Runner:
    """Runs trials with one daemon."""

    def __init__(self, directory: Path, out: Path) -> None:
        self._directory, self._out = directory, out
        self._program = compiled("faulty.cu", directory / "faulty")
        self.service = Service(directory / "d", first=self._keeper)
        self.recorder: Recorder | None = None
        try:
            print("probes are read:", self.service.wait_for_probes(), flush=True)
            recording = out / "recording.jsonl.gz"
            recording.unlink(missing_ok=True)
            self.recorder = Recorder(self.service.daemon, recording, "--attribution=bpf")
        except BaseException:
            self.end()
            raise

    def _keeper(self, daemon: ControlDaemon) -> Child:
        """Start a client without MPS, beside which the probes stay attached between the trials."""
        environment = {**daemon.environment, **NO_DAEMON}
        command = [str(self._program), "idle", "rotate,embed"]
        return Child(command, output=self._directory / "keeper.out", environment=environment)

    def run(self, trial: Trial) -> dict[str, Any]:
        """Run a trial, and return its truth."""
        daemon, began = self.service.daemon, time.time()
        fault_at = began + START_SECONDS + trial.work_seconds
        clients: list[Child] = []
        try:
            for index in range(len(trial.parts)):
                dumps = trial.dumps == "all" or (trial.dumps == "cause" and index == trial.cause)
                environment = {**daemon.environment, **(CORE_DUMPS if dumps else {})}
                output = self._directory / f"{trial.number}.{index}.out"
                prefix = NO_LAYOUT if trial.kind == ALIKE else ()
                command = [*prefix, str(self._program), *words(trial, index, fault_at)]
                clients.append(Child(command, output=output, environment=environment))
            wait_for(clients, "ready", time.monotonic() + fault_at - began)
            wait_for([clients[trial.cause]], "fault", time.monotonic() + max(0.0, fault_at + 1 - time.time()))
            contained = CONTAINED_SECONDS if trial.kind == "assert" or trial.dumps != "none" else AFTERMATH_SECONDS
            wait_for(clients, "error", time.monotonic() + contained)
            time.sleep(0.3)
        finally:
            self._end(clients)
        said_by = [events(each) for each in clients]
        for each in clients:
            each.output.unlink()
        for dump in glob.glob("/tmp/fault_trials_core_*"):
            Path(dump).unlink(missing_ok=True)
        return {
            **asdict(trial),
            "name": trial.name,
            "began": began,
            "fault_at": fault_at,
            "culprit": clients[trial.cause].pid,
            "pids": [each.pid for each in clients],
            "events": said_by,
            "exit_codes": [each.exit_code for each in clients],
            "stuck": not self._recovers(),
            "ended": time.time(),
        }

    def _end(self, clients: Sequence[Child]) -> None:
        """End all at once: each ends in good order, or after a while by force."""
        for each in clients:
            if each.exit_code is None:
                each.send(signal.SIGTERM)
        limit = time.monotonic() + FAREWELL_SECONDS
        for each in clients:
            each.end(within=max(0.05, limit - time.monotonic()))

    def _recovers(self) -> bool:
        """Wait until no server is in FAULT. If one stays there, end it."""
        daemon, limit = self.service.daemon, time.monotonic() + RECOVERY_SECONDS
        while time.monotonic() < limit:
            servers = daemon.servers()
            if not any("FAULT" in daemon.command(f"get_server_status {each}") for each in servers):
                return True
            time.sleep(0.05)
        for each in daemon.servers():
            daemon.command(f"shutdown_server {each} -f")
        time.sleep(1)
        return False

    def end(self) -> None:
        """End everything."""
        if self.recorder is not None:
            if self.recorder.child.exit_code is not None:
                print(f"the recording ended early\n{self.recorder.evidence()}", flush=True)
            self.recorder.interrupt_later()
            try:
                self.recorder.child.wait(15)
            except Exception:
                self.recorder.end()
        self.service.end()


def main() -> int:
    """Run trials; 0 if all could be run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=540.0, help="begin no trial that would end later")
    parser.add_argument("--seed", type=int, default=54)
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--work", type=float, nargs=2, default=(3.0, 6.0), help="bounds of the time before a fault")
    parser.add_argument("--fast", action="store_true")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    out = Path(os.environ["OUT"])
    out.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    failures = 0
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        runner = Runner(Path(directory), out)
        poller = Poller(runner.service)
        poller.start()
        try:
            for trial in plan(options.seed, tuple(options.work), fast=options.fast):
                reserve = START_SECONDS + trial.work_seconds + 4 + LAST_WORD_SECONDS
                if trial.number >= options.limit or time.monotonic() > deadline - reserve or failures > 5:
                    break
                try:
                    results.append(runner.run(trial))
                    print(line(results[-1], poller), flush=True)
                except Exception:
                    failures += 1
                    traceback.print_exc()
                if trial.number % 10 == 9:
                    write(out, results, poller)
        finally:
            time.sleep(LAST_WORD_SECONDS)
            poller.over.set()
            poller.join(10)
            write(out, results, poller)
            log = runner.service.exporter.child.text()[-3000:]
            runner.end()
    text = report(answered(results, poller))
    (out / "trials.txt").write_text(text)
    print(text, log, sep="\n", flush=True)
    return min(failures, 100)


def answered(results: Sequence[Mapping[str, Any]], poller: Poller) -> list[dict[str, Any]]:
    """Return the trials with the exporter's answers in their time."""
    ends = [*(each["began"] for each in results[1:]), float("inf")]
    return [{**each, **poller.between(each["began"], end)} for each, end in zip(results, ends, strict=False)]


def write(out: Path, results: Sequence[Mapping[str, Any]], poller: Poller) -> None:
    """Write all trials anew."""
    with gzip.open(out / "trials.jsonl.gz", "wt") as file:
        for each in answered(results, poller):
            file.write(json.dumps(each) + "\n")


def line(result: Mapping[str, Any], poller: Poller) -> str:
    """Return what happened in a trial."""
    found = poller.between(result["began"], time.time())["incidents"]
    errors = sum(any(each["event"] == "error" for each in of) for of in result["events"])
    suspects = [(each["pid"], each["confidence"]) for one in found for each in one["last"]["suspects"][:2]]
    shown = [shown_kernels(one["last"], result["culprit"])[:4] for one in found]
    return (
        f"{result['number']:3} {result['name']:18} {result['ended'] - result['began']:4.1f} s, {errors} of "
        f"{len(result['pids'])} with an error; culprit {result['culprit']} in {result['kernel']}"
        f"{'' if result['fresh'] else ' (ordinary)'}; {len(found)} incidents, suspects {suspects}, shown {shown}"
    )


if __name__ == "__main__":
    sys.exit(main())
