"""Cost of this checkout and of another one, in turn.

    OUT=DIR python3 -m lab.kernels.cost launches|service [--other CHECKOUT] [--seconds S] [--clients N]

As root, with MPS and nvcc. `launches`: what the probes of each add to a launch, with none attached in between.
`service`: processor time and memory of `serve --attribution=bpf` beside N clients of PyTorch, and of its BPF maps. DIR
gets `launches.json` or `service.json`. Without another checkout, only this one is measured.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from lab.attribution.cost import Bound, Pace, Paced, boot_ns, stretch
from lab.gpu.child import Child
from lab.gpu.clients import build
from lab.gpu.mps import ControlDaemon
from lab.gpu.program import SOURCE, Exporter

from .service import maps_of, wait_for

PACED = SOURCE / "lab" / "attribution" / "paced.cu"
PACES = (Pace("as many as it can", 0), Pace("10,000 launches/s, each synchronised", 10_000, sync_every=1))
SETTLE_SECONDS, MEASURED_SECONDS, READY_SECONDS = 15.0, 25.0, 150.0
MIB = 1 << 20

ATTACHER = """
import sys
from lab.attribution.cost import SMS, boot_ns, library
from exporter.libcuda_probes.loader import Kernel
from exporter.libcuda_probes.probes import LibcudaProbes
probes, (path, offsets) = LibcudaProbes(Kernel(), boot_ns, SMS), library()
print("ready", flush=True)
for word in sys.stdin:
    if word == "on\\n":
        probes.begin()
        probes.attach(path, offsets)
    else:
        probes.detach(path)
    print("done", flush=True)
probes.close()
"""
"""A program of each checkout: it attaches the probes at `on`, and removes them at `off`."""

Numbers = dict[str, float]


class Attacher:
    """The probes of a checkout, in a process of its own."""

    def __init__(self, checkout: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", ATTACHER],
            cwd=checkout,
            env=environment_of(checkout),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._expect("ready")

    def say(self, word: str) -> None:
        """Attach (`on`) or remove (`off`) the probes."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        self._expect("done")

    def close(self) -> None:
        """End it, which removes the probes."""
        self._process.kill()
        self._process.communicate()

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        found = self._process.stdout.readline()
        if found != f"{word}\n":
            raise RuntimeError(f"the probes of a checkout are not {word}: {found!r}")


def environment_of(checkout: Path) -> dict[str, str]:
    """Return the environment in which Python imports from a checkout."""
    path = os.pathsep.join(filter(None, [str(checkout), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def launches(directory: Path, checkouts: Mapping[str, Path], seconds: float) -> Iterator[tuple[str, Any]]:
    """Yield the cost of a launch for each pace: in each round none, then each checkout, in alternating order."""
    program = build(PACED, directory / "paced")
    daemon = ControlDaemon(directory / "d")
    daemon.start()
    attachers = {name: Attacher(checkout) for name, checkout in checkouts.items()}
    try:
        for pace in PACES:
            end = time.monotonic() + seconds / len(PACES)
            paced = Paced(program, pace, daemon)
            rounds: list[dict[str, tuple[int, int]]] = []
            try:
                while time.monotonic() < end or len(rounds) < 2:
                    order = [*attachers][:: 1 if len(rounds) % 2 else -1]
                    rounds.append({"none": stretch()})
                    for name in order:
                        attachers[name].say("on")
                        rounds[-1][name] = stretch()
                        attachers[name].say("off")
                time.sleep(0.5)
                numbers = [{name: phase(paced, one[name]) for name in ("none", *attachers)} for one in rounds]
                yield pace.name, launch_cost(numbers)
            finally:
                paced.child.end()
    finally:
        for each in attachers.values():
            each.close()
        daemon.end()


def phase(paced: Paced, at: tuple[int, int]) -> Numbers:
    """Return nanoseconds of a launch in a phase: of processor time, and from one to the next."""
    found = paced.phase(*at)
    return {"cpu_ns": found.cpu_ns, "ns": 1e9 / found.per_second}


def launch_cost(rounds: Sequence[Mapping[str, Numbers]]) -> dict[str, Any]:
    """Return medians of each, and the mean of what each adds to none, and the second to the first, by round."""
    names = [*rounds[0]]
    first, *rest = names[1:]
    pairs = [("none", first), *(("none", each) for each in rest), *((first, each) for each in rest)]
    result: dict[str, Any] = {"rounds": len(rounds)}
    for kind in ("cpu_ns", "ns"):
        result[kind] = {name: statistics.median(each[name][kind] for each in rounds) for name in names}
        for before, after in pairs:
            added = [each[after][kind] - each[before][kind] for each in rounds]
            half = 2.1 * statistics.stdev(added) / len(added) ** 0.5
            result[f"{kind}: {after} - {before}"] = str(Bound(statistics.fmean(added), half))
            result[f"{kind}: {after} / {before}"] = statistics.fmean(
                each[after][kind] / each[before][kind] for each in rounds
            )
    return result


def service(directory: Path, checkouts: Mapping[str, Path], seconds: float, clients: int) -> Iterator[tuple[str, Any]]:
    """Yield what the exporter of each checkout takes, in turn."""
    end = time.monotonic() + seconds
    daemon = ControlDaemon(directory / "d")
    daemon.start()
    running: list[Child] = []
    try:
        command = [sys.executable, "-m", "lab.kernels.frameworks", "torch_light", "--pause=0.02"]
        environment = {**daemon.environment, **environment_of(SOURCE)}
        for number in range(clients):
            output = directory / f"{number}.out"
            running += [Child(command, output=output, environment=environment, directory=SOURCE)]
        wait_for(running, "ready", time.monotonic() + min(READY_SECONDS, seconds / 2))
        alive = sum(each.exit_code is None for each in running)
        yield "clients", {"wanted": clients, "running": alive, "evidence": [] if alive else running[0].evidence()}
        rounds: dict[str, list[Numbers]] = {name: [] for name in checkouts}
        needed = (SETTLE_SECONDS + MEASURED_SECONDS + 5) * len(checkouts)
        while time.monotonic() + needed < end or not all(rounds.values()):
            for name in [*checkouts][:: 1 if len(rounds[next(iter(rounds))]) % 2 else -1]:
                rounds[name].append(one_service(daemon, checkouts[name]))
                print(name, rounds[name][-1], flush=True)
            yield "rounds", rounds
        first, *rest = checkouts
        for key in rounds[first][0]:
            yield key, {name: statistics.fmean(each[key] for each in of) for name, of in rounds.items()}
            for name in rest:
                added = [b[key] - a[key] for a, b in zip(rounds[first], rounds[name], strict=True)]
                yield f"{key}: {name} - {first}", added
    finally:
        for each in running:
            each.terminate()
        for each in running:
            each.end(within=2)
        daemon.end()


def one_service(daemon: ControlDaemon, checkout: Path) -> Numbers:
    """Run the exporter of a checkout, and return what it takes: percent of a processor, and MiB."""
    exporter = Exporter(daemon, "--attribution=bpf", "--client-min-age=0s", source=checkout)
    try:
        exporter.wait()
        time.sleep(SETTLE_SECONDS)
        before, began = processor_seconds(exporter.pid), time.monotonic()
        time.sleep(MEASURED_SECONDS)
        spent = (processor_seconds(exporter.pid) - before) / (time.monotonic() - began)
        processes = family(exporter.pid)
        scrape = exporter.scrape()
        return {
            "cpu_percent": 100 * spent,
            "rss_mib": sum(each.memory_info().rss for each in processes) / MIB,
            "pss_mib": sum(each.memory_full_info().pss for each in processes) / MIB,
            "maps_mib": sum(maps_of(each.pid) for each in processes) / MIB,
            "clients": len(scrape.listed_pids()),
        }
    finally:
        exporter.end()


def family(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and its descendants, those that have ended included."""
    times = [each.cpu_times() for each in family(pid)]
    return sum(each.user + each.system for each in times) + times[0].children_user + times[0].children_system


def main() -> int:
    """Measure, and write what there is after each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("launches", "service"))
    parser.add_argument("--other", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--clients", type=int, default=48)
    options = parser.parse_args()
    out = Path(os.environ["OUT"])
    out.mkdir(parents=True, exist_ok=True)
    other = {} if options.other is None else {"other": options.other.resolve()}
    checkouts = {**other, "this": SOURCE}
    found: dict[str, Any] = {"began": boot_ns()}
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        directory.chmod(0o755)
        if options.what == "launches":
            steps = launches(directory, checkouts, options.seconds)
        else:
            steps = service(directory, checkouts, options.seconds, options.clients)
        for key, value in steps:
            found[key] = value
            print(key, json.dumps(value, indent=1), flush=True)
            (out / f"{options.what}.json").write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
