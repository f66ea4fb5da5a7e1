"""The manifests are valid, and request only the rights that the exporter needs."""

import copy
import tomllib
from pathlib import Path

import pytest

from exporter import __version__
from exporter.cli import main
from tests.deploy.kustomize import Object, built
from tests.deploy.manifests import KUBERNETES, VARIANTS, container, host_paths, objects, pod, the
from tests.deploy.schemas import schema_errors

STATE = "/var/lib/cuda-mps-exporter"
NEEDED = {"SYS_PTRACE"}

every_variant = pytest.mark.parametrize("variant", VARIANTS)


@pytest.mark.parametrize("directory", [*VARIANTS, "monitoring"])
def test_all_objects_are_valid(directory: str) -> None:
    assert {each["kind"]: schema_errors(each) for each in objects(directory)} == {
        each["kind"]: [] for each in objects(directory)
    }


def test_validation_rejects_a_wrong_key() -> None:
    wrong = copy.deepcopy(the("DaemonSet", "host"))
    wrong["spec"]["template"]["spec"]["hostPid"] = True
    wrong["spec"]["template"]["spec"]["containers"][0]["securityContext"]["privileged"] = "no"

    assert len(schema_errors(wrong)) == 2


@every_variant
def test_the_pod_has_only_the_rights_that_it_needs(variant: str) -> None:
    rights = container(variant)["securityContext"]

    assert rights["capabilities"]["drop"] == ["ALL"]
    assert set(rights["capabilities"]["add"]) <= NEEDED
    assert not rights["privileged"]
    assert not rights["allowPrivilegeEscalation"]
    assert rights["readOnlyRootFilesystem"]
    assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod(variant)["automountServiceAccountToken"]
    assert not the("ServiceAccount", variant)["automountServiceAccountToken"]
    assert not {"hostNetwork", "hostIPC"} & pod(variant).keys()


@every_variant
def test_the_pod_writes_only_to_its_state_directory_on_the_node(variant: str) -> None:
    mounts = {each["name"]: each for each in container(variant)["volumeMounts"]}
    written = {path for name, path in host_paths(variant).items() if not mounts[name].get("readOnly")}

    assert written == {STATE}
    assert not host_paths(variant).keys() - mounts.keys(), "what is not mounted is not asked for"


@every_variant
def test_mounts_paths_of_the_node_at_the_same_paths(variant: str) -> None:
    """Daemons then have the same names as on the node. Variables set the paths of the driver's files."""
    mounts = {each["name"]: each["mountPath"] for each in container(variant)["volumeMounts"]}
    elsewhere = {name for name, path in host_paths(variant).items() if mounts[name] != path}

    assert elsewhere <= {"driver"}


@every_variant
def test_has_access_to_processes_and_gpus_without_reserving_gpus(variant: str) -> None:
    variables = {each["name"]: each["value"] for each in container(variant)["env"]}

    assert pod(variant)["hostPID"]
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert set(variables["NVIDIA_DRIVER_CAPABILITIES"].split(",")) == {"compute", "utility"}
    assert not {"nvidia.com/gpu"} & container(variant)["resources"]["limits"].keys()


@every_variant
def test_runs_on_all_nodes_with_mps_despite_taints(variant: str) -> None:
    assert pod(variant)["nodeSelector"]
    assert pod(variant)["tolerations"] == [{"operator": "Exists"}]


@every_variant
def test_the_image_has_the_version_of_the_package(variant: str) -> None:
    assert container(variant)["image"] == f"registry.example.com/cuda-mps-exporter:{__version__}"


@every_variant
def test_the_probes_request_existing_pages(variant: str) -> None:
    (port,) = container(variant)["ports"]
    for probe, page in (("livenessProbe", "/-/healthy"), ("readinessProbe", "/-/ready")):
        assert container(variant)[probe]["httpGet"] == {"path": page, "port": port["name"]}


@pytest.mark.parametrize(("variant", "daemons"), [("device-plugin", 0), ("gke", 1), ("host", 1)])
def test_the_configuration_is_valid_and_names_only_daemons_that_the_node_label_declares(
    variant: str, daemons: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = the("ConfigMap", variant)["data"].values()
    (tmp_path / "config.toml").write_text(text)
    code = main(["serve", "--config.check", f"--config.file={tmp_path / 'config.toml'}"])
    in_effect = tomllib.loads(capsys.readouterr().out)

    assert code == 0
    named = in_effect.get("daemons", [])
    assert len(named) == daemons
    mounted = [each["mountPath"] for each in container(variant)["volumeMounts"]]
    for directory in (each[key] for each in named for key in ("pipe_directory", "log_directory")):
        assert any(Path(directory).is_relative_to(each) for each in mounted)


def test_the_host_variant_runs_only_on_labelled_nodes() -> None:
    """It expects a daemon on each of its nodes, but not every GPU node runs one."""
    assert pod("host")["nodeSelector"] == {"cuda-mps-exporter/mps": "host"}


def configuration_of(found: Object) -> str:
    volumes = {each["name"]: each for each in found["spec"]["template"]["spec"]["volumes"]}
    name: str = volumes["config"]["configMap"]["name"]
    return name


@every_variant
def test_a_changed_configuration_causes_a_rollout(variant: str) -> None:
    """The name of a generated ConfigMap has a hash of its content, unless that is disabled."""
    assert configuration_of(the("DaemonSet", variant)) == the("ConfigMap", variant)["metadata"]["name"]
    assert "disableNameSuffixHash" not in (KUBERNETES / variant / "kustomization.yaml").read_text()


def test_every_folder_of_variants_is_tested() -> None:
    assert {each.name for each in KUBERNETES.iterdir()} == {"base", "components", "monitoring", *VARIANTS}
    assert {each.name for each in (KUBERNETES / "components").iterdir()} == {"attribution"}


@every_variant
def test_the_component_only_enables_launch_counting(variant: str) -> None:
    objects_with = built(KUBERNETES / variant, KUBERNETES / "components" / "attribution")
    assert [schema_errors(each) for each in objects_with] == [[] for _ in objects_with]

    (found,) = [each for each in objects_with if each["kind"] == "DaemonSet"]
    (counting,) = found["spec"]["template"]["spec"]["containers"]
    assert counting["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": [*sorted(NEEDED), "BPF", "PERFMON"]}
    counting["securityContext"]["capabilities"]["add"] = [*NEEDED]
    counting["env"].remove({"name": "CUDA_MPS_EXPORTER_ATTRIBUTION", "value": "bpf"})
    assert found == the("DaemonSet", variant)
