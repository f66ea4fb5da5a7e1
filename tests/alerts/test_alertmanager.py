"""The example sends one notification for each failure to the right receiver."""

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.alerts.files import ALERTMANAGER, SCENARIOS, read, rules
from tests.eventually import eventually
from tests.prometheus import Alertmanager
from tests.tools import needed

EXPECTED = {
    "1": ["CudaMpsDaemonDead"],
    "2": ["CudaMpsDaemonDied"],
    "3": ["CudaMpsDaemonDied", "CudaMpsClientsBypassing"],
    "4": ["CudaMpsDaemonUnresponsive"],
    "5": ["CudaMpsDaemonDied", "CudaMpsCircuitOpen"],
    "6": ["CudaMpsDaemonDead"],
    "7": ["CudaMpsQuarantined"],
    "8": ["CudaMpsFault"],
    "9": ["CudaMpsServerFault"],
    "10": ["CudaMpsServerCrashLoop"],
    "11": ["CudaMpsClientSlotsNearlyFull", "CudaMpsClientsRefused"],
    "12": ["CudaMpsClientsWaiting"],
    "13": ["CudaMpsTenantFillsMemory"],
    "14": ["CudaMpsDaemonDead", "CudaMpsExporterDown"],
    "15": ["CudaMpsExporterLate"],
    "16": ["CudaMpsExporterBlind"],
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
        ({"severity": "critical", "alertname": "CudaMpsDaemonDead"}, "pager"),
        ({"severity": "critical", "alertname": "CudaMpsExporterDown"}, "pager"),
        ({"severity": "warning", "alertname": "CudaMpsFault"}, "tickets"),
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
        of_many = rule.alert in ("CudaMpsExporterDown", "CudaMpsExporterLate")
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
            alone = eventually(lambda moment=moment: only_notification(alertmanager, moment))  # type: ignore[misc]
            assert alone["severity"] == min(each["severity"] for each in moment.firing), "the gravest"
            texts[alone["alertname"]] = None
    assert list(texts) == EXPECTED[failure]


def only_notification(alertmanager: Alertmanager, moment: Moment) -> Labels:
    texts = [each for each in moment.firing if not alertmanager.inhibited(each)]
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
def test_hardware_xid_hides_no_fault_and_no_other_gpu(alertmanager: Alertmanager) -> None:
    labels = {"job": "cuda-mps-exporter", "instance": "xids:10677", "severity": "warning"}
    xid = {**labels, "alertname": "CudaMpsHardwareXid", "gpu": "GPU-0"}
    sent = [xid | {"gpu": "GPU-1"}, {**labels, "alertname": "CudaMpsFault", "daemon": "/run/other"}]
    of_lost = xid | {"severity": "critical", "gpu": "GPU-2"}
    lost = of_lost | {"alertname": "CudaMpsGpuLost"}
    for each in (xid | {"severity": "critical"}, xid, of_lost, lost, *sent):
        alertmanager.send(each)
    eventually(lambda: is_inhibited(alertmanager, xid))
    eventually(lambda: is_inhibited(alertmanager, of_lost))
    assert [alertmanager.inhibited(each) for each in sent] == [False, False]


def is_inhibited(alertmanager: Alertmanager, labels: Labels) -> None:
    assert alertmanager.inhibited(labels)


def test_mentioned_alerts_exist() -> None:
    spoken = re.findall(r"alertname[=!]~?\"([^\"]+)\"", ALERTMANAGER.read_text())
    assert spoken
    names = {rule.alert for rule in rules()}
    for pattern in spoken:
        assert any(re.fullmatch(pattern, name) for name in names), pattern


def amtool(*arguments: str | Path) -> None:
    done = subprocess.run([needed("amtool"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
