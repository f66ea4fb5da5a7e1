"""Each failure of `demo --at` lasts until its alert fires, and `status` has the problems that alert, at each moment."""

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter.cli import main
from exporter.demo.scenario import initial_node
from exporter.demo.simulation import CALM_SECONDS, FAILURES, PlannedFailure, Simulation, advance
from exporter.metrics.catalogue import NodeCollector
from exporter.model.settings import Mode
from exporter.report.finding import Finding
from exporter.report.node_findings import findings
from exporter.view import View
from tests.alerts.files import Rule, rules, seconds
from tests.clocks import HandClock
from tests.simulated import ACTING, POLICY
from tests.tools import needed, promtool

RULES = Path(__file__).parents[2] / "alerts" / "cuda-mps.rules.yml"
JOB = "cuda-mps-exporter"
FAMILIES = frozenset(re.findall(r"\bcuda_mps_\w+", RULES.read_text()))

STARTS_AT, SCRAPE_SECONDS = 3600.0, 15
"""promtool's time begins at the epoch."""

BEFORE, AFTER = 60, 180
"""Seconds from the start of the demo to the failure, and from the end of the failure to the last scrape."""

WITH_PROBES = {"noisy-neighbour"}
"""Failures whose alert needs `--attribution=bpf`."""

Series = dict[str, list[str]]

AS_LONG = {"CudaMpsClientStarved"}
"""Alerts whose `for` is a part of the problem itself."""

ALSO_RAISED = {"CudaMpsExporterCannotCollect"}
"""Alerts that a scene raises, in addition to its own."""

NOT_RAISED = {
    "CudaMpsCircuitOpen": "the demo's watchdog only observes",
    "CudaMpsDaemonRestarted": "the demo's watchdog only observes",
    "CudaMpsWatchdogBlocked": "the demo's watchdog only observes",
    "CudaMpsGpuResetNeeded": "the Xid of the demo leads to a quarantine",
    "CudaMpsHardwareXid": "the Xid of the demo leads to a quarantine",
    "CudaMpsGpuLost": "no GPU of the demo is lost",
    "CudaMpsWorkloadOftenSuspected": "no scene has three faults",
    "CudaMpsClientSlotsNearlyFull": "the server of the demo is full at once",
    "CudaMpsLogGrowing": "the demo has no log files",
    "CudaMpsLogBlocked": "the demo has no log files",
    "CudaMpsLogContradicted": "no user of the demo forges log lines",
    "CudaMpsExporterDown": "the exporter has no status then",
    "CudaMpsExporterStalled": "the page itself finds it, not the exporter",
    "CudaMpsExporterPaused": "the demo cannot be paused",
    "CudaMpsNvmlUnusable": "servers run in the demo, so it has a driver",
    "CudaMpsConfigReloadFailed": "the demo reads no configuration",
}
"""Alerts that no scene raises, and why."""


@cache
def scraped(failure: str, mode: Mode) -> tuple[Series, list[tuple[Finding, ...]]]:
    """Return the samples of a demo with this failure, in promtool's notation, by their series; and its problems.

    The node is named by both. It takes seconds, so all tests that call it run in one process (tests/conftest.py).
    """
    instance = f"{failure}:{mode}"
    policy = POLICY if mode is Mode.OBSERVE else ACTING
    clock, node = HandClock(STARTS_AT), initial_node()
    simulation = Simulation(1, clock, calm=True, past=CALM_SECONDS, probes=failure in WITH_PROBES)
    for second in advance(node, simulation, policy):
        node, _ = second
    lasts = FAILURES[failure].lasts
    simulation.plan([PlannedFailure(after=BEFORE, failure=failure, seconds=lasts)])
    series: Series = {}
    problems = []
    for scrape in range(int(BEFORE + lasts + AFTER) // SCRAPE_SECONDS):
        found = {f'up{{instance="{instance}",job="{JOB}"}}': 1.0}
        for metric in NodeCollector(View(node, client_min_age=15.0, policy=policy)).collect():
            for sample in metric.samples if metric.name in FAMILIES or f"{metric.name}_total" in FAMILIES else ():
                labels = {**sample.labels, "job": JOB, "instance": instance}
                text = ",".join(f"{name}={json.dumps(value)}" for name, value in sorted(labels.items()))
                found[f"{sample.name}{{{text}}}"] = float(sample.value)
        for name in found.keys() | series.keys():
            values = series.setdefault(name, ["_"] * scrape)
            gone = "stale" if values and values[-1] not in ("_", "stale") else "_"
            values.append(repr(found[name]) if name in found else gone)
        problems.append(findings(node, clock.time, policy))
        clock.time += SCRAPE_SECONDS
        for second in advance(node, simulation, policy):
            node, _ = second
    return series, problems


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
                        "values": " ".join([f"1x{skipped - 1}" if name.startswith("up{") else f"_x{skipped}", *values]),
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
        assert f"{name} ({failure.alert or 'no alert'}" in listed
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text()))
    assert {each.alert for each in FAILURES.values() if each.alert} <= alerts


@pytest.mark.systems
@pytest.mark.parametrize("failure", FAILURES)
def test_a_rehearsal_lasts_until_its_alert_fires(failure: str, tmp_path: Path) -> None:
    file = tmp_path / "rehearsal.yml"
    file.write_text(json.dumps(unit_test(scraped(failure, Mode.OBSERVE)[0], FAILURES[failure].alert)))
    promtool("test", "rules", file)


def without_wait(rule: Rule) -> str:
    """Return the expression of an alert without the time that it waits for."""
    if rule.alert in AS_LONG:
        return f'ALERTS{{alertname="{rule.alert}", alertstate="firing"}}'
    if rule.alert in ("CudaMpsDaemonDown", "CudaMpsDaemonDied"):
        at_once = rule.expr.replace("> 30 < 105", "< 105").replace("[30s:15s]", "[15s:15s]")
        return re.sub("> 60$", "> 0", at_once, flags=re.MULTILINE)
    return rule.expr


def held(series: Series, steps: int, directory: Path) -> list[set[tuple[str, str, str]]]:
    """Return the alerts whose expressions hold at each scrape, without their `for`: name, severity and daemon."""
    text = RULES.read_text()
    added = [
        {"record": "held", "expr": without_wait(rule), "labels": {"alert": rule.alert, "severity": rule.severity}}
        for rule in rules()
    ]
    (directory / "rules.yml").write_text(text)
    (directory / "held.yml").write_text(yaml.safe_dump({"groups": [{"name": "held", "rules": added}]}))
    test = unit_test(series, None)
    test["rule_files"] = ["rules.yml", "held.yml"]
    test["group_eval_order"] = [group["name"] for group in yaml.load(text, yaml.CSafeLoader)["groups"]] + ["held"]
    times = range(int(STARTS_AT), int(STARTS_AT) + steps * SCRAPE_SECONDS, SCRAPE_SECONDS)
    query = "group by (alert, severity, daemon) (held)"
    test["tests"][0]["promql_expr_test"] = [
        {"expr": query, "eval_time": f"{time}s", "exp_samples": [{"labels": "", "value": -1}]} for time in times
    ]
    file = directory / "held.test.yml"
    file.write_text(json.dumps(test))
    done = subprocess.run([needed("promtool"), "test", "rules", file], capture_output=True, text=True, check=False)
    # Nothing is as expected, so promtool prints what it got each time.
    printed = re.findall(r"time: (\w+),?\s*exp:.*\s*got:\s*(.*)", done.stdout + done.stderr)
    assert [seconds(time) for time, _ in printed] == list(times), done.stdout + done.stderr
    samples = (
        map(dict, (re.findall(r'(\w+)="(.*?)"', each) for each in re.findall(r"{.*?}", got))) for _, got in printed
    )
    return [{(each["alert"], each["severity"], each.get("daemon", "")) for each in present} for present in samples]


def is_same(alert: tuple[str, str, str], finding: Finding) -> bool:
    """Return whether an alert is that of a problem. A problem may concern several daemons."""
    name, severity, daemon = alert
    page = Path(finding.definition.page or "").stem
    return (page, finding.severity) == (name, severity) and (not daemon or finding.daemon in (None, daemon))


@pytest.mark.systems
@pytest.mark.parametrize("failure", FAILURES)
def test_problems_are_those_that_alert(failure: str, tmp_path: Path) -> None:
    """At each scrape, or at the one before or after it."""
    series, problems = scraped(failure, Mode.OBSERVE)
    alerts = held(series, len(problems), tmp_path)
    assert {name for present in alerts for name, *_ in present}.isdisjoint(NOT_RAISED)
    differ = []
    for step, present in enumerate(alerts):
        near = slice(max(0, step - 1), step + 2)
        shown = [finding for each in problems[near] for finding in each]
        alerting = set().union(*alerts[near])
        differ += [(step, alert) for alert in present if not any(is_same(alert, finding) for finding in shown)]
        differ += [
            (step, finding.problem.code)
            for finding in problems[step]
            if finding.definition.alert and not any(is_same(alert, finding) for alert in alerting)
        ]
    assert differ == []


def test_a_reason_is_given_for_each_alert_that_no_scene_raises() -> None:
    raised = {each.alert for each in FAILURES.values() if each.alert} | ALSO_RAISED
    assert raised | NOT_RAISED.keys() == {rule.alert for rule in rules()}
    assert raised & NOT_RAISED.keys() == set()
