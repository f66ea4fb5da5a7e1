"""The example sends one notification for each failure to the right receiver."""

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.alerts.files import ALERTMANAGER, RULES, SCENARIOS, SLO, read, rules
from tests.eventually import eventually
from tests.prometheus import Alertmanager
from tests.tools import needed, promtool

EXPECTED = {
    "1": ["CudaMpsDaemonDown"],
    "2": ["CudaMpsDaemonDied"],
    "3": ["CudaMpsDaemonDied", "CudaMpsProcessBypassing"],
    "4": ["CudaMpsDaemonUnresponsive"],
    "5": ["CudaMpsDaemonDied", "CudaMpsCircuitOpen"],
    "6": ["CudaMpsDaemonDown"],
    "7": ["CudaMpsQuarantined"],
    "8": ["CudaMpsFault"],
    "9": ["CudaMpsServerFault"],
    "10": ["CudaMpsServerCrashLoop"],
    "11": ["CudaMpsClientSlotsNearlyFull", "CudaMpsClientsRefused"],
    "12": ["CudaMpsClientsWaiting"],
    "13": ["CudaMpsWorkloadFillsMemory"],
    "14": ["CudaMpsDaemonDown", "CudaMpsExporterDown"],
    "15": ["CudaMpsExporterStalled"],
    "16": ["CudaMpsExporterCannotCollect"],
    "17": ["CudaMpsQuarantined"],
}
"""The alerts that notify in each simulated failure, in the order of escalation."""

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Moment:
    """The alerts at one time of a simulated failure, on one node."""

    failure: str
    firing: Sequence[Labels]


def moments() -> Iterator[Moment]:
    for group in read(SCENARIOS)["tests"]:
        number, _, _ = group["name"].partition(". ")
        for each in group["promql_expr_test"] if number in EXPECTED else ():
            samples = [dict(re.findall(r'(\w+)="(.*?)"', one["labels"])) for one in each["exp_samples"]]
            if samples:
                node = f"{number}-{each['eval_time']}:10677"
                yield Moment(number, [labels | {"instance": node} for labels in samples])


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alertmanager]:
    """Run the example with other receivers, and send it the alerts of all simulated failures."""
    configuration = yaml.safe_load(ALERTMANAGER.read_text())
    configuration["receivers"] = [{"name": receiver["name"]} for receiver in configuration["receivers"]]
    with Alertmanager(tmp_path_factory.mktemp("alertmanager"), configuration) as working:
        for labels in [labels for moment in moments() for labels in moment.firing]:
            eventually(lambda labels=labels: working.send(labels))  # type: ignore[misc]
        yield working


def test_configuration_is_valid() -> None:
    amtool("check-config", str(ALERTMANAGER))


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ({"severity": "critical", "alertname": "CudaMpsDaemonDown"}, "pager"),
        ({"severity": "critical", "alertname": "CudaMpsExporterDown"}, "pager"),
        ({"severity": "warning", "alertname": "CudaMpsFault"}, "tickets"),
        ({"severity": "critical", "alertname": "CudaMpsErrorBudgetBurn"}, "pager"),
    ],
)
def test_routes_critical_alerts_to_the_pager_and_warnings_to_tickets(labels: Labels, receiver: str) -> None:
    texts = [f"{name}={value}" for name, value in {**labels, "job": "cuda-mps-exporter"}.items()]
    amtool("config", "routes", "test", f"--config.file={ALERTMANAGER}", f"--verify.receivers={receiver}", *texts)


def test_groups_many_exporters_into_one_page() -> None:
    """A failed network or a wrong clock of Prometheus affects many nodes; other failures affect one node."""
    route = read(ALERTMANAGER)["route"]
    for rule in rules():
        matched = next(
            (each for each in route["routes"] if all(_matches(text, rule.alert) for text in each["matchers"][:1])),
            route,
        )
        of_many = rule.alert in ("CudaMpsExporterDown", "CudaMpsExporterStalled")
        assert ("instance" in matched.get("group_by", route["group_by"])) is not of_many


def _matches(matcher: str, alert: str) -> bool:
    """Return whether the first matcher of a route may match this alert."""
    name, operator, pattern = re.fullmatch(r'(\w+)(=~|=)"(.*)"', matcher).groups()  # type: ignore[union-attr]
    return name != "alertname" or bool(re.fullmatch(pattern if operator == "=~" else re.escape(pattern), alert))


def test_covers_each_simulated_failure() -> None:
    assert {moment.failure for moment in moments()} == set(EXPECTED)


@pytest.mark.systems
@pytest.mark.parametrize("failure", EXPECTED)
def test_sends_one_message_for_a_failure(alertmanager: Alertmanager, failure: str) -> None:
    texts: dict[str, None] = {}
    for moment in moments():
        if moment.failure == failure:
            alone = eventually(lambda moment=moment: only_notification(alertmanager, moment.firing))  # type: ignore[misc]
            assert alone["severity"] == min(each["severity"] for each in moment.firing), "the gravest"
            texts[alone["alertname"]] = None
    assert list(texts) == EXPECTED[failure]


PAIRS = tuple(combinations_with_replacement([each for each in EXPECTED if each not in ("14", "15", "16")], 2))
"""Pairs of failures of two daemons: all but those of the exporter."""


@pytest.mark.systems
def test_two_failures_of_two_daemons_are_two_messages(alertmanager: Alertmanager) -> None:
    """No failure of a daemon or its GPU hides one of another daemon and GPU, at any time of both."""
    sides: list[Sequence[Labels]] = []
    for first, second in PAIRS:
        of_first, of_second = ([each.firing for each in moments() if each.failure == name] for name in (first, second))
        for one, other in product(of_first, of_second):
            node = {"instance": f"pair-{len(sides)}:10677"}
            sides += [[labels | node for labels in one], [of_another_daemon(labels) | node for labels in other]]
    assert len(sides) > 2 * len(PAIRS)
    for labels in (labels for side in sides for labels in side):
        alertmanager.send(labels)

    def each_has_one_message() -> None:
        sent = [labels for labels, inhibited in alertmanager.alerts('instance=~"pair-.+"') if not inhibited]
        assert [side for side in sides if sum(labels in sent for labels in side) != 1] == []

    eventually(each_has_one_message)


def of_another_daemon(labels: Labels) -> Labels:
    """Return an alert's labels with another daemon, server, GPU and workload."""
    return {
        name: f"{value}-other" if name in ("daemon", "server", "gpu", "workload") else value
        for name, value in labels.items()
    }


@pytest.mark.systems
def test_the_rules_report_two_failures_of_two_daemons(tmp_path: Path) -> None:
    """The alerts of each are those that it has alone."""
    groups = {group["name"].partition(". ")[0]: group for group in read(SCENARIOS)["tests"]}
    series: list[Labels] = []
    checks: list[Mapping[str, Any]] = []
    for pair in PAIRS:
        node = f'instance="{"-".join(pair)}"'
        one, other = (groups[each] for each in pair)
        series += of_both(one["input_series"], other["input_series"], node)
        checks += checks_alone(one, f'{node}, daemon!~".+-other", gpu!~".+-other"', node)
        checks += checks_alone(other, f'{node}, daemon!="/tmp/nvidia-mps", gpu!="GPU-1efa3f60"', node, renamed)
    test = {"interval": "30s", "input_series": series, "promql_expr_test": checks}
    file = tmp_path / "pairs.test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    promtool("test", "rules", file)


INSTANCE = re.compile(r'instance="[^"]+"')


def renamed(text: str) -> str:
    """Name another daemon, server, GPU and workload in a series."""
    return re.sub(r'((?:daemon|server|gpu|workload)="[^"]+)', r"\1-other", text)


def of_both(one: Sequence[Labels], other: Sequence[Labels], node: str) -> list[Labels]:
    """Return the series of two daemons of a node. One of the node is that of the failure that changes it."""
    series = {each["series"]: each["values"] for each in one}
    for each in other:
        name = renamed(each["series"])
        if name != each["series"] or re.fullmatch(r"\S+", series.get(name, "")):
            series[name] = each["values"]
    return [{"series": INSTANCE.sub(node, name), "values": values} for name, values in series.items()]


def checks_alone(
    group: Mapping[str, Any], matchers: str, node: str, named: Callable[[str], str] = str
) -> Iterator[Mapping[str, Any]]:
    """Expect of one of two failures the alerts that it has alone."""
    for check in group["promql_expr_test"]:
        labels = (INSTANCE.sub(node, named(each["labels"])) for each in check["exp_samples"])
        expression = f'ALERTS{{alertstate="firing", {matchers}}}'
        samples = [{"labels": each, "value": 1} for each in labels]
        yield {"expr": expression, "eval_time": check["eval_time"], "exp_samples": samples}


def only_notification(alertmanager: Alertmanager, firing: Sequence[Labels]) -> Labels:
    texts = [each for each in firing if not alertmanager.inhibited(each)]
    assert len(texts) == 1, texts
    return texts[0]


@pytest.mark.systems
def test_notifies_separately_for_other_nodes_and_clusters(alertmanager: Alertmanager) -> None:
    (dead,) = next(moment.firing for moment in moments() if moment.failure == "6")
    died = {**dead, "alertname": "CudaMpsDaemonDied"}
    elsewhere = [died | {"instance": "elsewhere:10677"}, died | {"cluster": "us"}]
    for labels in (died | {"cluster": ""}, *elsewhere):
        alertmanager.send(labels)
    eventually(lambda: is_inhibited(alertmanager, died | {"cluster": ""}))
    assert [alertmanager.inhibited(each) for each in elsewhere] == [False, False]


@pytest.mark.systems
def test_a_broken_gpu_hides_no_fault_and_no_other_gpu(alertmanager: Alertmanager) -> None:
    labels = {"job": "cuda-mps-exporter", "instance": "xids:10677", "severity": "warning"}
    xid = {**labels, "alertname": "CudaMpsHardwareXid", "gpu": "GPU-0"}
    sent = [xid | {"gpu": "GPU-1"}, {**labels, "alertname": "CudaMpsFault", "daemon": "/run/other"}]
    reset = xid | {"alertname": "CudaMpsGpuResetNeeded", "severity": "critical"}
    of_lost = reset | {"gpu": "GPU-2"}
    lost = of_lost | {"alertname": "CudaMpsGpuLost"}
    quarantined = lost | {"alertname": "CudaMpsQuarantined", "daemon": "/run/one"}
    for each in (reset, xid, of_lost, lost, quarantined, *sent):
        alertmanager.send(each)
    eventually(lambda: is_inhibited(alertmanager, xid))
    eventually(lambda: is_inhibited(alertmanager, of_lost))
    eventually(lambda: is_inhibited(alertmanager, lost))
    assert [alertmanager.inhibited(each) for each in sent] == [False, False]


@pytest.mark.systems
def test_a_fast_burn_of_an_error_budget_hides_the_slow_burn_of_the_same_cluster(alertmanager: Alertmanager) -> None:
    slow = {"alertname": "CudaMpsErrorBudgetBurn", "job": "cuda-mps-exporter", "severity": "warning", "cluster": "eu"}
    for labels in (slow, slow | {"cluster": "us"}, slow | {"severity": "critical"}):
        alertmanager.send(labels)
    eventually(lambda: is_inhibited(alertmanager, slow))
    assert not alertmanager.inhibited(slow | {"cluster": "us"})


def is_inhibited(alertmanager: Alertmanager, labels: Labels) -> None:
    assert alertmanager.inhibited(labels)


def test_mentioned_alerts_exist() -> None:
    spoken = re.findall(r"alertname[=!]~?\"([^\"]+)\"", ALERTMANAGER.read_text())
    assert spoken
    names = {rule.alert for rule in (*rules(), *rules(SLO))}
    for pattern in spoken:
        assert any(re.fullmatch(pattern, name) for name in names), pattern


def amtool(*arguments: str | Path) -> None:
    done = subprocess.run([needed("amtool"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
