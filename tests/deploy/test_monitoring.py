"""Objects for the Prometheus operator and for Grafana: scrape targets with their labels, alerts and dashboards."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import INSTALLATIONS, NAMESPACE, Object, container, objects, one, rendered, the

RULES = Path(__file__).parents[2] / "alerts" / "cuda-mps.rules.yml"
RULE_FILES = sorted(RULES.parent.glob("cuda-mps.*.yml"))
CONTAINERFILE = Path(__file__).parents[2] / "deploy" / "Containerfile"
JOB = "cuda-mps-exporter"


def endpoint() -> Object:
    (only,) = the("PodMonitor", "monitoring")["spec"]["podMetricsEndpoints"]
    found: Object = only
    return found


def relabeled(**labels: str) -> dict[str, str]:
    """Return the labels of a target after the relabelings (replace and labeldrop)."""
    for each in endpoint()["relabelings"]:
        if each.get("action") == "labeldrop":
            labels = {name: value for name, value in labels.items() if not re.fullmatch(each["regex"], name)}
        else:
            value = each.get("separator", ";").join(labels[name] for name in each.get("sourceLabels", ()))
            labels[each["targetLabel"]] = each.get("replacement", value)
    return {name: value for name, value in labels.items() if not name.startswith("__")}


def test_selects_the_pods_and_their_port() -> None:
    wanted = the("PodMonitor", "monitoring")["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= the("DaemonSet", "monitoring")["spec"]["template"]["metadata"]["labels"].items()
    assert endpoint()["port"] in [each["name"] for each in container("monitoring")["ports"]]
    assert (
        the("PodMonitor", "monitoring")["metadata"]["namespace"]
        == the("DaemonSet", "monitoring")["metadata"]["namespace"]
    )


def test_a_target_is_named_by_its_node_and_keeps_its_series_with_another_pod() -> None:
    (port,) = container("monitoring")["ports"]
    labels = relabeled(
        __meta_kubernetes_pod_node_name="gpu-7",
        __meta_kubernetes_pod_container_port_number=str(port["containerPort"]),
        namespace="cuda-mps-exporter",
        pod="cuda-mps-exporter-x2x4z",
        container="exporter",
        endpoint="metrics",
        job="cuda-mps-exporter/another-name",
    )
    assert labels == {"job": JOB, "node": "gpu-7", "instance": "gpu-7:10677", "namespace": "cuda-mps-exporter"}
    assert f'job="{JOB}"' in RULES.read_text()


def alerts(*arguments: str) -> dict[str, Object]:
    """Return the alerts of the rule object, by name."""
    groups = [group for spec in rule_objects(*arguments).values() for group in spec["groups"]]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def rule_objects(*arguments: str) -> dict[str, Object]:
    """Return the specifications of all rule objects, by the part of their names after that of the release."""
    found = rendered("--set=prometheusRule.enabled=true", *arguments)
    release = the("DaemonSet", "default")["metadata"]["name"]
    rules = [each for each in found if each["kind"] == "PrometheusRule"]
    return {each["metadata"]["name"].removeprefix(f"{release}-"): each["spec"] for each in rules}


def test_each_rule_file_is_an_object() -> None:
    files = {path: path.name.split(".")[1] for path in RULE_FILES}
    found = rule_objects("--set=hostPort=true,grafanaUrl=http://localhost:3000/")
    assert found == {name: yaml.load(path.read_text(), yaml.CSafeLoader) for path, name in files.items()}


def test_dashboard_links_start_with_the_url_of_grafana() -> None:
    for arguments, start in (
        ((), None),
        (("--set=grafanaUrl=https://grafana.example.com/",), "https://grafana.example.com/d/"),
    ):
        for rule in alerts(*arguments).values():
            link = rule["annotations"].get("dashboard_url")
            assert link is None if start is None else link.startswith(start)


def test_runbook_links_can_have_another_start() -> None:
    wiki = "https://wiki.example.com/mps/"
    found = alerts(f"--set=runbookUrl={wiki}")
    links = [rule["annotations"]["runbook_url"] for rule in found.values()]
    assert links
    assert {link.removeprefix(wiki) for link in links} <= {each.name for each in (RULES.parent / "runbooks").iterdir()}


@pytest.mark.parametrize(("tls", "scheme"), [("false", "http"), ("true", "https")])
def test_a_runbook_link_opens_on_the_port_of_the_node(tls: str, scheme: str) -> None:
    """The label instance has the port of the container."""
    arguments = f"--set=hostPort=true,web.tls={tls}"
    (port,) = one("DaemonSet", rendered(arguments))["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert port["hostPort"] == port["containerPort"]
    files = [yaml.load(path.read_text(), yaml.CSafeLoader) for path in RULE_FILES]
    written = [rule for file in files for group in file["groups"] for rule in group["rules"]]
    links = {each["alert"]: each["annotations"]["runbook_url"] for each in written if "alert" in each}
    assert {name: rule["annotations"]["runbook_url"] for name, rule in alerts(arguments).items()} == {
        name: link.replace("http://", f"{scheme}://", 1) for name, link in links.items()
    }


@pytest.mark.parametrize(("tls", "scheme"), [("false", "http"), ("true", "https")])
def test_alerts_link_to_pages_on_the_port_of_the_node(tls: str, scheme: str) -> None:
    for arguments, reachable in ((f"--set=hostPort=true,web.tls={tls}", True), (f"--set=web.tls={tls}", False)):
        annotations = [rule["annotations"] for rule in alerts(arguments).values()]
        links = [each[name] for each in annotations for name in ("page_url", "incident_url") if name in each]
        assert bool(links) is reachable
        assert all(f"{scheme}://{{{{ $labels.instance }}}}/" in link for link in links)


def test_without_a_reachable_page_an_alert_has_a_command_that_prints_its_runbook() -> None:
    """The files of the wheel are below the virtual environment of the image."""
    assert "hostPort" not in container("default")["ports"][0]
    share = "/opt/cuda-mps-exporter/share/cuda-mps-exporter/"
    assert "COPY --from=build /opt/cuda-mps-exporter /opt/cuda-mps-exporter\n" in CONTAINERFILE.read_text()
    for name, rule in alerts().items():
        assert "runbook_url" not in rule["annotations"]
        *command, path = shlex.split(rule["annotations"]["runbook"])
        daemon_set = the("DaemonSet", "default")["metadata"]["name"]
        assert command == ["kubectl", "exec", "-n", NAMESPACE, f"ds/{daemon_set}", "--", "cat"]
        assert path == f"{share}alerts/runbooks/{name}.md"
        assert (RULES.parent / "runbooks" / f"{name}.md").exists()


@pytest.mark.parametrize("kind", ["PodMonitor", "PrometheusRule"])
def test_objects_have_the_label_by_which_prometheus_selects(kind: str) -> None:
    labels = [each["metadata"]["labels"] for each in objects("monitoring") if each["kind"] == kind]
    assert labels
    assert {each["release"] for each in labels} == {"stack"}


def test_the_network_policy_allows_connections_to_the_metrics_only() -> None:
    found = the("NetworkPolicy", "monitoring")["spec"]
    labels = the("DaemonSet", "monitoring")["spec"]["template"]["metadata"]["labels"]
    assert found["podSelector"]["matchLabels"].items() <= labels.items()
    assert found["ingress"]
    assert all(each["ports"] == [{"port": "metrics"}] for each in found["ingress"])
    assert "egress" not in found
    assert found["policyTypes"] == ["Ingress", "Egress"]


@pytest.mark.parametrize("installation", ["restart-pods", "pod-labels"])
def test_the_network_policy_allows_connections_to_the_api_server_if_the_exporter_uses_it(installation: str) -> None:
    found = rendered(*INSTALLATIONS[installation], "--set=networkPolicy.enabled=true")
    assert [each["spec"]["policyTypes"] for each in found if each["kind"] == "NetworkPolicy"] == [["Ingress"]]


DASHBOARDS = Path(__file__).parents[2] / "dashboards"

MOST_BYTES = 1 << 20
"""The size limit of a ConfigMap in Kubernetes."""


@pytest.fixture(scope="module")
def config_maps() -> list[dict[str, Any]]:
    label = "grafana_dashboard"
    return [each for each in objects("monitoring") if each["metadata"]["labels"].get(label) == "1"]


def test_each_config_map_has_one_unchanged_dashboard(config_maps: list[dict[str, Any]]) -> None:
    found = {name: text for each in config_maps for name, text in each["data"].items()}
    assert found
    assert found == {file.name: file.read_text() for file in DASHBOARDS.glob("*.json")}
    assert all(len(each["data"]) == 1 for each in config_maps)


def test_config_maps_fit_the_cluster(config_maps: list[dict[str, Any]]) -> None:
    for each in config_maps:
        assert sum(len(text.encode()) for text in each["data"].values()) < MOST_BYTES
