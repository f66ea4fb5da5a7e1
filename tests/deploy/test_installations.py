"""Each installation of the chart runs on the nodes that its documented values are for, and on no others."""

from collections.abc import Mapping, Sequence

import pytest

from tests.deploy.manifests import VALUES, Object, pod
from tests.deploy.test_pod import LAYOUTS

Labels = Mapping[str, str]

NFD_OF_NVIDIA = {"feature.node.kubernetes.io/pci-10de.present": "true"}
"""deviceLabelFields is [vendor] in the charts of the GPU operator and the device plugin."""

NFD_3D = {"feature.node.kubernetes.io/pci-0302_10de.present": "true"}
NFD_VGA = {"feature.node.kubernetes.io/pci-0300_10de.present": "true"}
"""The default of Node Feature Discovery has class and vendor."""

OPERATOR = {
    **NFD_OF_NVIDIA,
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.deploy.driver": "true",
    "nvidia.com/gpu.deploy.container-toolkit": "true",
    "nvidia.com/gpu.deploy.dcgm-exporter": "true",
    "nvidia.com/mps.capable": "true",
}
"""gpuStateLabels in controllers/state_manager.go of gpu-operator 25.3.4, 25.10.1 and 26.3.3."""

OWN_DRIVER = {**OPERATOR, "nvidia.com/gpu.deploy.driver": "pre-installed"}
"""The driver manager sets this value if the node has a driver (cmd/driver-manager/main.go of k8s-driver-manager)."""

OPERATOR_26_7 = {**OPERATOR, "nvidia.com/gpu.deploy.client": "true"}

GPU_CLUSTER = {
    **NFD_OF_NVIDIA,
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.deploy.driver": "true",
    "nvidia.com/gpu.deploy.dra-driver": "true",
    "nvidia.com/gpu.deploy.dcgm-exporter-dra": "true",
}
"""gpuClusterStateLabels of 26.7.0. devicePluginOnlyStateLabelKeys, such as gpu.deploy.client, are removed."""

ALL_OPERATORS = (OPERATOR, OWN_DRIVER, OPERATOR_26_7)

DEVICE_PLUGIN = (
    {**NFD_OF_NVIDIA, "nvidia.com/mps.capable": "true"},
    {"nvidia.com/mps.capable": "true"},
)
"""GPU feature discovery sets the second label (internal/lm/nvml.go of k8s-device-plugin 0.20.0), with Node Feature
Discovery; or an administrator does, because the daemon's DaemonSet has it as nodeSelector."""

DRA_DRIVER = (NFD_OF_NVIDIA, NFD_3D, NFD_VGA)
"""kubeletPlugin.affinity in the values of dra-driver-nvidia-gpu 0.4.1, whose prerequisite is Node Feature Discovery."""

GKE = {"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-gpu-sharing-strategy": "mps"}
"""GKE sets these for a node pool with gpu-sharing-strategy=mps."""

GKE_DRA = {
    "cloud.google.com/gke-accelerator": "nvidia-l4",
    "gke-no-default-nvidia-gpu-device-plugin": "true",
    "nvidia.com/gpu.present": "true",
}
"""`--node-labels` of the node pool in GKE's guide "Prepare GKE infrastructure for DRA workloads"."""

NODES: Mapping[str, Sequence[Labels]] = {
    "gpu-operator": ALL_OPERATORS,
    "gpu-operator-default-runtime": ALL_OPERATORS,
    "gpu-operator-nri": ALL_OPERATORS,
    "gpu-operator-hardened": ALL_OPERATORS,
    "device-plugin": DEVICE_PLUGIN,
    "device-plugin-default-runtime": DEVICE_PLUGIN,
    "dra": (*DRA_DRIVER, *ALL_OPERATORS),
    "dra-cdi": DRA_DRIVER,
    "dra-gpucluster": (GPU_CLUSTER,),
    "gke": (GKE,),
    "gke-share": (GKE,),
    "gke-dra": (GKE_DRA,),
    "eks": DEVICE_PLUGIN,
    "bottlerocket": ({"nvidia.com/mps.capable": "true"},),  # of its documented settings; it sets none itself
    "openshift": ALL_OPERATORS,
    "openshift-no-cdi": ALL_OPERATORS,
    "k3s": DEVICE_PLUGIN,
    "talos": DEVICE_PLUGIN,
    "slurm-in-pods": ALL_OPERATORS,
    "host": ({"cuda-mps-exporter/mps": "host"}, {**OPERATOR, "cuda-mps-exporter/mps": "host"}),
}
"""Labels of the nodes that have MPS, by installation."""

CPU_NODES: Sequence[Labels] = (
    {},
    {"nvidia.com/gpu.present": "false", "nvidia.com/mps.capable": "false"},
    {"feature.node.kubernetes.io/cpu-model.vendor_id": "NVIDIA"},
    {"feature.node.kubernetes.io/pci-0300_1a03.present": "true"},
    {"cloud.google.com/gke-nodepool": "default-pool"},
)

PAUSED = ("paused-for-driver-upgrade", "paused-for-mig-change")
"""Values of k8s-driver-manager 0.8 to 0.12 (cmd/driver-manager/main.go) and of mig-parted 0.15."""

PAUSABLE = [
    (installation, node, label)
    for installation, nodes in NODES.items()
    for node in nodes
    for label in (f"nvidia.com/gpu.deploy.{name}" for name in ("dcgm-exporter", "client", "dcgm-exporter-dra"))
    if label in node
]
"""The labels of nodes with GPU operator that it pauses."""


def is_selected(installation: str, node: Labels) -> bool:
    """Return whether the scheduler runs the pod on a node with these labels."""
    specification = pod(installation)
    affinity = specification["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return specification.get("nodeSelector", {}).items() <= node.items() and any(
        all(_matches(expression, node) for expression in term["matchExpressions"])
        for term in affinity["nodeSelectorTerms"]
    )


def _matches(expression: Object, node: Labels) -> bool:
    is_in = node.get(expression["key"]) in expression["values"]
    match expression["operator"]:
        case "In":
            return is_in
        case "NotIn":
            return not is_in
        case other:
            raise ValueError(other)


def test_the_nodes_and_daemons_of_all_installations_are_known() -> None:
    assert NODES.keys() == VALUES.keys() == LAYOUTS.keys()


@pytest.mark.parametrize("installation", NODES)
def test_runs_on_the_nodes_of_its_installation_only(installation: str) -> None:
    for node in NODES[installation]:
        assert is_selected(installation, node)
    for node in CPU_NODES:
        assert not is_selected(installation, node)


@pytest.mark.parametrize(("installation", "node", "label"), PAUSABLE)
def test_leaves_a_node_while_the_operator_pauses_one_of_its_labels(installation: str, node: Labels, label: str) -> None:
    for value in PAUSED:
        assert not is_selected(installation, {**node, label: value})


def test_the_values_of_each_installation_say_which_nodes_they_are_for() -> None:
    for name, file in VALUES.items():
        comment = [line for line in file.read_text().splitlines() if line.startswith("# ")]
        assert 1 <= len(comment) <= 4, name
