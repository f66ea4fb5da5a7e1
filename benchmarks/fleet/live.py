"""Simulated nodes that a real Prometheus scrapes, with all rules, and that it writes on to VictoriaMetrics."""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from benchmarks.fleet.backfill import ROOT, Progress, differences, slowest
from benchmarks.fleet.model import HOUR, simulated
from benchmarks.fleet.samples import Exposed, Sample, demo
from benchmarks.fleet.stores import JOB, Prometheus, Store, VictoriaMetrics
from benchmarks.measure import Cpu, cpu, resident_mib
from benchmarks.report import Figure, report
from dashboards.parameters import Parameters
from dashboards.recording import groups
from exporter.metrics.catalogue import CATALOGUE
from tests.ports import LOCALHOST

HEADERS = {
    name: f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind(family.name, family.help).type}\n"
    for family in CATALOGUE
    for name in (family.name, f"{family.name}_bucket")
}


def text(samples: Iterable[Sample]) -> str:
    """Return the exposition of samples, with the help and type of each family."""
    families: dict[str, list[str]] = {}
    for series, value in samples:
        families.setdefault(series.name, []).append(f"{series.name}{{{series.text}}} {value}\n")
    return "".join(HEADERS.get(name, "") + "".join(lines) for name, lines in families.items())


@dataclass(frozen=True)
class Nodes:
    """A server of the metrics of all nodes, at /nodes/NUMBER/metrics."""

    exposed: Sequence[Exposed]

    def start(self) -> str:
        """Serve in a thread; return the address."""
        exposed = self.exposed

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                found = list(exposed[int(self.path.split("/")[2])].samples(time.time()))
                body = text(found).encode()
                self.send_response(200 if found else 503)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer((LOCALHOST, 0), Handler)
        Thread(target=server.serve_forever, daemon=True).start()
        return f"{LOCALHOST}:{server.server_address[1]}"


def configuration(address: str, exposed: Sequence[Exposed], interval: int, store: Store) -> Mapping[str, Any]:
    """Return the configuration of Prometheus."""
    return {
        "global": {"scrape_interval": f"{interval}s", "evaluation_interval": f"{interval}s"},
        "rule_files": [str(each) for each in sorted((ROOT / "alerts").glob("cuda-mps.*.yml"))],
        "scrape_configs": [
            {
                "job_name": JOB,
                "static_configs": [
                    {
                        "targets": [address],
                        "labels": {"__metrics_path__": f"/nodes/{number}/metrics", "instance": each.node.instance},
                    }
                    for number, each in enumerate(exposed)
                ],
            }
        ],
        "remote_write": [{"url": f"http://{store.address}/api/v1/write"}],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.live", description=__doc__)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=25, help="the rules of usage need 21 (default: %(default)s)")
    parser.add_argument("--interval", type=int, default=15, help="seconds between scrapes (default: %(default)s)")
    parser.add_argument("--directory", type=Path, help="where the data are; a new one by default, which is removed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        figures = measured(Path(directory), options)
    return report(f"{options.nodes} live nodes, a scrape every {options.interval} s", figures, options.json)


def measured(directory: Path, options: argparse.Namespace) -> list[Figure]:
    """Scrape for some minutes; return the figures."""
    demo()
    now = time.time()
    fleet = simulated(options.nodes, now - 2 * HOUR, now + 60 * options.minutes + HOUR, fault_hours=4, churn=False)
    exposed = [Exposed(node, number) for number, node in enumerate(fleet.nodes)]
    progress = Progress()
    victoria = VictoriaMetrics(directory / "victoria")
    prometheus = Prometheus(
        directory / "prometheus", configuration(Nodes(exposed).start(), exposed, options.interval, victoria)
    )
    with victoria, prometheus:
        progress("started")
        before = [cpu(store.process.pid) for store in (prometheus, victoria)]
        began = time.monotonic()
        while time.monotonic() < began + 60 * options.minutes:
            time.sleep(options.interval)
        seconds = time.monotonic() - began
        used = [_part(store, each, seconds) for store, each in zip((prometheus, victoria), before, strict=True)]
        progress("scraped")
        at = time.time() - 30
        victoria.settle()
        compare(prometheus, victoria, at)
        scrapes = f'{{job="{JOB}"}}'
        figures = [
            Figure(name="CPU of Prometheus", value=100 * used[0], unit="% of a core"),
            Figure(name="CPU of VictoriaMetrics", value=100 * used[1], unit="% of a core"),
            Figure(name="resident memory of Prometheus", value=resident_mib(prometheus.process.pid), unit="MiB"),
            Figure(name="resident memory of VictoriaMetrics", value=resident_mib(victoria.process.pid), unit="MiB"),
            Figure(name="nodes that answer", value=_one(prometheus, f"sum(up{scrapes})", at)),
            Figure(name="series of a node, mean", value=_one(prometheus, f"avg(scrape_samples_scraped{scrapes})", at)),
            Figure(name="series of a node, most", value=_one(prometheus, f"max(scrape_samples_scraped{scrapes})", at)),
            Figure(name="scrape, mean", value=_one(prometheus, f"avg(scrape_duration_seconds{scrapes})", at), unit="s"),
            Figure(
                name="scrape, longest", value=_one(prometheus, f"max(scrape_duration_seconds{scrapes})", at), unit="s"
            ),
        ]
        rules = prometheus.get("rules")["groups"]
        took = {f"{each['name']}: {rule['name']}": rule["evaluationTime"] for each in rules for rule in each["rules"]}
        slowest("last evaluation of each rule", took)
        figures += [
            Figure(name=f"evaluation of group {each['name']}", value=each["evaluationTime"], unit="s", most=5)
            for each in rules
        ]
    return figures


def compare(prometheus: Store, victoria: Store, at: float) -> None:
    """Print which rules have other results in VictoriaMetrics, computed there or written by Prometheus."""
    for group in groups(Parameters()):
        for rule in group.rules:
            for expression in (rule.expression, rule.record):
                one, other = prometheus.query(expression, at), victoria.query(expression, at)
                found = differences(one, other)
                if found:
                    print(f"  {len(found)} of {len(one)} differ: {rule.record} {found[0]}")


def _part(store: Store, before: Cpu, seconds: float) -> float:
    return cpu(store.process.pid).since(before).own / seconds


def _one(store: Store, expression: str, at: float) -> float:
    return next(iter(store.query(expression, at).values()), 0.0)


if __name__ == "__main__":
    sys.exit(main())
