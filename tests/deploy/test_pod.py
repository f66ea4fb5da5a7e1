"""In a pod of the chart, the exporter finds the device plugin's daemon and the pods of its clients."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.node import Node
from tests.eventually import eventually
from tests.exporter_process import Exporter
from tests.standin.mps import MpsStandIn, wait_until
from tests.standin.nvml import Device, NvmlStandIn, Process
from tests.tools import needed

pytestmark = pytest.mark.systems

ROOT = "/run/nvidia/mps"
"""The path on the node. The daemon's container has another one."""

INSIDE = "/mnt"

POD = "6f9a2c1e-1b5d-4c57-9b0e-3d0f5a7c2b11"
CONTAINER = "1f" * 32
CGROUP = f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice/"
CGROUP += f"cri-containerd-{CONTAINER}.scope\n"
WHOSE = {
    "client_pod_uid": POD,
    "client_container": CONTAINER,
    "client_pod": "trainer-0",
    "client_namespace": "team-a",
}


class DevicePlugin:
    """The pod of the device plugin on a node: a control daemon in namespaces of its own."""

    def __init__(self, node: Node, resource: str, *, host_pid: bool) -> None:
        self.mps = MpsStandIn(node.path(f"{ROOT}/{resource}"))
        self.name = f"{ROOT}/{resource}/pipe"
        self.started = self.mps.pipe_directory.with_name(".started")
        inside = MpsStandIn(Path(INSIDE) / resource)
        for directory in (self.mps.pipe_directory, self.mps.log_directory):
            directory.mkdir(parents=True)
        own_pids = [] if host_pid else ["--pid", "--fork", "--mount-proc"]
        script = f"mount --bind {node.path(ROOT)} {INSIDE} && nvidia-cuda-mps-control -d && exec sleep 600"
        unshare = (needed("unshare"), "--mount", *own_pids, "--kill-child")
        node.start(*unshare, "sh", "-c", script, environment=inside.environment())
        wait_until(lambda: pid_file(self.mps).exists(), "the daemon")
        self.started.touch()


def pid_file(mps: MpsStandIn) -> Path:
    """Return the path of the file that the daemon writes when it starts."""
    return mps.pipe_directory / "nvidia-cuda-mps-control.pid"


@pytest.fixture
def node() -> Iterator[Node]:
    """A node with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="node") as directory, Node(Path(directory), "node") as node:
        yield node


def started(node: Node, nvml: NvmlStandIn) -> Exporter:
    """Start the exporter in its pod."""
    environment = {"PATH": MpsStandIn(node.path(ROOT)).environment()["PATH"], **nvml.environment()}
    arguments = ("--web.listen-address=127.0.0.1:0", "--client-min-age=0", "--log.format=json")
    return node.exporter(environment, *arguments)


@pytest.fixture
def exporter(
    request: pytest.FixtureRequest, node: Node, nvml: NvmlStandIn, mps: MpsStandIn
) -> Iterator[tuple[Exporter, DevicePlugin, int]]:
    """The exporter in its pod, with the device plugin's daemon and one client of another pod on the node.

    The machine of the test has a daemon too, which is not on the node.
    """
    mps.start()
    host_pid, resource = request.param
    plugin = DevicePlugin(node, resource, host_pid=host_pid)
    node.path(f"/var/log/pods/team-a_trainer-0_{POD}").mkdir()
    client = node.client()
    node.set_cgroup(client, CGROUP)
    plugin.mps.connect_and_wait(client if host_pid else 0)
    nvml.write([Device(processes=(Process(client),))])
    program = started(node, nvml)
    yield program, plugin, client
    program.stop()


def _assert_reported(program: Exporter, plugin: DevicePlugin, client: int) -> None:
    told = [labels for labels, _ in program.samples("cuda_mps_client_info", daemon=plugin.name)]
    assert [each["pid"] for each in told] == [str(client)]
    assert {key: told[0][key] for key in WHOSE} == WHOSE


@pytest.mark.parametrize(
    "exporter",
    [(True, "nvidia.com/gpu"), (False, "nvidia.com/gpu.shared")],
    ids=["hostPID", "own PIDs and a renamed resource"],
    indirect=True,
)
def test_a_client_has_its_pod_and_the_daemon_is_expected(
    exporter: tuple[Exporter, DevicePlugin, int],
) -> None:
    program, plugin, client = exporter

    program.shows(1, "cuda_mps_daemon_up", daemon=plugin.name)
    program.shows(1, "cuda_mps_daemon_info", pipe_directory=plugin.name, expected="true")
    eventually(lambda: _assert_reported(program, plugin, client))

    assert len(program.samples("cuda_mps_daemon_info")) == 1
    assert program.value("cuda_mps_workload_memory_used_bytes", workload_kind="pod", workload=POD)
    assert program.value("cuda_mps_exporter_history_writable") == 1
    ill = [labels["source"] for labels, up in program.samples("cuda_mps_exporter_source_up") if not up]
    assert ill == []
    assert not list(plugin.mps.pipe_directory.glob("pipe-*"))


def test_a_daemon_is_expected_only_while_the_device_plugin_declares_it(node: Node, nvml: NvmlStandIn) -> None:
    """The exporter starts first. No daemon is expected before the plugin starts one, or after it stopped it."""
    program = started(node, nvml)
    program.shows(1, "cuda_mps_exporter_source_up", source="finder")
    expected = program.samples("cuda_mps_daemon_info", expected="true")
    plugin = DevicePlugin(node, "nvidia.com/gpu.shared", host_pid=True)
    program.shows(1, "cuda_mps_daemon_info", daemon=plugin.name, expected="true")
    program.shows(1, "cuda_mps_daemon_up", daemon=plugin.name)

    node.kill(plugin.mps.pid)
    program.shows(0, "cuda_mps_daemon_up", daemon=plugin.name)
    assert program.value("cuda_mps_daemon_info", daemon=plugin.name, expected="true") == 1

    plugin.started.unlink()
    program.shows(1, "cuda_mps_daemon_info", daemon=plugin.name, expected="false")
    program.stop()
    assert expected == []
