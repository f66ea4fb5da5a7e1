"""Values of the chart that fit it into a cluster: names, labels, additions to the pod, scrapes, TLS, helm test."""

import base64
import functools
import json
import re
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import yaml

from exporter import __version__
from tests import program
from tests.deploy.manifests import CHART, IMAGE, NAMESPACE, Object, helm, one, rendered
from tests.deploy.schemas import schema_errors
from tests.eventually import eventually, until
from tests.exporter_process import SERVE, Exporter, Serve
from tests.ports import LOCALHOST
from tests.web.certificates import Authority

RECOMMENDED = {
    "app.kubernetes.io/name": "cuda-mps-exporter",
    "app.kubernetes.io/instance": "cuda-mps-exporter",
    "app.kubernetes.io/version": __version__,
    "app.kubernetes.io/managed-by": "Helm",
    "helm.sh/chart": f"cuda-mps-exporter-{__version__}",
}
SELECTOR = {key: RECOMMENDED[key] for key in ("app.kubernetes.io/name", "app.kubernetes.io/instance")}

ALL_KINDS = (
    "--set=podMonitor.enabled=true,serviceMonitor.enabled=true,service.enabled=true,podMonitoring.enabled=true",
    "--set=prometheusRule.enabled=true,dashboards.enabled=true,networkPolicy.enabled=true,openshift.enabled=true",
    "--set=restartPods.namespaces={gpu-operator}",
)
WEB = f"--values={CHART / 'ci' / 'web-config-values.yaml'}"


def pod_of(found: Sequence[Object]) -> Object:
    template: Object = one("DaemonSet", found)["spec"]["template"]
    return template


def container_of(found: Sequence[Object]) -> Object:
    first: Object = pod_of(found)["spec"]["containers"][0]
    assert first["name"] == "exporter", "kubectl exec takes the first container"
    return first


def values_file(directory: Path, **values: Any) -> str:
    (directory / "values.yaml").write_text(yaml.safe_dump(values))
    return f"--values={directory / 'values.yaml'}"


def errors(found: Sequence[Object]) -> list[str]:
    return [error for each in found for error in schema_errors(each)]


def names(found: Sequence[Object]) -> Counter[tuple[str, str | None, str]]:
    return Counter((each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in found)


def test_each_object_and_the_pods_have_the_recommended_labels_and_those_of_the_user() -> None:
    arguments = (
        r"--set=commonLabels.team=gpu,commonLabels.cost=1200,commonLabels.app\.kubernetes\.io/instance=other",
        r"--set=podLabels.app\.kubernetes\.io/name=other",
    )
    found = rendered(*ALL_KINDS, *arguments)

    assert errors(found) == []
    expected = RECOMMENDED | {"team": "gpu", "cost": "1200"}
    for labels in (*(each["metadata"]["labels"] for each in found), pod_of(found)["metadata"]["labels"]):
        assert {key: labels.get(key) for key in expected} == expected


def test_the_selector_has_no_label_that_changes_with_a_version_or_a_value() -> None:
    found = rendered(*ALL_KINDS, "--set=commonLabels.team=gpu,podLabels.team=gpu")

    assert one("DaemonSet", found)["spec"]["selector"]["matchLabels"] == SELECTOR
    assert one("Service", found)["spec"]["selector"] == SELECTOR
    for kind in ("PodMonitor", "ServiceMonitor", "PodMonitoring"):
        assert one(kind, found)["spec"]["selector"]["matchLabels"] == SELECTOR


def test_labels_annotations_and_variables_that_are_numbers_become_strings(tmp_path: Path) -> None:
    numbers = {"port": 10677, "many": 1000000, "share": 0.5, "yes": True, "text": "007"}
    strings = {"port": "10677", "many": "1000000", "share": "0.5", "yes": "true", "text": "007"}
    names = ("podLabels", "podAnnotations", "annotations", "commonLabels")
    variables = [
        {"name": "A", "value": 10677},
        {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    found = rendered(values_file(tmp_path, **dict.fromkeys(names, numbers), extraEnv=variables, nodeSelector=numbers))

    assert errors(found) == []
    assert pod_of(found)["spec"]["nodeSelector"] == strings
    for place in (pod_of(found), one("DaemonSet", found)):
        assert strings.items() <= place["metadata"]["labels"].items()
        assert strings.items() <= place["metadata"]["annotations"].items()
    assert container_of(found)["env"][-2:] == [{"name": "A", "value": "10677"}, variables[1]]


def test_a_key_without_a_value_is_like_its_default(tmp_path: Path) -> None:
    keys = (
        *("podLabels", "podAnnotations", "annotations", "commonLabels", "nodeSelector", "imagePullSecrets", "config"),
        *("extraArgs", "extraEnv", "extraVolumes", "extraVolumeMounts", "extraContainers", "podSpec", "containerSpec"),
    )
    assert rendered(values_file(tmp_path, **dict.fromkeys(keys))) == rendered()


def test_a_claim_needs_no_requests_and_limits() -> None:
    found = rendered("--set=gpuAccess=dra,resources=null")
    assert container_of(found)["resources"] == {"claims": [{"name": "gpus"}]}


def test_a_path_is_one_text(tmp_path: Path) -> None:
    path = "/srv/a: b, c #d"
    found = rendered(values_file(tmp_path, driverDirectory=path, mounts={"tmp": path}))
    volumes = {each["name"]: each for each in pod_of(found)["spec"]["volumes"]}
    assert [volumes[name]["hostPath"]["path"] for name in ("driver", "tmp")] == [path, path]


def test_a_user_cannot_replace_the_annotations_of_the_chart() -> None:
    found = rendered("--set=podAnnotations.checksum/config=x")
    assert re.fullmatch("[0-9a-f]{64}", pod_of(found)["metadata"]["annotations"]["checksum/config"])


@pytest.mark.parametrize(
    ("arguments", "name", "namespace"),
    [
        (("--set=nameOverride=gpu",), "cuda-mps-exporter-gpu", NAMESPACE),
        (("--set=fullnameOverride=mps",), "mps", NAMESPACE),
        (("--set=namespaceOverride=gpu",), "cuda-mps-exporter", "gpu"),
    ],
)
def test_names_can_be_replaced(arguments: Sequence[str], name: str, namespace: str) -> None:
    found = rendered(*ALL_KINDS, *arguments)

    assert errors(found) == []
    daemon_set = one("DaemonSet", found)
    assert (daemon_set["metadata"]["name"], daemon_set["metadata"]["namespace"]) == (name, namespace)
    account = one("ServiceAccount", found)["metadata"]
    pod = daemon_set["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account["name"] == name
    assert one("PodMonitor", found)["spec"]["namespaceSelector"] == {"matchNames": [namespace]}
    for binding in (each for each in found if each["kind"] == "RoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["name"], "namespace": namespace}]
        roles = names([each for each in found if each["kind"] == "Role"])
        assert ("Role", binding["metadata"]["namespace"], binding["roleRef"]["name"]) in roles


def test_a_service_account_of_the_user_gets_the_permissions() -> None:
    arguments = ("--set=serviceAccount.create=false,serviceAccount.name=mine", "--set=restartPods.namespaces={gpu}")
    found = rendered(*arguments)
    assert not [each for each in found if each["kind"] == "ServiceAccount"]
    assert pod_of(found)["spec"]["serviceAccountName"] == "mine"
    assert one("RoleBinding", found)["subjects"][0]["name"] == "mine"

    annotated = rendered("--set=serviceAccount.annotations.eks\\.amazonaws\\.com/role-arn=arn")
    assert one("ServiceAccount", annotated)["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": "arn"}


def test_two_releases_of_one_name_share_no_object_outside_their_namespaces() -> None:
    found = [rendered(*ALL_KINDS, f"--namespace={namespace}") for namespace in ("one", "two")]
    assert not names(found[0]) & names(found[1])


FOREIGN = """{{- define "labels" -}}other: chart{{- end }}
{{- define "name" -}}other{{- end }}
{{- define "fullname" -}}other{{- end }}
{{- define "image" -}}other{{- end }}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}
"""
"""A chart with the names that many charts use. Names of templates are common to all charts of an umbrella chart."""


def test_an_umbrella_chart_can_have_it_twice_beside_other_charts(tmp_path: Path) -> None:
    umbrella, foreign = tmp_path / "umbrella", tmp_path / "zother"
    for directory in (umbrella, foreign):
        (directory / "templates").mkdir(parents=True)
    (foreign / "Chart.yaml").write_text(yaml.safe_dump({"apiVersion": "v2", "name": "zother", "version": "1.0.0"}))
    (foreign / "templates" / "config.yaml").write_text(FOREIGN)
    shutil.copytree(CHART, tmp_path / CHART.name)
    dependency = {"name": CHART.name, "version": __version__, "repository": f"file://../{CHART.name}"}
    dependencies = [
        *({**dependency, "alias": alias} for alias in ("first", "second")),
        dependency,
        {"name": "zother", "version": "1.0.0", "repository": "file://../zother"},
    ]
    (umbrella / "Chart.yaml").write_text(
        yaml.safe_dump({"apiVersion": "v2", "name": "umbrella", "version": "1.0.0", "dependencies": dependencies})
    )
    updated = helm("dependency", "update", umbrella, "--skip-refresh")
    assert updated.returncode == 0, updated.stderr

    kinds = {
        key: {"enabled": True}
        for key in (
            "podMonitor",
            "serviceMonitor",
            "service",
            "prometheusRule",
            "dashboards",
            "openshift",
        )
    }
    own = {
        "image": {"repository": "registry.example.com/cuda-mps-exporter"},
        **kinds,
        "restartPods": {"namespaces": ["gpu-operator"]},
    }
    values = values_file(tmp_path, **dict.fromkeys(("first", "second", CHART.name), own))
    google = "--set=first.podMonitoring.enabled=true"  # Its name is the label job.
    done = helm("template", "gpu", umbrella, f"--namespace={NAMESPACE}", values, google)
    assert done.returncode == 0, done.stderr
    found = [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]

    assert [name for name, count in names(found).items() if count > 1] == []
    assert errors([each for each in found if each["metadata"]["name"] != "gpu"]) == []
    daemon_sets = [each for each in found if each["kind"] == "DaemonSet"]
    assert {each["metadata"]["name"] for each in daemon_sets} == {"gpu-first", "gpu-second", f"gpu-{CHART.name}"}
    assert len({json.dumps(each["spec"]["selector"]) for each in daemon_sets}) == 3
    assert one("PodMonitoring", found)["metadata"]["name"] == CHART.name


def test_a_registry_and_pull_secrets_of_an_umbrella_chart_apply() -> None:
    found = rendered(
        "--set=global.imageRegistry=mirror.example.com,image.repository=cuda-mps-exporter",
        "--set=global.imagePullSecrets={one},imagePullSecrets[0].name=two",
    )
    assert container_of(found)["image"] == f"mirror.example.com/cuda-mps-exporter:{__version__}"
    assert pod_of(found)["spec"]["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]


def test_a_rollout_updates_a_tenth_of_the_nodes_at_once_by_default() -> None:
    strategy = one("DaemonSet", rendered())["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}
    other = one("DaemonSet", rendered("--set=updateStrategy.rollingUpdate.maxUnavailable=1"))["spec"]
    assert other["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1}


def test_a_rollout_with_a_port_of_the_node_never_has_two_pods_on_a_node() -> None:
    """The scheduler would wait for the port of the old pod, which ends only when the new one is ready."""
    surge = "--set=updateStrategy.rollingUpdate.maxSurge=1,updateStrategy.rollingUpdate.maxUnavailable=0"
    assert errors(rendered(surge)) == []
    done = helm("template", CHART, IMAGE, surge, "--set=hostPort=true")
    assert done.returncode != 0
    assert "hostPort allows no updateStrategy.rollingUpdate.maxSurge" in done.stderr


def test_the_pod_can_have_additions(tmp_path: Path) -> None:
    additions = {
        "extraVolumes": [{"name": "secret", "secret": {"secretName": "mine"}}],
        "extraVolumeMounts": [{"name": "secret", "mountPath": "/etc/mine", "readOnly": True}],
        "extraContainers": [{"name": "proxy", "image": "registry.example.com/proxy:1"}],
        "podSpec": {"dnsPolicy": "Default", "terminationGracePeriodSeconds": 20},
        "containerSpec": {"terminationMessagePolicy": "FallbackToLogsOnError"},
        "livenessProbe": {"periodSeconds": 5},
        "openshift": {"enabled": True},
        "extraManifests": [
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: {{ .Release.Name }}}",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}},
        ],
    }
    found = rendered(values_file(tmp_path, **additions))

    assert errors(found) == []
    pod = pod_of(found)["spec"]
    assert pod["volumes"][-1:] == additions["extraVolumes"]
    assert container_of(found)["volumeMounts"][-1:] == additions["extraVolumeMounts"]
    assert pod["containers"][1:] == additions["extraContainers"]
    assert (pod["dnsPolicy"], pod["terminationGracePeriodSeconds"]) == ("Default", 20)
    assert container_of(found)["terminationMessagePolicy"] == "FallbackToLogsOnError"
    probe = container_of(found)["livenessProbe"]
    assert (probe["periodSeconds"], probe["failureThreshold"], probe["httpGet"]["path"]) == (5, 4, "/-/healthy")
    assert "secret" in one("SecurityContextConstraints", found)["volumes"]
    spaces = [each["metadata"]["name"] for each in found if each["kind"] == "Namespace"]
    assert spaces == ["cuda-mps-exporter", "other"]


@pytest.mark.parametrize(
    "value", ["podSpec.hostPID=false", "containerSpec.securityContext=null", "podSpec.volumes=null"]
)
def test_additions_cannot_replace_what_the_chart_sets(value: str) -> None:
    done = helm("template", CHART, IMAGE, f"--set-json={value}")
    assert done.returncode != 0
    assert value.partition("=")[0].partition(".")[2] in done.stderr


@pytest.mark.parametrize(("kind", "key"), [("PodMonitor", "podMonitor"), ("ServiceMonitor", "serviceMonitor")])
def test_a_monitor_has_the_fields_of_the_user(kind: str, key: str, tmp_path: Path) -> None:
    relabeling = {"sourceLabels": ["__meta_kubernetes_namespace"], "targetLabel": "team"}
    own = {
        "enabled": True,
        "namespace": "monitoring",
        "interval": "30s",
        "scrapeTimeout": "20s",
        "relabelings": [relabeling],
        "metricRelabelings": [{"action": "drop", "regex": "x"}],
        "endpoint": {"honorLabels": True, "proxyUrl": "http://proxy.example.com"},
        "spec": {"sampleLimit": 5000, "podTargetLabels": ["team"]},
    }
    found = rendered(values_file(tmp_path, service={"enabled": True}, **{key: own}))

    assert errors(found) == []
    monitor = one(kind, found)
    assert monitor["metadata"]["namespace"] == "monitoring"
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": [NAMESPACE]}
    (endpoint,) = monitor["spec"]["podMetricsEndpoints" if kind == "PodMonitor" else "endpoints"]
    assert [endpoint[name] for name in ("interval", "scrapeTimeout", "honorLabels")] == ["30s", "20s", True]
    assert endpoint["metricRelabelings"] == own["metricRelabelings"]
    assert endpoint["relabelings"][-1] == relabeling
    assert len(endpoint["relabelings"]) == 5
    assert monitor["spec"]["sampleLimit"] == 5000


def test_a_service_monitor_scrapes_as_a_pod_monitor_does() -> None:
    found = rendered(*ALL_KINDS)
    (first,) = one("PodMonitor", found)["spec"]["podMetricsEndpoints"]
    (second,) = one("ServiceMonitor", found)["spec"]["endpoints"]
    assert first == second
    service = one("Service", found)
    assert service["metadata"]["labels"].items() >= SELECTOR.items(), "the ServiceMonitor selects by labels"
    assert service["spec"]["ports"] == [{"name": first["port"], "port": 10677, "targetPort": "metrics"}]

    alone = helm("template", CHART, IMAGE, "--set=serviceMonitor.enabled=true")
    assert alone.returncode != 0
    assert "serviceMonitor.enabled needs service.enabled" in alone.stderr


def test_managed_prometheus_names_job_and_instance_as_the_alerts_expect() -> None:
    """Google's operator makes `job` of the object's name, and `instance` of the node and this port.

    prometheus-engine 2ffde4e, pkg/operator/apis/monitoring/v1/pod_config.go.
    """
    found = rendered("--set=podMonitoring.enabled=true,nameOverride=gpu,fullnameOverride=other", name="another")
    (port,) = container_of(found)["ports"]
    monitoring = one("PodMonitoring", found)
    assert monitoring["metadata"]["name"] == "cuda-mps-exporter"
    assert [each["port"] for each in monitoring["spec"]["endpoints"]] == [port["containerPort"]]
    assert monitoring["spec"]["targetLabels"] == {"metadata": ["node"]}


@functools.cache
def hooks(*arguments: str) -> Sequence[Object]:
    """Return the objects of helm test."""
    done = helm("template", "cuda-mps-exporter", CHART, IMAGE, f"--namespace={NAMESPACE}", *arguments)
    assert done.returncode == 0, done.stderr
    found = [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]
    return [each for each in found if each["metadata"].get("annotations", {}).get("helm.sh/hook") == "test"]


def test_helm_test_has_no_rights_and_is_no_pod_of_the_exporter() -> None:
    found = hooks()
    assert errors(found) == []
    pod = one("Pod", found)
    (only,) = pod["spec"]["containers"]
    assert only["image"] == container_of(rendered())["image"]
    rights = only["securityContext"]
    assert rights["runAsNonRoot"]
    assert rights["readOnlyRootFilesystem"]
    assert not rights["allowPrivilegeEscalation"]
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert not pod["spec"]["automountServiceAccountToken"]
    assert not {"hostPID", "hostNetwork", "volumes"} & pod["spec"].keys()
    assert pod["metadata"]["labels"]["app.kubernetes.io/name"] != SELECTOR["app.kubernetes.io/name"]
    service = one("Service", found)
    assert service["spec"]["selector"] == SELECTOR
    url = only["command"][-2]
    assert url == f"http://{service['metadata']['name']}.{NAMESPACE}.svc:{service['spec']['ports'][0]['port']}/-/ready"


def test_the_network_policy_allows_helm_test() -> None:
    policy = one("NetworkPolicy", rendered("--set=networkPolicy.enabled=true"))
    labels = one("Pod", hooks())["metadata"]["labels"]
    peers = [peer for rule in policy["spec"]["ingress"] for peer in rule["from"] if "podSelector" in peer]
    assert [peer["podSelector"]["matchLabels"].items() <= labels.items() for peer in peers] == [True]


def _helm_test(address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command of helm test with this address in place of the Service's."""
    (only,) = one("Pod", hooks(*arguments))["spec"]["containers"]
    program, *options, url, _ = only["command"]
    assert program == "python"
    url = re.sub(r"//[^/]+", f"//{address}", url)
    return subprocess.run([sys.executable, *options, url, "1"], capture_output=True, text=True, check=False)


Links = Mapping[str, bytes]


def kubelet_secret(directory: Path, files: Links) -> Path:
    """Write files as the kubelet mounts a Secret: links, so that all files change at once."""
    (directory / "..2026_11_28").mkdir(parents=True)
    (directory / "..data").symlink_to("..2026_11_28")
    for name, content in files.items():
        (directory / "..2026_11_28" / name).write_bytes(content)
        (directory / name).symlink_to(f"..data/{name}")
    return directory


def test_the_exporter_accepts_the_web_config_of_the_example(tmp_path: Path, environment: dict[str, str]) -> None:
    found = rendered(WEB, "--set=podMonitor.enabled=true")
    assert errors(found) == []
    text = (CHART / "ci" / "web-config-values.yaml").read_text()
    config = "".join(re.findall(r"^#   ((?:tls_server_config|basic_auth_users).*\n)", text, re.MULTILINE))
    password = bcrypt.hashpw(b"wonderland", bcrypt.gensalt(4)).decode()
    authority = Authority(tmp_path)
    certificate = authority.issue("server", "DNS:cuda-mps-exporter", f"IP:{LOCALHOST}")
    (mount,) = [each for each in container_of(found)["volumeMounts"] if each["name"] == "web"]
    secret = kubelet_secret(
        tmp_path / "mount",
        {
            "web-config.yml": config.replace("$2y$10$...", password).encode(),
            "tls.crt": certificate.cert.read_bytes(),
            "tls.key": certificate.key.read_bytes(),
        },
    )
    arguments = [each.replace(mount["mountPath"], str(secret)) for each in container_of(found)["args"][1:]]
    assert arguments == [f"--web.config.file={secret}/web-config.yml"]
    exporter = Exporter(program.command(*SERVE, *arguments), environment, tmp_path / "log")
    try:
        address = exporter.address()

        (endpoint,) = one("PodMonitor", found)["spec"]["podMetricsEndpoints"]
        assert address.startswith(f"{endpoint['scheme']}://")
        context = ssl.create_default_context(cafile=str(authority.cert))
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(address, context=context)
        refused.value.close()
        identity = base64.b64encode(b"prometheus:wonderland").decode()
        request = urllib.request.Request(address, headers={"Authorization": f"Basic {identity}"})

        def shows_metrics() -> None:
            try:
                with urllib.request.urlopen(request, context=context) as answer:
                    assert b"cuda_mps_exporter_build_info" in answer.read()
            except urllib.error.HTTPError as error:
                error.close()
                raise AssertionError("no metrics yet") from error

        eventually(shows_metrics)
        assert endpoint["tlsConfig"]["serverName"] == "cuda-mps-exporter"
        (port,) = re.findall(r":(\d+)/", address)
        done = _helm_test(f"{LOCALHOST}:{port}", WEB)
        assert done.returncode == 0, done.stderr
    finally:
        exporter.stop()


def test_probes_of_the_example_only_open_the_port_because_the_kubelet_has_no_password() -> None:
    container = container_of(rendered(WEB))
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["tcpSocket"] == {"port": "metrics"}
        assert "httpGet" not in container[probe]
    tls = container_of(rendered("--set=web.tls=true"))
    assert [tls[probe]["httpGet"]["scheme"] for probe in ("livenessProbe", "readinessProbe")] == ["HTTPS"] * 2


@pytest.mark.parametrize("arguments", [(), ("--set=web.tls=true",), (WEB,)], ids=["http", "https", "password"])
def test_helm_test_fails_if_no_exporter_answers(arguments: Sequence[str]) -> None:
    done = _helm_test(f"{LOCALHOST}:1", *arguments)
    assert done.returncode == 1
    assert "no exporter answers" in done.stderr


def test_helm_test_passes_with_a_certificate_of_an_unknown_authority(tmp_path: Path, serve: Serve) -> None:
    certificate = Authority(tmp_path).issue("server", "DNS:cuda-mps-exporter")
    config = tmp_path / "web-config.yml"
    config.write_text(f"tls_server_config: {{cert_file: {certificate.cert}, key_file: {certificate.key}}}")
    address = serve(CUDA_MPS_EXPORTER_WEB_CONFIG_FILE=str(config)).address()
    assert address.startswith("https://")
    (port,) = re.findall(r":(\d+)/", address)

    until(lambda: _helm_test(f"{LOCALHOST}:{port}", "--set=web.tls=true").returncode == 0)


def test_helm_test_passes_if_an_exporter_is_ready(serve: Serve) -> None:
    (port,) = re.findall(r":(\d+)/", serve().address())

    def passes() -> None:
        done = _helm_test(f"{LOCALHOST}:{port}")
        assert (done.returncode, done.stderr) == (0, "")

    eventually(passes)


def test_the_notes_show_how_to_reach_a_page_and_to_test() -> None:
    """Without a cluster, helm shows what an installation would print."""
    arguments = ("install", "gpu", CHART, IMAGE, f"--namespace={NAMESPACE}", "--dry-run=client")
    for tls, scheme in (("false", "http"), ("true", "https")):
        done = helm(*arguments, f"--set=web.tls={tls}")
        assert done.returncode == 0, done.stderr
        notes = done.stdout.partition("NOTES:")[2]
        daemon_set = one("DaemonSet", rendered(name="gpu"))["metadata"]["name"]
        assert f"kubectl exec -n {NAMESPACE} ds/{daemon_set} -- cuda-mps-exporter status" in notes
        assert f"kubectl port-forward -n {NAMESPACE} POD 10677" in notes
        assert f"{scheme}://localhost:10677/" in notes
        assert f"helm test -n {NAMESPACE} gpu" in notes
