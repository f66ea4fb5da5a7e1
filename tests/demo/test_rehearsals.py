"""Each failure of `demo --at` lasts until its alert fires, and `status` has the problems that alert, at each moment."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

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
from tests.tools import needed

RULES = Path(__file__).parents[2] / "alerts" / "cuda-mps.rules.yml"
JOB = "cuda-mps-exporter"
FAMILIES = frozenset(re.findall(r"\bcuda_mps_\w+", RULES.read_text()))

STARTS_AT, SCRAPE_SECONDS = 3600.0, 15
"""promtool's time begins at the epoch."""

BEFORE, AFTER = 60, 180
"""Seconds from the start of the demo to the failure, and from the end of the failure to the last scrape."""

WITH_PROBES = {"noisy-neighbour"}
"""Failures whose alert needs `--attribution=bpf`."""

MODES = (Mode.OBSERVE, Mode.ACT)

Series = dict[str, list[str]]
Labels = Mapping[str, str]

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


def test_help_lists_the_alert_of_each_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--help"])

    listed = " ".join(capsys.readouterr().out.split()).replace("- ", "-")
    for name, failure in FAILURES.items():
        assert f"{name} ({failure.alert or 'no alert'}" in listed
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text()))
    assert {each.alert for each in FAILURES.values() if each.alert} <= alerts


@pytest.mark.systems
@pytest.mark.timeout(900)
@pytest.mark.parametrize("failure", FAILURES)
def test_a_rehearsal_lasts_until_its_alert_fires(failure: str) -> None:
    fired = {alert["alertname"] for _, alert in firing(failure, Mode.OBSERVE)}
    expected = FAILURES[failure].alert
    assert expected in fired if expected else not fired


def without_wait(rule: Rule) -> str:
    """Return the expression of an alert without the time that it waits for."""
    if rule.alert in AS_LONG:
        return f'ALERTS{{alertname="{rule.alert}", alertstate="firing"}}'
    if rule.alert in ("CudaMpsDaemonDown", "CudaMpsDaemonDied"):
        at_once = rule.expr.replace("> 30 < 105", "< 105").replace("[30s:15s]", "[15s:15s]")
        return re.sub("> 60$", "> 0", at_once, flags=re.MULTILINE)
    return rule.expr


@cache
def all_series() -> Series:
    """Return the series of a node for each scene and mode. Each ends with the last scrape of its node."""
    series: Series = {}
    for failure in FAILURES:
        for mode in MODES:
            series |= {name: [*values, "stale"] for name, values in scraped(failure, mode)[0].items()}
    return series


def times(series: Series) -> range:
    """Return the times of the scrapes."""
    steps = max(map(len, series.values())) - 1
    return range(int(STARTS_AT), int(STARTS_AT) + steps * SCRAPE_SECONDS, SCRAPE_SECONDS)


@cache
def evaluated() -> Mapping[float, Sequence[Labels]]:
    """Return what promtool finds at each time in all scenes together, which is much faster than in each alone.

    These are the alerts that fire, and those whose expressions hold without their `for`: they have `alert` as a label.
    """
    text, series = RULES.read_text(), all_series()
    added = [
        {"record": "held", "expr": without_wait(rule), "labels": {"alert": rule.alert, "severity": rule.severity}}
        for rule in rules()
    ]
    query = 'ALERTS{alertstate="firing"} or group by (instance, alert, severity, daemon) (held)'
    before = int(STARTS_AT) // SCRAPE_SECONDS
    up, absent = f"1x{before - 1}", f"_x{before}"
    test = {
        "interval": f"{SCRAPE_SECONDS}s",
        "input_series": [
            {"series": name, "values": " ".join([up if name.startswith("up{") else absent, *each])}
            for name, each in series.items()
        ],
        "promql_expr_test": [
            {"expr": query, "eval_time": f"{time}s", "exp_samples": [{"labels": "", "value": -1}]}
            for time in times(series)
        ],
    }
    with TemporaryDirectory() as directory:
        held = Path(directory, "held.json")
        held.write_text(json.dumps({"groups": [{"name": "held", "rules": added}]}))
        file = Path(directory, "scenes.test.json")
        tests = {
            "rule_files": [str(RULES), str(held)],
            "evaluation_interval": f"{SCRAPE_SECONDS}s",
            "group_eval_order": [each["name"] for each in yaml.load(text, yaml.CSafeLoader)["groups"]] + ["held"],
            "tests": [test],
        }
        file.write_text(json.dumps(tests))
        done = subprocess.run([needed("promtool"), "test", "rules", file], capture_output=True, text=True, check=False)
    # Nothing is as expected, so promtool prints what it got each time.
    printed = re.findall(r"time: (\w+),?\s*exp:.*\s*got:\s*(.*)", done.stdout + done.stderr)
    assert [seconds(time) for time, _ in printed] == list(times(series)), done.stdout[-3000:] + done.stderr
    return {
        seconds(time): [dict(re.findall(r'(\w+)="(.*?)"', labels)) for labels in re.findall(r"{.*?}", got)]
        for time, got in printed
    }


def found(failure: str, mode: Mode) -> Iterator[tuple[float, Labels]]:
    """Yield what is found on the node of a scene, with its times."""
    for time, present in evaluated().items():
        yield from ((time, each) for each in present if each.get("instance") == f"{failure}:{mode}")


def firing(failure: str, mode: Mode) -> Iterator[tuple[float, Labels]]:
    """Yield the alerts that fire, with their times."""
    return (each for each in found(failure, mode) if "alertname" in each[1])


def is_same(alert: tuple[str, str, str], finding: Finding) -> bool:
    """Return whether an alert is that of a problem. A problem may concern several daemons."""
    name, severity, daemon = alert
    page = Path(finding.definition.page or "").stem
    return (page, finding.severity) == (name, severity) and (not daemon or finding.daemon in (None, daemon))


@pytest.mark.systems
@pytest.mark.timeout(900)
@pytest.mark.parametrize("failure", FAILURES)
def test_problems_are_those_that_alert(failure: str) -> None:
    """At each scrape, or at the one before or after it."""
    _, problems = scraped(failure, Mode.OBSERVE)
    alerts: list[set[tuple[str, str, str]]] = [set() for _ in problems]
    for time, each in found(failure, Mode.OBSERVE):
        if "alert" in each:
            step = int(time - STARTS_AT) // SCRAPE_SECONDS
            alerts[step].add((each["alert"], each["severity"], each.get("daemon", "")))
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
