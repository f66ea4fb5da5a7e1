"""A cluster takes the manifests, and they ask it for no more rights than the exporter needs."""

import copy
import tomllib
from pathlib import Path

import pytest

from exporter import __version__
from exporter.cli import main
from tests.deploy.kustomize import Object, built
from tests.deploy.manifests import KUBERNETES, VARIANTS, container, host_paths, objects, pod, the
from tests.deploy.schemas import complaints

STATE = "/var/lib/cuda-mps-exporter"
NEEDED = {"SYS_PTRACE"}

every_variant = pytest.mark.parametrize("variant", VARIANTS)


@pytest.mark.parametrize("directory", [*VARIANTS, "monitoring"])
def test_a_cluster_takes_all_of_it(directory: str) -> None:
    assert {each["kind"]: complaints(each) for each in objects(directory)} == {
        each["kind"]: [] for each in objects(directory)
    }


def test_a_cluster_would_not_take_a_wrong_word() -> None:
    wrong = copy.deepcopy(the("DaemonSet", "host"))
    wrong["spec"]["template"]["spec"]["hostPid"] = True
    wrong["spec"]["template"]["spec"]["containers"][0]["securityContext"]["privileged"] = "no"

    assert len(complaints(wrong)) == 2


@every_variant
def test_it_has_no_rights_that_it_does_not_need(variant: str) -> None:
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
def test_of_the_node_it_writes_to_its_own_state_directory_alone(variant: str) -> None:
    mounts = {each["name"]: each for each in container(variant)["volumeMounts"]}
    written = {path for name, path in host_paths(variant).items() if not mounts[name].get("readOnly")}

    assert written == {STATE}
    assert not host_paths(variant).keys() - mounts.keys(), "what is not mounted is not asked for"


@every_variant
def test_what_the_node_has_is_at_the_same_path_in_the_pod(variant: str) -> None:
    """So that a daemon has the name by which people on the node know it. The driver's files are told by variables."""
    mounts = {each["name"]: each["mountPath"] for each in container(variant)["volumeMounts"]}
    elsewhere = {name for name, path in host_paths(variant).items() if mounts[name] != path}

    assert elsewhere <= {"driver"}


@every_variant
def test_it_sees_the_nodes_processes_and_gpus_and_takes_none_of_these_from_others(variant: str) -> None:
    variables = {each["name"]: each["value"] for each in container(variant)["env"]}

    assert pod(variant)["hostPID"]
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert set(variables["NVIDIA_DRIVER_CAPABILITIES"].split(",")) == {"compute", "utility"}
    assert not {"nvidia.com/gpu"} & container(variant)["resources"]["limits"].keys()


@every_variant
def test_it_runs_on_the_nodes_that_have_mps_however_they_are_tainted(variant: str) -> None:
    assert pod(variant)["nodeSelector"]
    assert pod(variant)["tolerations"] == [{"operator": "Exists"}]


@every_variant
def test_its_image_is_of_this_version(variant: str) -> None:
    assert container(variant)["image"] == f"registry.example.com/cuda-mps-exporter:{__version__}"


@every_variant
def test_its_probes_ask_pages_that_it_has(variant: str) -> None:
    (port,) = container(variant)["ports"]
    for probe, page in (("livenessProbe", "/-/healthy"), ("readinessProbe", "/-/ready")):
        assert container(variant)[probe]["httpGet"] == {"path": page, "port": port["name"]}


@pytest.mark.parametrize(("variant", "daemons"), [("device-plugin", 0), ("gke", 1), ("host", 1)])
def test_its_configuration_can_be_used_and_names_only_a_daemon_that_the_label_of_its_nodes_declares(
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


def test_the_host_variant_runs_only_on_nodes_that_are_labelled_for_it() -> None:
    """It expects a daemon on each of its nodes, and not every GPU node runs one."""
    assert pod("host")["nodeSelector"] == {"cuda-mps-exporter/mps": "host"}


def configuration_of(found: Object) -> str:
    volumes = {each["name"]: each for each in found["spec"]["template"]["spec"]["volumes"]}
    name: str = volumes["config"]["configMap"]["name"]
    return name


@every_variant
def test_another_configuration_is_a_rollout(variant: str) -> None:
    """To a generated ConfigMap's name its content's hash is added, unless that is switched off."""
    assert configuration_of(the("DaemonSet", variant)) == the("ConfigMap", variant)["metadata"]["name"]
    assert "disableNameSuffixHash" not in (KUBERNETES / variant / "kustomization.yaml").read_text()


def test_every_folder_of_variants_is_tested() -> None:
    assert {each.name for each in KUBERNETES.iterdir()} == {"base", "components", "monitoring", *VARIANTS}
    assert {each.name for each in (KUBERNETES / "components").iterdir()} == {"attribution"}


@every_variant
def test_the_component_has_launches_counted_and_changes_nothing_else(variant: str) -> None:
    objects_with = built(KUBERNETES / variant, KUBERNETES / "components" / "attribution")
    assert [complaints(each) for each in objects_with] == [[] for _ in objects_with]

    (found,) = [each for each in objects_with if each["kind"] == "DaemonSet"]
    (counting,) = found["spec"]["template"]["spec"]["containers"]
    assert counting["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": [*sorted(NEEDED), "BPF", "PERFMON"]}
    counting["securityContext"]["capabilities"]["add"] = [*NEEDED]
    counting["env"].remove({"name": "CUDA_MPS_EXPORTER_ATTRIBUTION", "value": "bpf"})
    assert found == the("DaemonSet", variant)
