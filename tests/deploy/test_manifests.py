"""The chart renders valid objects, which request only the rights that the exporter needs."""

import copy
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter import __version__
from exporter.cli import main
from tests.deploy.manifests import (
    CHART,
    IMAGE,
    INSTALLATIONS,
    Object,
    container,
    helm,
    host_paths,
    objects,
    one,
    pod,
    rendered,
    the,
)
from tests.deploy.schemas import NEWEST, OLDER, schema_errors

STATE = "/var/lib/cuda-mps-exporter"
NEEDED = ["SYS_PTRACE"]
BPF = ["BPF", "PERFMON"]

CAPABILITIES = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
RUNTIME = {"NVIDIA_VISIBLE_DEVICES": "all", **CAPABILITIES}
NRI = {"nvidia.cdi.k8s.io/container.exporter": "management.nvidia.com/gpu=all"}


def kinds(installation: str) -> list[str]:
    return sorted(each["kind"] for each in objects(installation))


def variables(installation: str) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(installation).get("env", ())}


def test_all_objects_are_valid(subtests: pytest.Subtests) -> None:
    for installation in INSTALLATIONS:
        with subtests.test(installation=installation):
            assert [error for each in objects(installation) for error in schema_errors(each)] == []


def test_validation_rejects_a_wrong_key() -> None:
    wrong = copy.deepcopy(the("DaemonSet", "host"))
    wrong["spec"]["template"]["spec"]["hostPid"] = True
    wrong["spec"]["template"]["spec"]["containers"][0]["securityContext"]["privileged"] = "no"

    versions = {error.partition(":")[0] for error in schema_errors(wrong)}
    assert versions == {NEWEST, *OLDER}
    assert len(schema_errors(wrong)) == 2 * len(versions)


def test_validation_knows_what_an_older_version_lacks() -> None:
    """Directories in memory have a mode since 1.37."""
    changed = copy.deepcopy(the("DaemonSet", "host"))
    (memory,) = [each for each in changed["spec"]["template"]["spec"]["volumes"] if "emptyDir" in each]
    memory["emptyDir"]["mode"] = 0o700

    assert {error.partition(":")[0] for error in schema_errors(changed)} == {*OLDER}


def test_the_chart_passes_strict_lint(subtests: pytest.Subtests) -> None:
    for installation in INSTALLATIONS:
        with subtests.test(installation=installation):
            done = helm("lint", "--strict", CHART, IMAGE, *INSTALLATIONS[installation])
            assert done.returncode == 0, done.stdout


def test_the_schema_refuses_an_unknown_or_wrong_value(subtests: pytest.Subtests) -> None:
    for value in [
        "colour=red",
        "image.name=x",
        "mounts.home=/home",
        "gpuAccess=yes",
        "mounts.tmp=tmp",
        "hostPort=10677",
        "podMetricLabels={*}",
        "image.repository=registry.example.com/exporter@sha256:0",
        "image.repository=registry.example.com:5000/exporter:0.1.0",
        "image.digest=0.1.0",
        "image.pullPolicy=Sometimes",
        "image.tag=1",
        "image.tag=a b",
        "restartPods.namespaces={one,one}",
        "networkPolicy.from=null",  # It would allow all.
        "gpuAccess=null",
        "updateStrategy=RollingUpdate",
    ]:
        with subtests.test(value=value):
            done = helm("template", CHART, IMAGE, f"--set={value}")
            assert done.returncode != 0
            assert value.split("=")[0].split(".")[-1] in done.stderr


def test_a_package_contains_the_alerts_and_dashboards(tmp_path: Path) -> None:
    """In the repository they are links."""
    assert helm("package", CHART, f"--destination={tmp_path}").returncode == 0
    with tarfile.open(tmp_path / f"{CHART.name}-{__version__}.tgz") as package:
        for link in (CHART / "files").iterdir():
            packed = package.extractfile(f"{CHART.name}/files/{link.name}")
            assert packed
            assert packed.read() == link.read_bytes()


def test_the_pod_has_only_the_rights_that_it_needs(subtests: pytest.Subtests) -> None:
    for installation in sorted(INSTALLATIONS.keys() - {"privileged"}):
        with subtests.test(installation=installation):
            rights = container(installation)["securityContext"]

            assert rights["capabilities"]["drop"] == ["ALL"]
            assert rights["capabilities"]["add"] == [*NEEDED, *(BPF if installation == "attribution" else [])]
            assert not rights["privileged"]
            assert not rights["allowPrivilegeEscalation"]
            assert rights["readOnlyRootFilesystem"]
            assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
            assert not {"hostNetwork", "hostIPC"} & pod(installation).keys()


def test_the_process_of_a_privileged_container_drops_all_rights_that_it_does_not_need() -> None:
    assert container("privileged")["securityContext"]["privileged"]
    assert container("privileged")["securityContext"]["readOnlyRootFilesystem"]
    program, *options, exporter = container("privileged")["command"]
    assert (program, exporter) == ("setpriv", "cuda-mps-exporter")
    assert options == ["--bounding-set=-all,+sys_ptrace,+syslog", "--inh-caps=-all", "--no-new-privs"]


def test_has_no_permissions_in_the_api_server(subtests: pytest.Subtests) -> None:
    for installation in sorted(INSTALLATIONS.keys() - {"openshift", "openshift-no-cdi", "restart-pods", "pod-labels"}):
        with subtests.test(installation=installation):
            assert not {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"} & {*kinds(installation)}
            assert not pod(installation)["automountServiceAccountToken"]
            assert not the("ServiceAccount", installation)["automountServiceAccountToken"]


def test_the_default_has_only_three_objects() -> None:
    assert kinds("default") == ["ConfigMap", "DaemonSet", "ServiceAccount"]


def test_restart_pods_allows_only_to_delete_pods_in_the_listed_namespaces() -> None:
    found = objects("restart-pods")
    roles = {each["metadata"]["namespace"]: each["rules"] for each in found if each["kind"] == "Role"}
    bindings = {each["metadata"]["namespace"]: each for each in found if each["kind"] == "RoleBinding"}

    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}
    assert roles == {"gpu-operator": [rule], "nvidia": [rule]}
    assert bindings.keys() == roles.keys()
    account = the("ServiceAccount", "restart-pods")
    for each in bindings.values():
        assert each["roleRef"]["kind"] == "Role"
        assert each["subjects"] == [
            {"kind": "ServiceAccount", **{key: account["metadata"][key] for key in ("name", "namespace")}}
        ]
    assert account["automountServiceAccountToken"]
    assert pod("restart-pods")["automountServiceAccountToken"]
    assert pod("restart-pods")["serviceAccountName"] == account["metadata"]["name"]


def test_pod_labels_allow_only_to_get_pods() -> None:
    """By name: the exporter cannot list or watch pods, or read anything else."""
    role, binding = the("ClusterRole", "pod-labels"), the("ClusterRoleBinding", "pod-labels")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    account = the("ServiceAccount", "pod-labels")
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", **{key: account["metadata"][key] for key in ("name", "namespace")}}
    ]
    assert account["automountServiceAccountToken"]
    assert pod("pod-labels")["automountServiceAccountToken"]
    assert not {"Role", "RoleBinding"} & {*kinds("pod-labels")}
    elsewhere = {each["metadata"]["name"] for each in rendered(*INSTALLATIONS["pod-labels"], "--namespace=other")}
    assert role["metadata"]["name"] not in elsewhere


def test_openshift_allows_what_the_pod_requests_and_no_more() -> None:
    found = the("SecurityContextConstraints", "openshift")
    rights = container("openshift")["securityContext"]

    assert found["allowedCapabilities"] == rights["capabilities"]["add"]
    assert not found["allowPrivilegedContainer"]
    assert {kind for each in pod("openshift")["volumes"] for kind in each if kind != "name"} <= set(found["volumes"])
    assert the("Role", "openshift")["rules"][0]["resourceNames"] == [found["metadata"]["name"]]
    assert the("RoleBinding", "openshift")["subjects"][0]["name"] == pod("openshift")["serviceAccountName"]
    assert rights["seLinuxOptions"] == {"type": "spc_t"}


def test_the_pod_writes_only_to_its_state_directory_and_mounts_paths_at_the_same_paths(
    subtests: pytest.Subtests,
) -> None:
    """Daemons then have the same names as on the node. Variables set the paths of the driver's files."""
    for installation in INSTALLATIONS:
        with subtests.test(installation=installation):
            mounts = {each["name"]: each for each in container(installation)["volumeMounts"]}
            paths = host_paths(installation)

            assert not paths.keys() - mounts.keys(), "what is not mounted is not asked for"
            assert {path for name, path in paths.items() if not mounts[name].get("readOnly")} == {STATE}
            elsewhere = {name for name, path in paths.items() if mounts[name]["mountPath"] != path}
            assert elsewhere == paths.keys() & {"driver", "all-gpus"}


def test_the_pod_has_the_image_of_this_version_its_probes_and_the_processes_of_the_node(
    subtests: pytest.Subtests,
) -> None:
    for installation in INSTALLATIONS:
        with subtests.test(installation=installation):
            assert pod(installation)["hostPID"]
            assert container(installation)["image"] == f"registry.example.com/cuda-mps-exporter:{__version__}"
            (port,) = container(installation)["ports"]
            for probe, page in (("livenessProbe", "/-/healthy"), ("readinessProbe", "/-/ready")):
                expected = {"path": page, "port": port["name"], "scheme": "HTTP"}
                assert container(installation)[probe]["httpGet"] == expected


def test_one_daemon_set_has_the_directories_of_all_systems() -> None:
    paths = set(host_paths("default").values()) - {STATE}
    mounts = {each["mountPath"]: each for each in container("default")["volumeMounts"] if each["mountPath"] in paths}

    assert mounts.keys() == {
        "/run/nvidia/mps",
        "/tmp",
        "/run/nvidia-mps",
        "/var/log/nvidia-mps",
        "/var/lib/kubelet/plugins/gpu.nvidia.com/mps",
        "/run/nvidia/validations",
        "/var/log/pods",
    }
    assert {each["mountPropagation"] for each in mounts.values()} == {"HostToContainer"}


def test_each_mount_can_be_switched_off() -> None:
    names = ("devicePlugin", "tmp", "run", "logs", "draDriver", "operator", "podLogs")
    found = rendered(*(f"--set=mounts.{name}=" for name in names))
    (specification,) = [each["spec"]["template"]["spec"] for each in found if each["kind"] == "DaemonSet"]
    assert {each["name"] for each in specification["volumes"]} == {"config", "runtime", "state"}
    assert {each["name"] for each in specification["containers"][0]["volumeMounts"]} == {"config", "runtime", "state"}


@pytest.mark.parametrize(
    ("installation", "runtime_class", "environment", "annotations"),
    [
        ("default", "nvidia", RUNTIME, {}),
        ("gpu-operator-default-runtime", None, RUNTIME, {}),
        ("gpu-operator-nri", None, {}, NRI),
        ("gpu-operator-hardened", "nvidia", CAPABILITIES, {}),
        ("bottlerocket", None, CAPABILITIES, {}),
        ("dra-cdi", None, {}, {}),
        ("privileged", None, RUNTIME, {}),
        ("none", None, {}, {}),
    ],
)
def test_each_way_to_access_gpus_without_reserving_them(
    installation: str, runtime_class: str | None, environment: dict[str, str], annotations: dict[str, str]
) -> None:
    found = the("DaemonSet", installation)["spec"]["template"]["metadata"]["annotations"]

    assert pod(installation).get("runtimeClassName") == runtime_class
    assert variables(installation) == environment
    assert {key: value for key, value in found.items() if key in NRI} == annotations
    assert container(installation)["name"] == "exporter", "as in the annotation"
    assert container(installation)["securityContext"]["privileged"] == (installation == "privileged")
    assert "nvidia.com/gpu" not in container(installation)["resources"]["limits"]


def test_mounts_nothing_of_the_node_for_all_gpus_of_nvidias_runtime(subtests: pytest.Subtests) -> None:
    """The runtime reads source and destination (visibleDevicesFromMounts of nvidia-container-toolkit 1.18 to 1.20)."""
    for installation in INSTALLATIONS:
        with subtests.test(installation=installation):
            mounts = [each for each in container(installation)["volumeMounts"] if each["name"] == "all-gpus"]
            if installation not in ("bottlerocket", "gpu-operator-hardened"):
                assert not mounts
                continue
            (mount,) = mounts
            assert mount["mountPath"] == "/var/run/nvidia-container-devices/all"
            assert host_paths(installation)["all-gpus"] == "/dev/null"


DRA = ("dra-cdi", "dra-gpucluster", "gke-dra")


def test_a_claim_has_all_gpus_of_the_node_and_reserves_none(subtests: pytest.Subtests) -> None:
    for installation in INSTALLATIONS:
        with subtests.test(installation=installation):
            names = [
                (each["name"], each["resourceClaimTemplateName"])
                for each in pod(installation).get("resourceClaims", ())
            ]
            assert bool(names) == (installation in DRA)
            assert container(installation)["resources"].get("claims", []) == [{"name": name} for name, _ in names]
            if not names:
                assert "ResourceClaimTemplate" not in kinds(installation)
                continue
            template = the("ResourceClaimTemplate", installation)
            assert [name for _, name in names] == [template["metadata"]["name"]]
            assert template["metadata"]["namespace"] == the("DaemonSet", installation)["metadata"]["namespace"]
            (request,) = template["spec"]["spec"]["devices"]["requests"]
            assert request["exactly"] == {
                "deviceClassName": "gpu.nvidia.com",
                "allocationMode": "All",
                "adminAccess": True,
            }


def test_a_claim_needs_a_cluster_that_knows_admin_access() -> None:
    arguments = (CHART, IMAGE, "--set=gpuAccess=dra")
    old, new = (helm("template", *arguments, f"--kube-version={version}") for version in ("1.33.9", "1.34.0"))
    assert "gpuAccess: dra needs Kubernetes 1.34" in old.stderr
    assert old.returncode != 0
    assert new.returncode == 0


def test_gke_has_the_driver_of_the_node_and_can_request_a_share() -> None:
    for installation in ("gke", "gke-share"):
        assert host_paths(installation)["driver"] == "/home/kubernetes/bin/nvidia"
        assert variables(installation)["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64"
        assert "/usr/local/nvidia/bin" in variables(installation)["PATH"].split(":")
    without, share = (container(installation)["resources"]["limits"] for installation in ("gke", "gke-share"))
    assert share == {**without, "nvidia.com/gpu": 1}


def terms_of(installation: str) -> list[list[Object]]:
    """Return the expressions of each term of the affinity."""
    affinity = pod(installation)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [term["matchExpressions"] for term in affinity["nodeSelectorTerms"]]


def test_reads_processes_of_the_node_if_the_installation_always_has_selinux() -> None:
    """In bottlerocket-core-kit's policy (subject.cil, rules.cil), `container_t` may not, and `spc_t` is `control_t`."""
    for installation in ("openshift", "openshift-no-cdi", "bottlerocket"):
        assert container(installation)["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}


def test_leaves_a_node_that_the_gpu_operator_pauses(subtests: pytest.Subtests) -> None:
    """Otherwise the operator cannot unload the driver. GKE has no operator."""
    for installation in INSTALLATIONS:
        with subtests.test(installation=installation):
            paused = {"operator": "NotIn", "values": ["paused-for-driver-upgrade", "paused-for-mig-change"]}
            labels = [f"nvidia.com/gpu.deploy.{name}" for name in ("dcgm-exporter", "client", "dcgm-exporter-dra")]
            for first, *others in terms_of(installation):
                assert others == [
                    {"key": key, **paused} for key in labels if not first["key"].startswith("cloud.google.com/")
                ]


def test_names_are_strings(subtests: pytest.Subtests) -> None:
    """YAML reads these as other values, which a cluster refuses."""
    for name in ["12345", "1e3", "2026-01-02", "true", "null"]:
        with subtests.test(name=name):
            arguments = [argument for each in INSTALLATIONS.values() for argument in each]
            arguments.append(f"--set-string=runtimeClassName={name},restartPods.namespaces={{{name}}}")
            for each in rendered(*arguments, f"--namespace={name}", name=name):
                wrong = [(path, value) for path, value in leaves(each) if path in NAMES and not isinstance(value, str)]
                assert not wrong, each["kind"]


NAMES = {"name", "namespace", "serviceAccountName", "runtimeClassName", "resourceNames", "app.kubernetes.io/instance"}


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the plain values of an object, each with its key; those of a list have the key of the list."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from leaves(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each, key)
    else:
        yield key, value


def test_runs_on_all_nodes_with_mps_despite_taints(subtests: pytest.Subtests) -> None:
    for installation in INSTALLATIONS:
        with subtests.test(installation=installation):
            labels = [(each["key"], *each["values"]) for each, *_ in terms_of(installation)]

            assert labels == [
                ("nvidia.com/gpu.present", "true"),
                ("nvidia.com/mps.capable", "true"),
                ("feature.node.kubernetes.io/pci-10de.present", "true"),
                ("feature.node.kubernetes.io/pci-0302_10de.present", "true"),
                ("feature.node.kubernetes.io/pci-0300_10de.present", "true"),
                ("cloud.google.com/gke-gpu-sharing-strategy", "mps"),
                ("cuda-mps-exporter/mps", "host"),
            ]
            assert pod(installation)["tolerations"] == [{"operator": "Exists"}]


@pytest.mark.parametrize(
    ("installation", "label"),
    [
        ("default", None),
        ("gke", {"cloud.google.com/gke-gpu-sharing-strategy": "mps"}),
        ("host", {"cuda-mps-exporter/mps": "host"}),
    ],
)
def test_expects_a_daemon_only_on_nodes_with_a_label_that_declares_one(
    installation: str, label: dict[str, str]
) -> None:
    """Not every GPU node runs MPS."""
    assert pod(installation).get("nodeSelector") == label
    assert bool(the("ConfigMap", installation)["data"]["config.toml"]) == (installation == "host")


@pytest.mark.parametrize(
    ("installation", "arguments"),
    [
        ("default", ["serve"]),
        ("restart-pods", ["serve", "--watchdog.mode=act", "--watchdog.allow=delete_pod"]),
        ("pod-labels", ["serve", "--kubernetes.pod-labels=team,app.kubernetes.io/name"]),
    ],
)
def test_only_an_explicit_choice_lets_the_watchdog_act(installation: str, arguments: list[str]) -> None:
    assert container(installation)["args"] == arguments


@pytest.mark.parametrize(("installation", "daemons"), [("default", 0), ("gke", 0), ("host", 1)])
def test_the_configuration_is_valid_and_names_mounted_directories(
    installation: str, daemons: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = the("ConfigMap", installation)["data"].values()
    (tmp_path / "config.toml").write_text(text)
    code = main(["serve", "--config.check", f"--config.file={tmp_path / 'config.toml'}"])
    in_effect = tomllib.loads(capsys.readouterr().out)

    assert code == 0
    named = in_effect.get("daemons", [])
    assert len(named) == daemons
    mounted = [each["mountPath"] for each in container(installation)["volumeMounts"]]
    for directory in (each[key] for each in named for key in ("pipe_directory", "log_directory")):
        assert any(Path(directory).is_relative_to(each) for each in mounted)


def test_a_changed_configuration_causes_a_rollout() -> None:
    templates = [the("DaemonSet", each)["spec"]["template"]["metadata"]["annotations"] for each in ("default", "host")]
    assert templates[0] != templates[1]
    volumes = {each["name"]: each for each in pod("host")["volumes"]}
    assert volumes["config"]["configMap"]["name"] == the("ConfigMap", "host")["metadata"]["name"]


def test_two_releases_in_one_namespace_share_no_object() -> None:
    names = [{(each["kind"], each["metadata"]["name"]) for each in rendered(name=name)} for name in ("one", "two")]
    assert not names[0] & names[1]
    first, second = (one("DaemonSet", rendered(name=name))["spec"] for name in ("one", "two"))
    assert first["selector"] != second["selector"]
    assert first["selector"]["matchLabels"].items() <= first["template"]["metadata"]["labels"].items()


def test_attribution_only_adds_launch_counting() -> None:
    found = copy.deepcopy(the("DaemonSet", "attribution"))
    (counting,) = found["spec"]["template"]["spec"]["containers"]
    assert counting["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": [*NEEDED, *BPF]}
    counting["securityContext"]["capabilities"]["add"] = [*NEEDED]
    counting["env"].remove({"name": "CUDA_MPS_EXPORTER_ATTRIBUTION", "value": "bpf"})
    assert found == the("DaemonSet", "default")


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = (CHART / "Chart.yaml").read_text().splitlines()
    assert {f"version: {__version__}", f"appVersion: {__version__}"} <= set(chart)


def test_without_an_image_the_chart_fails_with_the_commands_that_build_and_push_one() -> None:
    done = helm("template", CHART)

    assert done.returncode != 0
    image = f"your.registry/cuda-mps-exporter:{__version__}"
    assert f"podman build -f deploy/Containerfile -t {image} ." in done.stderr
    assert f"podman push {image}" in done.stderr
    assert "--set image.repository=your.registry/cuda-mps-exporter" in done.stderr


def test_a_digest_replaces_the_tag() -> None:
    digest = f"sha256:{'0a' * 32}"
    found = one("DaemonSet", rendered(f"--set=image.digest={digest},image.pullPolicy=Always"))
    (only,) = found["spec"]["template"]["spec"]["containers"]
    assert only["image"] == f"registry.example.com/cuda-mps-exporter@{digest}"
    assert only["imagePullPolicy"] == "Always"
