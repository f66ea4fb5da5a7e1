"""In a pod of the chart, the exporter finds the daemons of each MPS installation and the pods of their clients."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.layouts import Layout, bottlerocket, device_plugin, dra, gke, host
from tests.deploy.node import Node
from tests.eventually import eventually
from tests.exporter_process import Exporter
from tests.kubernetes_api import ApiServer
from tests.standin.mps import MpsStandIn
from tests.standin.nvml import Device, NvmlStandIn, Process

pytestmark = pytest.mark.systems

POD = "6f9a2c1e-1b5d-4c57-9b0e-3d0f5a7c2b11"
CONTAINER = "1f" * 32
LABELS = {
    "client_pod_uid": POD,
    "client_container": CONTAINER,
    "client_pod": "trainer-0",
    "client_namespace": "team-a",
}
DAEMON_POD = "7f9a2c1e-1b5d-4c57-9b0e-3d0f5a7c2b11"

Layouts = Callable[[Node], Sequence[Layout]]


def one(node: Node) -> Sequence[Layout]:
    return [device_plugin(node)]


def renamed(node: Node) -> Sequence[Layout]:
    return [device_plugin(node, "nvidia.com/gpu.shared")]


def chroot(node: Node) -> Sequence[Layout]:
    return [dra(node, chroot=True)]


LAYOUTS: Mapping[str, Layouts] = {
    **dict.fromkeys(("gpu-operator-hardened", "openshift", "openshift-no-cdi", "k3s", "talos", "slurm-in-pods"), one),
    **dict.fromkeys(
        ("gpu-operator-default-runtime", "gpu-operator-nri", "device-plugin-default-runtime", "eks"), renamed
    ),
    **dict.fromkeys(("dra", "dra-cdi", "dra-gpucluster"), chroot),
    "gpu-operator": lambda node: [
        device_plugin(node, "nvidia.com/gpu.shared"),
        device_plugin(node, "nvidia.com/h200.shared"),
    ],
    "device-plugin": lambda node: [device_plugin(node, "nvidia.com/gpu.shared", host_pid=False)],
    "gke": lambda node: [gke(node)],
    "gke-share": lambda node: [gke(node)],
    "gke-dra": lambda node: [dra(node, chroot=False)],
    "bottlerocket": lambda node: [bottlerocket(node)],
    "host": lambda node: [host(node)],
}
"""The daemons of each installation."""


def cgroup(pod: str, container: str = CONTAINER) -> str:
    """Return the cgroup of a container."""
    slices = f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod.replace('-', '_')}.slice/"
    return f"{slices}cri-containerd-{container}.scope\n"


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node with a path that is short enough for sockets."""
    installation = getattr(request, "param", "default")
    with tempfile.TemporaryDirectory(prefix="node") as directory, Node(Path(directory), installation) as node:
        yield node


def started(node: Node, nvml: NvmlStandIn, *arguments: str, **variables: str) -> Exporter:
    """Start the exporter in its pod."""
    environment = {"PATH": MpsStandIn(node.directory).environment()["PATH"], **nvml.environment(), **variables}
    usual = ("--web.listen-address=127.0.0.1:0", "--client-min-age=0", "--log.format=json")
    return node.exporter(environment, *usual, *arguments)


def _assert_reported(program: Exporter, daemon: str, client: int) -> None:
    found = [labels for labels, _ in program.samples("cuda_mps_client_info", daemon=daemon)]
    assert [each["pid"] for each in found] == [str(client)]
    assert {key: found[0][key] for key in LABELS} == LABELS


def status(program: Exporter) -> dict[str, Any]:
    """Return the document of the exporter's status."""
    found: dict[str, Any] = program.page("/api/v1/status")["data"]
    return found


def _healthy(program: Exporter) -> dict[str, Any]:
    found = status(program)
    assert found["findings"] == []
    return found


@pytest.mark.parametrize(("node", "layouts"), LAYOUTS.items(), indirect=["node"], ids=LAYOUTS)
def test_an_installation_declares_its_daemons_itself(
    request: pytest.FixtureRequest, node: Node, layouts: Layouts, nvml: NvmlStandIn, mps: MpsStandIn
) -> None:
    """The machine of the test has a daemon too, which is not on the node.

    The exporter expects a daemon while the node declares one, and says what is true of it: its owner, its limits, what
    ends if it is started again, and how that is done.
    """
    mps.start()
    found = layouts(node)
    first, others = found[0], found[1:]
    node.path(f"/var/log/pods/team-a_trainer-0_{POD}").mkdir(parents=True)
    client = node.client()
    node.set_cgroup(client, cgroup(POD))
    nvml.write([Device(processes=(Process(client),))])
    for each in found:
        each.start()
        each.show_pod(DAEMON_POD, cgroup(DAEMON_POD, "2f" * 32))
    first.mps.connect_and_wait(0 if request.node.callspec.id == "device-plugin" else client)
    for each in others:
        each.mps.connect_and_wait(node.client())
    program = started(node, nvml)

    for each in found:
        program.shows(1, "cuda_mps_daemon_up", daemon=each.name)
        program.shows(1, "cuda_mps_daemon_info", pipe_directory=each.directory, expected="true", uid="0")
    eventually(lambda: _assert_reported(program, first.name, client))
    assert len(program.samples("cuda_mps_daemon_info")) == len(found)
    assert program.value("cuda_mps_workload_memory_used_bytes", workload_kind="pod", workload=POD)
    assert program.value("cuda_mps_exporter_history_writable") == 1
    assert [labels["source"] for labels, up in program.samples("cuda_mps_exporter_source_up") if not up] == []
    assert not list(first.mps.pipe_directory.glob("pipe-*"))
    for shown in eventually(lambda: _healthy(program))["daemons"]:
        assert shown["active_thread_ratio"] in (None, 1), "unknown, or no limit"
        assert shown["pinned_memory_limit_bytes"] == {}
        assert shown["foreign_uid"] is None

    first.die()
    program.shows(1, "cuda_mps_daemon_state", daemon=first.name, state="down")
    assert program.value("cuda_mps_daemon_info", daemon=first.name, expected="true") == 1
    (down,) = [each for each in status(program)["findings"] if each["code"] == "daemon_down"]
    assert down["daemons"] == [first.name]
    assert "it only observes" in down["outlook"]
    step = down["steps"][0]
    if first.pod is not None:
        namespace, name = first.pod
        assert step["commands"] == [f"kubectl delete pod --namespace {namespace} {name}"]
        assert step["ends"] == len(others), "the pod of the device plugin has the other daemon too"
    elif first.name == "node":
        assert [each.split()[-2:] for each in step["commands"]] == [["nvidia-cuda-mps-control", "-d"]]
    else:
        assert step["commands"] == []

    if first.name != "node":
        first.withdraw()
        program.shows(1, "cuda_mps_daemon_info", daemon=first.name, expected="false")
        for each in others:
            assert program.value("cuda_mps_daemon_info", daemon=each.name, expected="true") == 1
    program.stop()


@pytest.mark.parametrize("node", ["slurm-in-pods"], indirect=True)
def test_names_the_job_of_a_client_of_a_slurmd_in_a_pod_of_the_trusted_namespace(node: Node, nvml: NvmlStandIn) -> None:
    """The names below another pod are that pod's own."""
    pods = {"slurm_slurmd-0": POD, "team-a_trainer-0": DAEMON_POD}
    clients = [node.client() for _ in pods]
    for client, (directory, uid) in zip(clients, pods.items(), strict=True):
        node.path(f"/var/log/pods/{directory}_{uid}").mkdir(parents=True)
        node.set_cgroup(client, f"{cgroup(uid).strip()}/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n")
    nvml.write([Device(processes=tuple(map(Process, clients)))])
    plugin = device_plugin(node)
    plugin.start()
    for client in clients:
        plugin.mps.connect_and_wait(client)
    program = started(node, nvml)

    for client, job in zip(clients, ("4711", ""), strict=True):
        program.shows(1, "cuda_mps_client_info", pid=str(client), job_id=job)
    program.stop()


def test_a_node_without_mps_expects_no_daemon(node: Node, nvml: NvmlStandIn) -> None:
    """The chart runs on all GPU nodes, of which not all share GPUs."""
    program = started(node, nvml)
    program.shows(1, "cuda_mps_exporter_source_up", source="discovery")
    assert program.samples("cuda_mps_daemon_info") == []
    program.stop()


@pytest.mark.parametrize("node", ["restart-pods"], indirect=True)
def test_the_watchdog_deletes_the_pod_of_a_dead_daemon(node: Node, nvml: NvmlStandIn, tmp_path: Path) -> None:
    """Its controller then creates another pod, with another UID."""
    nvml.write([Device()])
    plugin = device_plugin(node)
    node.path(f"/var/log/pods/gpu-operator_mps-control-daemon-x7k2p_{DAEMON_POD}").mkdir(parents=True)
    plugin.start()
    node.set_cgroup(plugin.mps.pid, cgroup(DAEMON_POD, "2f" * 32))
    pods = {("gpu-operator", "mps-control-daemon-x7k2p"): DAEMON_POD}
    with ApiServer(tmp_path, pods=pods, permitted=frozenset({"gpu-operator"})) as api:
        api.on_delete = lambda _: plugin.start()
        node.set_service_account(api.account)
        program = started(node, nvml, **api.environment)
        program.shows(1, "cuda_mps_daemon_up", daemon=plugin.name)
        program.shows(1, "cuda_mps_daemon_info", daemon=plugin.name, uid="0")

        plugin.die()

        program.shows(1, "cuda_mps_daemon_losses_total", daemon=plugin.name, reason="died")
        eventually(lambda: _assert_restarted(program, plugin.name))
        assert api.deleted == [("gpu-operator", "mps-control-daemon-x7k2p")]
        program.stop()


@pytest.mark.parametrize("node", ["pod-labels"], indirect=True)
def test_shows_the_listed_labels_of_a_clients_pod(node: Node, nvml: NvmlStandIn, tmp_path: Path) -> None:
    plugin = device_plugin(node)
    node.path(f"/var/log/pods/team-a_trainer-0_{POD}").mkdir(parents=True)
    client = node.client()
    node.set_cgroup(client, cgroup(POD))
    nvml.write([Device(processes=(Process(client),))])
    plugin.start()
    plugin.mps.connect_and_wait(client)
    labels: dict[str, object] = {"team": "vision", "app.kubernetes.io/name": "trainer", "pod-template-hash": "5d9f"}
    with ApiServer(tmp_path, {("team-a", "trainer-0"): POD}, frozenset({"team-a"}), labels={POD: labels}) as api:
        node.set_service_account(api.account)
        program = started(node, nvml, **api.environment)
        program.shows(1, "cuda_mps_pod_labels", label_team="vision")
        ((found, _),) = program.samples("cuda_mps_pod_labels")
        assert found == {
            "workload": POD,
            **{key: LABELS[key] for key in ("client_pod_uid", "client_pod", "client_namespace")},
            "label_team": "vision",
            "label_app_kubernetes_io_name": "trainer",
        }
        assert program.value("cuda_mps_exporter_source_up", source="pod_labels") == 1
        assert program.value("cuda_mps_workload_memory_used_bytes", workload=POD)
        program.stop()


def _assert_restarted(program: Exporter, daemon: str) -> None:
    assert program.value("cuda_mps_daemon_up", daemon=daemon) == 1
    assert program.value("cuda_mps_watchdog_restarts_total", daemon=daemon, result="succeeded") == 1
