"""Pace of clients while an exporter with attached probes is stopped for a minute, after that, and after its SIGKILL.

    OUT=DIR python3 -m lab.attribution.stopped [--stopped SECONDS] [--phase SECONDS]

GPU is the index of the GPU (0). DIR gets `stopped.json`. It takes less than three minutes. Two clients with 30,000
launches a second always work. Between two launches, one waits and the other computes. Two others launch as much as they
can. One of them works in the first half of each phase. The other, which waits for each launch, works in the second
half. No other exporter of the node may have probes.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lab.gpu.clients import build
from lab.gpu.mps import ControlDaemon, chosen_gpu
from lab.gpu.program import Exporter
from tests.eventually import eventually
from tests.libcuda_probes.standin import code_at

from .cost import Pace, Paced, boot_ns, library
from .pace import LAUNCHES

SETTLE_SECONDS, TOLD_SECONDS = 0.3, 0.3
PROBED_SECONDS, SLICE_SECONDS = 60.0, 10.0
ALWAYS = (Pace("30,000 launches/s", 30_000), Pace("30,000 launches/s, computes between", 0, work_us=31.0))
IN_TURN = (Pace("as many as it can", 0), Pace("as many as it can, each synchronised", 0, sync_every=1))
FUNCTION = "cuLaunchKernel"

Times = tuple[int, int]
Json = dict[str, Any]


class Clients:
    """The clients that always work, and those that take turns."""

    def __init__(self, program: Path, daemon: ControlDaemon) -> None:
        self._path, offsets = library()
        self._offset = offsets[FUNCTION]
        with open(self._path, "rb") as file:
            self._written = os.pread(file.fileno(), 1, self._offset)
        self.all: dict[str, Paced] = {}
        for number, pace in enumerate((*ALWAYS, *IN_TURN)):
            self.all[pace.name] = Paced(program, pace, daemon, f"paced{number}")
        self.let_work(IN_TURN[0])

    def let_work(self, chosen: Pace) -> None:
        """Let this client work, and let the other one that takes turns pause."""
        for pace in IN_TURN:
            self.all[pace.name].child.send(signal.SIGUSR2 if pace is chosen else signal.SIGUSR1)

    def probed(self) -> bool:
        """Return whether the launches of the first client have a probe."""
        return code_at(self.all[ALWAYS[0].name].child.pid, Path(self._path), self._offset) != self._written

    def end(self) -> None:
        """End them."""
        for each in self.all.values():
            each.child.end(within=3)


def wait_probed(clients: Clients, probed: bool, within: float = PROBED_SECONDS) -> float:
    """Wait until there is a probe, or none. Return the seconds."""
    began = time.monotonic()
    while clients.probed() is not probed:
        if time.monotonic() > began + within:
            raise TimeoutError(f"after {within} s, probed is not {probed}")
        time.sleep(0.002)
    return time.monotonic() - began


def phase(clients: Clients, seconds: float) -> Json:
    """Let the clients that take turns work for half of the time each. Return when each client worked."""
    times: dict[str, list[Times]] = {each.name: [] for each in ALWAYS}
    for pace in IN_TURN:
        clients.let_work(pace)
        time.sleep(SETTLE_SECONDS)
        began = boot_ns()
        time.sleep(seconds / 2)
        times[pace.name] = [(began, boot_ns())]
        for each in ALWAYS:
            times[each.name] += times[pace.name]
    return {"times": times, "probed": clients.probed()}


def stop_probed(clients: Clients, exporter: Exporter) -> None:
    """Stop the exporter while its probes are attached."""
    while True:
        wait_probed(clients, True)
        exporter.child.send(signal.SIGSTOP)
        time.sleep(SETTLE_SECONDS)  # a detachment that had begun may end
        if clients.probed():
            return
        exporter.child.send(signal.SIGCONT)


def counted(exporter: Exporter) -> dict[str, float]:
    """Return the launches of each client that the exporter counted so far, by PID."""
    scrape = exporter.scrape()
    pids = {each.labels["client"]: each.labels["pid"] for each in scrape.select("cuda_mps_client_info")}
    found = scrape.select(LAUNCHES, kind="kernel")
    return {pids[each.labels["client"]]: each.value for each in found if each.labels["client"] in pids}


def play(clients: Clients, daemon: ControlDaemon, seconds: float, stopped: float, result: Json) -> None:
    """Run all phases, and add what was found to the result."""
    phases = result["phases"] = {}
    phases["without"] = phase(clients, seconds / 2)
    exporter = Exporter(daemon, "--attribution=bpf", "--client-min-age=0s")
    try:
        exporter.wait()
        result["seconds_until_probed"] = wait_probed(clients, True)
        phases["with"] = phase(clients, seconds)
        result["counted_before"], began = counted(exporter), boot_ns()
        stop_probed(clients, exporter)
        phases["stopped"] = phase(clients, stopped)
        exporter.child.send(signal.SIGCONT)
        ended = time.monotonic()
        eventually(lambda: _assert_answers(exporter), within=30)
        result["seconds_from_sigcont_to_an_answer"] = time.monotonic() - ended
        phases["continued"] = phase(clients, seconds)
        result["counted_after"], result["counted_times"] = counted(exporter), (began, boot_ns())
        result["sources"] = [each for each in exporter.scrape().text.splitlines() if "exporter_source_up{" in each]
        wait_probed(clients, True)
        exporter.child.send(signal.SIGKILL)
        result["seconds_from_sigkill_to_no_probe"] = wait_probed(clients, False)
        phases["killed"] = phase(clients, seconds / 2)
    finally:
        with suppress(ProcessLookupError):
            exporter.child.send(signal.SIGCONT)
        exporter.end()
        result["log"] = exporter.child.text()[-3000:]
        time.sleep(TOLD_SECONDS)  # the clients report ten times a second


def _assert_answers(exporter: Exporter) -> None:
    try:
        exporter.scrape()
    except OSError as problem:
        raise AssertionError from problem


def evaluate(clients: Clients, result: Json) -> None:
    """Add the pace of each client in each phase, and its ratio to that without an exporter, before and after."""
    paces: Json = {}
    for name, paced in clients.all.items():
        known = {at: each["times"][name] for at, each in result["phases"].items()}
        found = {at: _mean([paced.phase(*times) for times in each]) for at, each in known.items()}
        off = [found[at] for at in ("without", "killed") if at in found]
        means = {key: statistics.fmean(each[key] for each in off) for key in ("per_second", "cpu_ns")}
        for each in found.values():
            each["pace_ratio"] = each["per_second"] / means["per_second"]
            each["cpu_ratio"] = each["cpu_ns"] / means["cpu_ns"]
        if "stopped" in known:
            rates = [paced.phase(*each).per_second for times in known["stopped"] for each in _slices(times)]
            found["stopped"]["least_ratio_of_10_s"] = min(rates) / means["per_second"]
        if "counted_times" in result:
            pid = str(paced.child.pid)
            begun, ended = result["counted_times"]
            launched = paced.phase(begun, ended).per_second * (ended - begun) / 1e9
            grown = result["counted_after"].get(pid, 0.0) - result["counted_before"].get(pid, 0.0)
            found["counted_ratio"] = grown / launched
        paces[name] = found
    result["paces"] = paces


def _mean(phases: Sequence[Any]) -> Json:
    return {key: statistics.fmean(getattr(each, key) for each in phases) for key in ("per_second", "cpu_ns")}


def _slices(times: Times) -> list[Times]:
    step = int(SLICE_SECONDS * 1e9)
    starts = range(times[0], times[1] - step // 2, step)
    return [(start, min(start + step, times[1])) for start in starts]


def lines(paces: Mapping[str, Any]) -> list[str]:
    """Return the figures for people."""
    found = []
    for name, phases in paces.items():
        for at, each in phases.items():
            if at == "counted_ratio":
                found.append(f"{name}: counted {each:.3f} of its launches from the stop until after SIGCONT")
            else:
                least = each.get("least_ratio_of_10_s")
                text = "" if least is None else f", least of 10 s {least:.4f}"
                pace = f"{each['per_second']:,.0f} launches/s, ratio {each['pace_ratio']:.4f}{text}"
                found.append(f"{name}, {at}: {pace}; CPU {each['cpu_ns']:,.0f} ns a launch")
    return found


def main() -> int:
    """Measure, and write what there is, also after an error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stopped", type=float, default=60.0)
    parser.add_argument("--phase", type=float, default=16.0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    result: Json = {}
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as name:
        daemon = ControlDaemon(Path(name, "d"))
        steps: list[Callable[[], object]] = [daemon.end]
        try:
            daemon.start(**chosen_gpu())
            clients = Clients(build(Path(__file__).with_name("paced.cu"), Path(name, "paced")), daemon)
            steps[:0] = [lambda: evaluate(clients, result), clients.end]
            play(clients, daemon, options.phase, options.stopped, result)
        except (Exception, KeyboardInterrupt) as problem:
            result["error"] = repr(problem)
        for step in steps:
            try:
                step()
            except Exception as problem:
                result["error"] = f"{result.get('error', '')} {problem!r}"
    Path(os.environ["OUT"], "stopped.json").write_text(json.dumps(result, indent=1) + "\n")
    shown = {key: value for key, value in result.items() if key.startswith("seconds") or key == "error"}
    print(json.dumps(shown, indent=1), *lines(result.get("paces", {})), sep="\n")
    return 1 if "error" in result else 0


if __name__ == "__main__":
    sys.exit(main())
