"""Recorded mixes of clients that slow each other down, compared with the steps that each client counted itself.

lab/contention recorded them on an H100 (driver 580.159.04): each client alone, then mixes with heavy clients that come
and go. The truth is the steps a second alone, divided by those in the phase. CPU-bound clients were up to a third
faster when they were alone a second time, so errors include those of the truth. Even mixes were used for tuning.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from exporter.model.contention import Bandwidth, GpuContention, Slowdown
from exporter.model.sharing import GpuUse
from exporter.model.values import replace
from exporter.recording import Recording
from exporter.reducer import reduce
from exporter.usage.bandwidth import bandwidths
from exporter.usage.contention import slowdowns

DIRECTORY = Path(__file__).parents[1] / "contention"
LAG_SECONDS, SETTLE_SECONDS = 0.1, 0.45
HEAVY = {"stream": "memory_bandwidth", "gemm": "sms"}


@dataclass(frozen=True)
class Result:
    """What was estimated of a client in a phase, and the truth: its slowdown, and what it used of the bandwidth."""

    client: str
    clients: tuple[str, ...]
    true: float
    found: Slowdown | None
    bandwidth: Bandwidth
    true_bandwidth: float
    neighbour: str | None

    @property
    def error(self) -> float:
        assert self.found is not None
        return abs(self.found.ratio / self.true - 1)


@cache
def results() -> list[Result]:
    truth = json.loads((DIRECTORY / "h100.truth.json").read_text())
    alone: dict[str, float] = {}
    moved: dict[str, float] = {}
    names = {pid: name for name, pid in truth["pids"].items()}
    found = []
    for phase, state in phases(truth):
        splits, contention, _ = state
        rates, clients = phase["steps_per_second"], tuple(phase["clients"])
        if len(clients) == 1:
            alone.setdefault(clients[0], rates[clients[0]])
            used = [split.dram or 0.0 for split in splits if split.at in {each.at for each in contention.windows}]
            moved.setdefault(clients[0], sum(used) / len(used) / rates[clients[0]] if used else 0.0)
            continue
        slowed, used_by = slowdowns(contention), bandwidths(contention)
        for name in clients:
            if name in phase.get("crowded", ()) or name not in rates or phase.get("forms"):
                continue
            pid = truth["pids"][name]
            slowdown = slowed.get(pid)
            largest = slowdown.neighbours[0][0] if slowdown is not None and slowdown.neighbours else None
            found.append(
                Result(
                    client=name,
                    clients=clients,
                    true=alone[name] / rates[name],
                    found=slowdown,
                    bandwidth=used_by.get(pid, Bandwidth(0.0, 0.0)),
                    true_bandwidth=moved[name] * rates[name],
                    neighbour=None if largest is None else names[largest],
                )
            )
    return found


def phases(truth: dict[str, Any]) -> Iterator[tuple[dict[str, Any], tuple[list[Any], GpuContention, float]]]:
    """Yield each phase, with the windows that lie in it, and the seconds that the clients have lost so far."""
    waiting = list(truth["phases"])
    with gzip.open(DIRECTORY / "h100.jsonl.gz", "rt") as file:
        recording = Recording(file)
        node = recording.header.node()
        for seen in recording.observations():
            node, _ = reduce(node, seen)
            while waiting and isinstance(seen, GpuUse) and epoch(truth, waiting[0]["ended_ns"]) + 1.2 < seen.at:
                phase = waiting.pop(0)
                began, ended = (epoch(truth, phase[name]) for name in ("began_ns", "ended_ns"))
                contention = node.contention[seen.gpu]
                windows = tuple(
                    each
                    for each in contention.windows
                    if each.at - LAG_SECONDS - each.seconds >= began - SETTLE_SECONDS and each.at - LAG_SECONDS <= ended
                )
                lost = node.usage_totals.gpus[seen.gpu].total.lost_us / 1e6
                yield phase, (list(node.attribution[seen.gpu].windows), replace(contention, windows=windows), lost)


def epoch(truth: dict[str, Any], boot_ns: int) -> float:
    return float(boot_ns - truth["boot_minus_epoch_ns"]) / 1e9


def known() -> list[Result]:
    return [each for each in results() if each.found is not None and not each.found.at_least]


def test_slowdowns_are_right_over_two_orders_of_magnitude() -> None:
    errors = sorted(each.error for each in known())
    assert len(errors) > 70
    assert max(each.true for each in known()) > 30
    assert sum(errors) / len(errors) <= 0.06
    assert errors[int(0.95 * len(errors))] <= 0.2


def test_the_lost_time_is_the_true_one_without_what_is_unknown() -> None:
    truth = json.loads((DIRECTORY / "h100.truth.json").read_text())
    alone: dict[str, float] = {}
    true = lost = 0.0
    for phase, state in phases(truth):
        lost = state[-1]
        seconds = (phase["ended_ns"] - phase["began_ns"]) / 1e9
        for name, rate in phase["steps_per_second"].items():
            true += seconds * (1 - rate / alone.setdefault(name, rate))
    assert 0.75 * true < lost < 1.05 * true


def test_the_truth_lies_within_two_standard_errors() -> None:
    covered = [
        abs(each.found.ratio - each.true) <= 2 * each.found.error_ratio for each in known() if each.found is not None
    ]
    assert sum(covered) >= 0.85 * len(covered)


def test_no_client_is_found_slowed_that_was_not() -> None:
    slowed = [each for each in known() if each.found is not None and each.found.ratio - 2 * each.found.error_ratio > 2]
    assert slowed
    assert min(each.true for each in slowed) > 1.8


def test_names_the_resource_and_the_heaviest_neighbour() -> None:
    beside_one = [
        each for each in known() if each.true > 1.5 and len({*each.clients} & HEAVY.keys() - {each.client}) == 1
    ]
    slowed = [each for each in beside_one if each.client not in HEAVY]
    assert len(slowed) > 12
    for each in slowed:
        (heavy,) = {*each.clients} & HEAVY.keys()
        assert each.found is not None
        assert (each.found.resource, each.neighbour) == (HEAVY[heavy], heavy)


def test_a_client_that_ends_no_span_has_no_slowdown() -> None:
    """They run one step ahead, or wait by other means."""
    assert all(each.found is None for each in results() if each.client == "jax")


def test_parts_of_the_bandwidth_are_right() -> None:
    errors = [abs(each.bandwidth.part - each.true_bandwidth) for each in results()]
    assert sum(errors) / len(errors) <= 0.03
