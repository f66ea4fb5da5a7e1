"""Objects for the Prometheus operator: scrape targets with their labels, and alerts."""

import re

import yaml

from deploy.prometheus_rule import RULES, prometheus_rule
from tests.deploy.kustomize import Object
from tests.deploy.manifests import KUBERNETES, container, the

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
            value = each.get("separator", ";").join(labels[name] for name in each["sourceLabels"])
            labels[each["targetLabel"]] = value
    return {name: value for name, value in labels.items() if not name.startswith("__")}


def test_selects_the_pods_and_their_port() -> None:
    wanted = the("PodMonitor", "monitoring")["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= the("DaemonSet", "host")["spec"]["template"]["metadata"]["labels"].items()
    assert endpoint()["port"] in [each["name"] for each in container("host")["ports"]]
    assert the("PodMonitor", "monitoring")["metadata"]["namespace"] == the("DaemonSet", "host")["metadata"]["namespace"]


def test_the_job_has_the_name_that_the_alerts_use() -> None:
    label = the("PodMonitor", "monitoring")["spec"]["jobLabel"]
    assert the("DaemonSet", "host")["spec"]["template"]["metadata"]["labels"][label] == JOB
    assert f'job="{JOB}"' in RULES.read_text()


def test_a_target_is_named_by_its_node_and_keeps_its_series_with_another_pod() -> None:
    (port,) = container("host")["ports"]
    labels = relabeled(
        __meta_kubernetes_pod_node_name="gpu-7",
        __meta_kubernetes_pod_container_port_number=str(port["containerPort"]),
        namespace="cuda-mps-exporter",
        pod="cuda-mps-exporter-x2x4z",
        container="exporter",
        endpoint="metrics",
    )
    assert labels == {"node": "gpu-7", "instance": "gpu-7:10677", "namespace": "cuda-mps-exporter"}


def test_the_rule_object_has_the_alerts_of_the_rule_file() -> None:
    """To update it: python -m deploy.prometheus_rule > deploy/kubernetes/monitoring/prometheus-rule.yaml."""
    written = KUBERNETES / "monitoring" / "prometheus-rule.yaml"
    assert written.read_text() == prometheus_rule(RULES.read_text())
    assert the("PrometheusRule", "monitoring")["spec"] == yaml.safe_load(RULES.read_text())
