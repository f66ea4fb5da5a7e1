"""A large fleet from its past: the cost of rules and of board queries, for Prometheus and VictoriaMetrics.

The raw samples of the last hour are written by remote write. Rules are evaluated over them once. From their results
follow 30 days of recorded series, which promtool imports as blocks, and vmctl from these.
"""

import argparse
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

import yaml

from benchmarks.fleet.model import HOUR, simulated
from benchmarks.fleet.recorded import FAMILY, INTERVALS
from benchmarks.fleet.samples import Exposed, demo
from benchmarks.fleet.stores import (
    LONGEST_ANSWER,
    Prometheus,
    Result,
    Store,
    VictoriaMetrics,
    scraped,
    time_series,
    write_to,
)
from benchmarks.measure import resident_mib
from benchmarks.report import Figure, report
from dashboards.parameters import Parameters
from dashboards.recording import groups
from tests.dashboards.queries import CHOSEN, MODELS, fill_variables, panels
from tests.eventually import eventually

ROOT = Path(__file__).parents[2]
DAY = 86_400
BLOCK = 162 * 3600
TAIL = 7200
"""The recorded samples of the last hours are in the head of Prometheus, as they would be."""

ENDING = ("job", "container")
MEAN_LIFE = DAY
RARE = {"faults", "daemon_losses", "faulted_clients", "faults_suffered", "faults_caused"}
PRESENT = 0.02
"""Fraction of the intervals in which a node or owner has a fault."""

BOARDS = ("cuda-mps-fleet", "cuda-mps-usage", "cuda-mps-reliability")
"""Those of all nodes."""
POINTS = 1000
MOST_SECONDS = {DAY: 1.0, 30 * DAY: 3.0}


@dataclass(frozen=True, slots=True)
class Query:
    """An expression of a board with a period in which it is asked."""

    where: str
    expression: str
    period: int
    step: int

    @property
    def name(self) -> str:
        """What it is in the table."""
        return f"{self.where}, {self.period // DAY} d{'' if self.step else ', instant'}"


def queries(boards: Iterable[str]) -> Iterator[Query]:
    """Yield the queries of these boards, over a day and over 30 days."""
    for uid in boards:
        for panel in panels(MODELS.get(uid, {"panels": ()})):
            for target in panel["targets"]:
                for period in MOST_SECONDS:
                    step = max(30, period // POINTS, _seconds(target.get("interval")))
                    rate = f"{max(4 * 60, step + 60)}s"
                    expression = target["expr"].replace("$__rate_interval", rate).replace("$__interval", f"{step}s")
                    filled = fill_variables(expression, CHOSEN, range_seconds=period)
                    where = f"{uid}: {panel['title']} {target['refId']}"
                    yield Query(where, filled, period, 0 if target["instant"] else step)


def _seconds(interval: str | None) -> int:
    """Return the seconds of a least step, such as 10m."""
    units = {"s": 1, "m": 60, "h": 3600}
    return int(interval[:-1]) * units[interval[-1]] if interval else 0


def families(asked: Iterable[Query]) -> frozenset[str]:
    """Return the families that rules, alerts and these queries read, without those of single clients."""
    texts = [rule.expression for group in groups(Parameters()) for rule in group.rules]
    texts += [each.expression for each in asked]
    texts.append((ROOT / "alerts/cuda-mps.rules.yml").read_text())
    return frozenset(each for each in FAMILY.findall(" ".join(texts)) if not each.startswith("cuda_mps_client_"))


# Raw samples


def write_raw(
    addresses: Sequence[str], nodes: int, parts: int, began: float, ended: float, wanted: frozenset[str], part: int
) -> int:
    """Write a part of the nodes to the stores; return how many series that are."""
    fleet = simulated(nodes, began - 4 * HOUR, ended + HOUR, churn=False)
    count = 0
    for number, node in enumerate(fleet.nodes):
        if number % parts == part:
            series = list(scraped(Exposed(node, number, wanted), node.scrapes(began, ended)))
            for address in addresses:
                write_to(address, series)
            count += len(series)
    return count


# Recorded series


@dataclass(frozen=True, slots=True)
class Past:
    """A recorded series of the past: its usual value, its time, and the fraction of intervals with a sample."""

    name: str
    labels: Mapping[str, str]
    value: float
    first: int
    last: int
    interval: int
    fraction: float

    @property
    def text(self) -> str:
        """The series as in OpenMetrics."""
        labels = ",".join(f'{key}="{label}"' for key, label in sorted(self.labels.items()))
        return f"{self.name}{{{labels}}}"

    def samples(self, begin: int, end: int) -> Iterator[tuple[int, float]]:
        """Yield times and values in a part of its time: a value changes from sample to sample, unless it is rare."""
        chance = random.Random(f"{self.text} {begin}")
        noise = [chance.uniform(0.7, 1.0) * self.value for _ in range(97)]
        begin = max(begin, self.first)
        for at in range(begin + -begin % self.interval, min(end, self.last + 1), self.interval):
            if self.fraction == 1.0:
                yield at, noise[at // self.interval % 97]
            elif chance.random() < self.fraction:
                yield at, self.value


def pasts(results: Mapping[str, Result], end: int, days: int) -> Iterator[Past]:
    """Yield the series that lead to these results of the rules. Before a job or container, others had its place."""
    intervals = {rule.record: INTERVALS[group.interval] for group in groups(Parameters()) for rule in group.rules}
    begin = end - days * DAY
    for name, result in results.items():
        rare = name.split(":")[1].removeprefix("cuda_mps_") in RARE
        for found, value in result.items():
            labels = {key: label for key, label in found if key != "__name__"}
            fraction = PRESENT if rare or labels.get("outcome", "served") != "served" else 1.0
            if labels.get("workload_kind") not in ENDING:
                yield Past(name, labels, value, begin, end, intervals[name], fraction)
                continue
            application, last, number = labels["application"], end, 0
            lives = random.Random(application)
            while last > begin:
                first = int(last - lives.expovariate(1 / MEAN_LIFE)) - 600
                named = labels | {"application": f"{application}{number or ''}"}
                yield Past(name, named, value, max(first, begin), last, intervals[name], fraction)
                last, number = first, number + 1


def write_block(file: Path, series: Sequence[Past], begin: int, end: int) -> int:
    """Write what is in a time as OpenMetrics text; return the number of samples."""
    count = 0
    with file.open("w") as out:
        for each in series:
            text = each.text
            lines = [f"{text} {value:.6g} {at}\n" for at, value in each.samples(begin, end)]
            out.writelines(lines)
            count += len(lines)
        out.write("# EOF\n")
    return count


def import_block(directory: Path, series: Sequence[Past], period: tuple[int, int]) -> int:
    """Write what is in a time, and make a block of it. Return the number of samples."""
    file = directory / f"{period[0]}.om"
    count = write_block(file, series, *period)
    command = ("promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", f"--max-block-duration={BLOCK}s")
    subprocess.run([*command, file, directory / "prometheus" / "data"], check=True, stdout=subprocess.DEVNULL)
    file.unlink()
    return count


# Figures


def timed_rules(store: Store, at: int, times: int) -> tuple[dict[str, Result], dict[str, float]]:
    """Evaluate each rule; return its result, and how long that takes."""
    results, took = {}, {}
    for group in groups(Parameters()):
        for rule in group.rules:
            took[rule.record] = store.seconds(rule.expression, at, at, times=times)
            results[rule.record] = store.query(rule.expression, at)
            if results[rule.record]:
                written = (
                    time_series({**dict(labels), "__name__": rule.record}, [(at, value)])
                    for labels, value in results[rule.record].items()
                )
                store.write(written)
                store.settle()
    return results, took


def timed_alerts(store: Store, at: int) -> tuple[dict[str, float], float]:
    """Evaluate each alert once; return how long each takes, and how long all take in 30 s."""
    rules = yaml.safe_load((ROOT / "alerts/cuda-mps.rules.yml").read_text())
    took, of_30_seconds = {}, 0.0
    for group in rules["groups"]:
        for number, each in enumerate(group["rules"]):
            seconds = store.seconds(each["expr"], at, at, times=1)
            took[f"{each.get('alert', each.get('record'))} {number}"] = seconds
            of_30_seconds += seconds * 30 / _seconds(group["interval"])
    return took, of_30_seconds


def differences(one: Result, other: Result) -> list[str]:
    """Return the series that differ by more than 0.1 %."""
    return [
        f"{dict(labels)}: {one.get(labels)} and {other.get(labels)}"
        for labels in one.keys() | other.keys()
        if labels not in one or labels not in other or not math.isclose(one[labels], other[labels], rel_tol=1e-3)
    ]


def disk_mib(directory: Path) -> float:
    """Return how much is stored there."""
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file()) / 2**20


def slowest(title: str, took: Mapping[str, float], count: int = 10) -> None:
    """Print the sum and the slowest."""
    print(f"# {title}: {sum(took.values()):.2f} s in all, {len(took)} expressions")
    for name in sorted(took, key=lambda each: -took[each])[:count]:
        print(f"  {took[name]:7.3f} s  {name}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.backfill", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--days", type=int, default=30, help="days of recorded series (default: %(default)s)")
    parser.add_argument("--minutes", type=int, default=65, help="of raw samples; rules need 22 (default: %(default)s)")
    parser.add_argument("--times", type=int, default=2, help="evaluations of each expression (default: %(default)s)")
    parser.add_argument("--board", action="append", choices=BOARDS, help="can be given again; all by default")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--directory", type=Path, help="where the data are; a new one by default, which is removed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        figures = measured(Path(directory), options)
    return report(f"fleet of {options.nodes} nodes", figures, options.json)


def measured(directory: Path, options: argparse.Namespace) -> list[Figure]:
    """Write the past, evaluate and ask."""
    end = int(time.time()) // TAIL * TAIL
    at = end + 7
    asked = list(queries(options.board or BOARDS))
    demo()  # once, before processes begin
    # So it does not compact the imported blocks meanwhile.
    prometheus = Prometheus(directory / "prometheus", {}, f"--storage.tsdb.max-block-duration={BLOCK}s")
    victoria = VictoriaMetrics(directory / "victoria", "-search.maxUniqueTimeseries=5000000")
    progress = Progress()
    with victoria, prometheus:
        with ProcessPoolExecutor(options.processes) as pool:
            addresses = (prometheus.address, victoria.address)
            write = partial(
                write_raw, addresses, options.nodes, options.processes, end - 60 * options.minutes, end, families(asked)
            )
            raw = sum(pool.map(write, range(options.processes)))
            victoria.settle()
            progress(f"{raw} raw series are written")
            results, rules = timed_rules(prometheus, end, options.times)
            in_victoria, rules_victoria = timed_rules(victoria, end, options.times)
            slowest("rules in Prometheus", rules)
            slowest("rules in VictoriaMetrics", rules_victoria)
            for name, result in results.items():
                for difference in differences(result, in_victoria[name])[:3]:
                    print(f"  different: {name} {difference}")
            alerts, of_30_seconds = timed_alerts(prometheus, end)
            slowest("alerts in Prometheus", alerts)
            of_30_seconds += sum(
                rules[rule.record] * 30 / INTERVALS[group.interval]
                for group in groups(Parameters())
                for rule in group.rules
            )
            series = list(pasts(results, end - 1, options.days))
            tail = (
                time_series({**each.labels, "__name__": each.name}, each.samples(end - TAIL, end)) for each in series
            )
            # Not more than that at once.
            while some := list(islice(tail, 5000)):
                prometheus.write(some)
                victoria.write(some)
            resident = resident_mib(prometheus.process.pid)
            first = end - options.days * DAY
            edges = [first, *range(first - first % BLOCK + BLOCK, end - TAIL, BLOCK), end - TAIL]
            progress(f"recorded series: {len(series)}")
            count = sum(pool.map(partial(import_block, directory, series), pairwise(edges)))
            progress(f"{count} recorded samples are imported")
        # A restart would do the same, but version 2.42 can hang when it reads its log of late samples.
        eventually(partial(_has_blocks, prometheus, edges[:-1]), within=LONGEST_ANSWER)
        blocks = directory / "prometheus" / "data"
        # It needs a terminal.
        vmctl = f"vmctl prometheus -s --prom-snapshot={blocks} --vm-addr=http://{victoria.address}"
        subprocess.run(
            ["script", "-qec", vmctl, "/dev/null"], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        victoria.settle()
        progress("VictoriaMetrics has them too")
        figures = [
            Figure(name="raw series of rules and boards", value=raw),
            Figure(name="recorded series", value=len(series)),
            Figure(name="recorded samples", value=count),
            Figure(name="resident memory of Prometheus", value=resident, unit="MiB"),
            Figure(name="blocks of recorded series", value=disk_mib(blocks), unit="MiB"),
            Figure(name="all recording rules, once", value=sum(rules.values()), unit="s"),
            Figure(name="all recording rules, once, VictoriaMetrics", value=sum(rules_victoria.values()), unit="s"),
            Figure(name="all alerts, once", value=sum(alerts.values()), unit="s"),
            Figure(name="all rules and alerts, in each 30 s", value=of_30_seconds, unit="s", most=5),
        ]
        for store in (prometheus, victoria):
            took = {
                each.name: store.seconds(each.expression, at - each.period, at, each.step, times=options.times)
                for each in asked
            }
            for period, most in MOST_SECONDS.items():
                of_period = {each.name: took[each.name] for each in asked if each.period == period}
                slowest(f"{store.name}, {period // DAY} d", of_period, 15)
                name = f"slowest query over {period // DAY} d, {store.name}"
                figures.append(Figure(name=name, value=max(of_period.values()), unit="s", most=most))
            progress("asked")
        for each in asked:
            if not each.step:
                found = differences(prometheus.query(each.expression, at), victoria.query(each.expression, at))
                if found:
                    print(f"  {len(found)} differ: {each.name} {found[0]}")
    return figures


def _has_blocks(store: Store, begins: Iterable[float]) -> None:
    """Raise AssertionError as long as an imported block is not visible: the store looks for new ones each minute."""
    for begin in begins:
        if not store.query("instance:cuda_mps_clients:sum", begin + 600):
            raise AssertionError(f"no block from {begin}")


class Progress:
    """Prints the seconds since it was made with what was done."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def __call__(self, done: str) -> None:
        """Print it."""
        print(f"[{time.perf_counter() - self._began:6.0f} s] {done}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
