"""Each failure of `demo --at` lasts until its alert fires, by the rules with their own durations."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from exporter.cli import main
from exporter.demo.failures import FAILURES, PlannedFailure
from exporter.demo.scenario import initial_node
from exporter.demo.simulation import CALM_SECONDS, Simulation, advance
from exporter.metrics.catalogue import NodeCollector
from exporter.view import View
from tests.clocks import HandClock
from tests.simulated import POLICY
from tests.tools import needed

RULES = Path(__file__).parents[2] / "alerts" / "cuda-mps.rules.yml"
JOB = "cuda-mps-exporter"
FAMILIES = frozenset(re.findall(r"\bcuda_mps_\w+", RULES.read_text()))

STARTS_AT, SCRAPE_SECONDS = 3600.0, 15
"""promtool's time begins at the epoch."""

BEFORE, AFTER = 60, 60
"""Seconds from the start of the demo to the failure, and from the end of the failure to the last scrape."""

WITH_PROBES = {"noisy-neighbour"}
"""Failures whose alert needs `--attribution=bpf`."""

Series = dict[str, list[str]]


def scraped(failure: str) -> Series:
    """Return the samples of a demo with this failure, in promtool's notation, by their series."""
    clock, node = HandClock(STARTS_AT), initial_node()
    simulation = Simulation(1, clock, calm=True, past=CALM_SECONDS, probes=failure in WITH_PROBES)
    for second in advance(node, simulation, POLICY):
        node, _ = second
    lasts = FAILURES[failure].lasts
    simulation.plan([PlannedFailure(after=BEFORE, failure=failure, seconds=lasts)])
    series: Series = {}
    for scrape in range(int(BEFORE + lasts + AFTER) // SCRAPE_SECONDS):
        found = {f'up{{instance="node1",job="{JOB}"}}': 1.0}
        for metric in NodeCollector(View(node, client_min_age=15.0, policy=POLICY)).collect():
            for sample in metric.samples if metric.name in FAMILIES or f"{metric.name}_total" in FAMILIES else ():
                labels = {**sample.labels, "job": JOB, "instance": "node1"}
                text = ",".join(f"{name}={json.dumps(value)}" for name, value in sorted(labels.items()))
                found[f"{sample.name}{{{text}}}"] = float(sample.value)
        for name in found.keys() | series.keys():
            values = series.setdefault(name, ["_"] * scrape)
            gone = "stale" if values and values[-1] not in ("_", "stale") else "_"
            values.append(repr(found[name]) if name in found else gone)
        clock.time += SCRAPE_SECONDS
        for second in advance(node, simulation, POLICY):
            node, _ = second
    return series


def unit_test(series: Series, alert: str | None) -> dict[str, Any]:
    """Return a test for promtool: this alert fires at some time, or none does."""
    skipped = int(STARTS_AT) // SCRAPE_SECONDS
    last = int(STARTS_AT) + max(map(len, series.values())) * SCRAPE_SECONDS
    selected = 'alertstate="firing"' + ("" if alert is None else f',alertname="{alert}"')
    expected = [] if alert is None else [{"labels": f'{{alertname="{alert}"}}', "value": 1}]
    return {
        "rule_files": [str(RULES)],
        "evaluation_interval": f"{SCRAPE_SECONDS}s",
        "tests": [
            {
                "interval": f"{SCRAPE_SECONDS}s",
                "input_series": [
                    {
                        "series": name,
                        "values": " ".join([f"{1 if name.startswith('up{') else '_'}x{skipped - 1}", *values]),
                    }
                    for name, values in series.items()
                ],
                "promql_expr_test": [
                    {
                        "expr": f"group by (alertname) (max_over_time(ALERTS{{{selected}}}[1h]))",
                        "eval_time": f"{last}s",
                        "exp_samples": expected,
                    }
                ],
            }
        ],
    }


def test_help_lists_the_alert_of_each_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--help"])

    listed = " ".join(capsys.readouterr().out.split()).replace("- ", "-")
    for name, failure in FAILURES.items():
        assert f"{name} ({failure.alert or 'no alert'})" in listed
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text()))
    assert {each.alert for each in FAILURES.values() if each.alert} <= alerts


@pytest.mark.systems
@pytest.mark.parametrize("failure", FAILURES)
def test_a_rehearsal_lasts_until_its_alert_fires(failure: str, tmp_path: Path) -> None:
    file = tmp_path / "rehearsal.yml"
    file.write_text(json.dumps(unit_test(scraped(failure), FAILURES[failure].alert)))

    done = subprocess.run([needed("promtool"), "test", "rules", file], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
