"""Compare the exporter with the truth of a trial: `python3 -m lab.contention.score DIR [--without-gpm]`.

It replays the recording. With `--without-gpm`, it leaves out the readings of GPM. The truth of a slowdown is the steps
a second alone, divided by those in the windows of the phase in which the probes were attached. That of the SM time is
what GPM measured for a step alone, times the steps. Kernels that are slowed down take more, so summaries also leave out
such clients. Phases with another form or with crowded CPUs are left out. It prints what the exporter says at the end of
each phase, and the kernels of each client.
"""

import argparse
import gzip
import json
import math
import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from exporter.model.contention import ContentionWindow, GpuContention, Slowdown
from exporter.model.launches import WorkReading
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.sharing import GpuUse
from exporter.model.usage import Split
from exporter.model.values import replace
from exporter.recording import Recording
from exporter.reducer import reduce
from exporter.report.slowdowns import slowdown_sentences
from exporter.usage.capacity import gpu_sharing
from exporter.usage.contention import slowdowns
from exporter.usage.last_minute import combined
from tests.usage.mix_recordings import without_gpm

LAG_SECONDS, AFTER_SECONDS = 0.1, 1.2
SETTLE_SECONDS = {True: 0.45, False: 1.5}  # windows without GPM are long, and begin when the phase does
CLEARLY, TWICE, SLOWED = 1.8, 2.0, 1.5
SAME_KERNELS = 1.2
"""The kernels of a client that is slowed down less take about as long as alone."""

RESOURCES = {
    "torch_stream": {"memory_bandwidth"},
    "torch_gemm_large": {"sms"},
    "torch_conv_large": {"memory_bandwidth", "sms"},
}
"""What clients of these kinds use up."""


@dataclass(frozen=True, slots=True)
class Phase:
    """The clients of a phase, its time, their true steps a second, and the exporter's state at its end.

    `contention` has the windows with launches. `split` is what `status` would show if all `windows` were the last
    minute.
    """

    clients: Sequence[str]
    times: tuple[int, int]
    rates: Mapping[str, float]
    details: Mapping[str, Any]
    node: Node
    gpu: str
    contention: GpuContention
    windows: Sequence[Split]
    split: Split | None

    @property
    def gpm(self) -> float | None:
        """The use of the SMs by GPM; None without it."""
        return self.split.sm if self.split is not None and self.split.measured else None


@dataclass(frozen=True, slots=True)
class Found:
    """What was found of a client in a phase beside others, and its true slowdown."""

    name: str
    heavy: Mapping[str, Collection[str]]
    true: float
    slowdown: Slowdown | None
    neighbour: str | None

    @property
    def error(self) -> float:
        """The relative error."""
        assert self.slowdown is not None
        return abs(self.slowdown.ratio / self.true - 1)


def phases(directory: Path, truth: Mapping[str, Any], *, gpm: bool) -> Iterator[Phase]:
    """Replay the recording, and yield each phase with the windows that lie in it."""
    waiting = list(truth["phases"])

    def epoch(boot_ns: int) -> float:
        return float(boot_ns - truth["boot_minus_epoch_ns"]) / 1e9

    with gzip.open(directory / "recording.jsonl.gz", "rt") as file:
        recording = Recording(file)
        node = recording.header.node()
        for seen in replayed(recording.observations(), gpm=gpm):
            node, _ = reduce(node, seen)
            while waiting and isinstance(seen, GpuUse | WorkReading):
                clients, began, ended, rates, details = waiting[0]
                if seen.at < epoch(ended) + AFTER_SECONDS or not node.contention:
                    break
                waiting.pop(0)
                gpu = details.get("gpu") or max(node.contention, key=lambda each: len(node.contention[each].windows))
                if gpu not in node.contention:
                    continue
                first, last = epoch(began) - SETTLE_SECONDS[gpm] + LAG_SECONDS, epoch(ended) + LAG_SECONDS
                state, used = node.contention[gpu], node.attribution[gpu]
                launches = tuple(each for each in state.windows if each.at - each.seconds >= first and each.at <= last)
                windows = tuple(each for each in used.windows if each.at - each.seconds >= first and each.at <= last)
                split = combined(windows, used.began, used.estimates) if windows else None
                state = replace(state, windows=launches)
                yield Phase(clients, (began, ended), rates, details, node, gpu, state, windows, split)


def steps_a_second(
    rows: Sequence[tuple[int, int]], windows: Sequence[Split | ContentionWindow], boot_minus_epoch_ns: int
) -> float | None:
    """Return the steps a second in these windows; None if unknown. `rows` has times, and the steps until then."""
    if len(rows) < 2 or not windows:
        return None

    def steps(at: float) -> float:
        at_ns = (at - LAG_SECONDS) * 1e9 + boot_minus_epoch_ns
        index = min(max(1, bisect_left(rows, at_ns, key=itemgetter(0))), len(rows) - 1)
        (before, count), (after, later) = rows[index - 1 : index + 1]
        return count + (later - count) * min(1.0, max(0.0, (at_ns - before) / (after - before)))

    done = sum(steps(each.at) - steps(each.at - each.seconds) for each in windows)
    return done / sum(each.seconds for each in windows)


def replayed(seen: Iterable[Observation], *, gpm: bool) -> Iterable[Observation]:
    """Return the observations, without those of GPM if there is to be none."""
    return seen if gpm else without_gpm(seen)


def sentences(phase: Phase) -> list[str]:
    """Return what `status` would say if the phase had been the last minute."""
    node = replace(phase.node, contention={**phase.node.contention, phase.gpu: phase.contention})
    return [each.text for each in slowdown_sentences(node, gpu_sharing(node)[phase.gpu])]


def named_kernels(node: Node, pid: int) -> str:
    """Return the kernels of a process that were longest in flight."""
    known = () if node.kernels is None else node.kernels.clients
    uses = [use for client in known if client.pid == pid for use in client.most]
    texts = [f"{' + '.join(name.short for name in use.names) or '?'} {use.flight_ratio:.0%}" for use in uses]
    return ", ".join(texts) or "none"


def score(directory: Path, *, gpm: bool) -> Iterator[str]:
    """Yield the lines of the report."""
    truth = json.loads(gzip.decompress((directory / "truth.json.gz").read_bytes()))
    answers = truth.get("answers", {})
    names = {pid: name for name, pid in truth["pids"].items()}
    kinds = truth.get("kinds", {"stream": "torch_stream", "gemm": "torch_gemm_large"})
    all_heavy = {name: RESOURCES[kind] for name, kind in kinds.items() if kind in RESOURCES}
    alone: dict[str, float] = {}
    step: dict[str, float] = {}
    found: list[Found] = []
    points: list[tuple[float, float, bool]] = []
    lost: list[float] = []
    phase = None
    for phase in phases(directory, truth, gpm=gpm):
        if phase.details.get("forms") or not phase.rates:
            continue
        launches, boot = phase.contention.windows, truth["boot_minus_epoch_ns"]
        yield f"-- {' '.join(phase.clients)}: {len(phase.windows)} windows, {len(launches)} with launches"
        done = {name: steps_a_second(truth["steps"][name], phase.windows, boot) for name in phase.rates}
        # The steps of requests count in their own time.
        exact = {name: steps_a_second(truth["steps"][name], launches, boot) for name in done.keys() - truth["requests"]}
        rates = {name: exact.get(name) or rate for name, rate in phase.rates.items()}
        yield from (f"   {name}: {latency(answers[name], *phase.times)}" for name in phase.clients if name in answers)
        if len(phase.clients) == 1:
            alone = {**rates, **alone}
            used = "none" if phase.gpm is None else f"{phase.gpm:.1%}"
            for name, rate in rates.items():
                if phase.gpm is not None and (steps := done[name]):
                    step.setdefault(name, phase.gpm / steps)
                yield f"   {name}: {rate:.1f} steps/s, GPM {used}"
            continue
        slowed, shares = slowdowns(phase.contention), {} if phase.split is None else phase.split.shares
        for name in phase.clients:
            if name not in rates or name not in alone or name in phase.details.get("crowded", ()):
                continue
            pid, heavy = truth["pids"][name], {each: all_heavy[each] for each in phase.clients if each in all_heavy}
            slowdown, true = slowed.get(pid), alone[name] / rates[name]
            others = slowdown.neighbours if slowdown is not None else ()
            found.append(Found(name, heavy, true, slowdown, names.get(others[0][0]) if others else None))
            share, steps, text = shares.get(pid), done[name], ""
            if name in step and steps is not None:
                sm = step[name] * steps
                text = f", SMs unknown of true {sm:.1%}"
                if share is not None:
                    points.append((true, 100 * abs(share.sm - sm), abs(share.sm - sm) <= 2 * share.error + 0.001))
                    text = f", SMs {share.sm:.1%} ± {share.error:.1%} of true {sm:.1%}"
            yield f"   {name}: true {true:.2f}, {described(slowdown, found[-1].neighbour)}{text}"
        parts = [shares[pid].sm for pid in map(truth["pids"].get, phase.clients) if pid in shares]
        if phase.gpm is not None and len(parts) == len(phase.clients):
            lost.append(100 * abs(phase.gpm - sum(parts)))
            yield f"   all: SMs {sum(parts):.1%} of {phase.gpm:.1%} by GPM"
        yield from (f"   says: {text}" for text in sentences(phase))
    if phase is not None:
        yield from (f"kernels of {name}: {named_kernels(phase.node, pid)}" for name, pid in truth["pids"].items())
    yield from summary(found)
    for whose, most in ("", math.inf), (f" of clients slowed down less than {SAME_KERNELS} times", SAME_KERNELS):
        errors = [error for true, error, _ in points if true < most]
        covered = sum(inside for true, _, inside in points if true < most)
        if errors:
            right = f"{covered} of {len(errors)} within two standard errors"
            yield f"SM time{whose}: error mean {statistics.fmean(errors):.1f}, worst {max(errors):.1f} points; {right}"
    if lost:
        yield f"sum of the clients against GPM: mean {statistics.fmean(lost):.1f}, worst {max(lost):.1f} points"


def latency(answers: Sequence[tuple[int, int, int]], began: int, ended: int) -> str:
    """Return how long answers took that came in this time."""
    taken = sorted(ns / 1e9 for at, ns, _ in answers if began <= at <= ended)
    if not taken:
        return "no answers"
    return f"{len(taken)} answers, median {statistics.median(taken):.2f} s, worst {taken[-1]:.2f} s"


def described(slowdown: Slowdown | None, neighbour: str | None) -> str:
    """Return the slowdown that was found, in words."""
    if slowdown is None:
        return "unknown"
    kind = "at least " if slowdown.at_least else ""
    return f"found {kind}{slowdown.ratio:.2f} ± {slowdown.error_ratio:.2f}, {slowdown.resource}, {neighbour}"


def summary(found: Sequence[Found]) -> Iterator[str]:
    """Yield the figures of docs/hardware.md."""
    known = [(each, each.slowdown) for each in found if each.slowdown is not None]
    exact = [(each, slowdown) for each, slowdown in known if not slowdown.at_least]
    bounds = [(each, slowdown) for each, slowdown in known if slowdown.at_least]
    unknown = len(found) - len(known)
    yield f"clients beside others: {len(exact)} with a slowdown, {len(bounds)} bounds, {unknown} unknown"
    errors = sorted(each.error for each, _ in exact)
    if errors:
        at = (statistics.fmean(errors), statistics.median(errors), errors[int(0.95 * len(errors))], errors[-1])
        inside = sum(abs(slowdown.ratio - each.true) <= 2 * slowdown.error_ratio for each, slowdown in exact)
        yield "error: mean {:.1%}, median {:.1%}, 95th percentile {:.1%}, worst {:.1%}".format(*at)
        yield f"truth within two standard errors: {inside} of {len(exact)}"
    wrong = sum(slowdown.ratio - 2 * slowdown.error_ratio > each.true for each, slowdown in bounds)
    yield f"bounds above the truth by two standard errors: {wrong} of {len(bounds)}"
    alarms = [each.true for each, slowdown in known if slowdown.ratio - 2 * slowdown.error_ratio > TWICE]
    false = sum(true < CLEARLY for true in alarms)
    yield f"found slowed more than twice: {len(alarms)}, of which truly below {CLEARLY}: {false}"
    beside = [(each, slowdown) for each, slowdown in known if each.true > SLOWED and len(each.heavy) == 1]
    beside = [(each, slowdown) for each, slowdown in beside if each.name not in each.heavy]
    who: Counter[str] = Counter()
    for each, slowdown in beside:
        who["neighbour " + ("right" if each.neighbour in each.heavy else "wrong" if each.neighbour else "none")] += 1
        (resources,) = each.heavy.values()
        who["resource " + ("right" if slowdown.resource in resources else f"{slowdown.resource}")] += 1
    yield f"slowed more than {SLOWED} times by one heavy client: {len(beside)}: {dict(sorted(who.items()))}"


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--without-gpm", action="store_true")
    options = parser.parse_args()
    for line in score(options.directory, gpm=not options.without_gpm):
        print(line)


if __name__ == "__main__":
    main()
