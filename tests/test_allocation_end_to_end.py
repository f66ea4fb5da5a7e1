"""The program on a node of Kubernetes: stand-ins for MPS and NVML, a kubelet, and real processes in cgroups of pods."""

import time
from collections.abc import Container, Iterator
from pathlib import Path

import pytest

from tests.builders import CLAIM, POD, SHARED
from tests.collectors.test_discovery import claim as claim_directory
from tests.conftest import Starter
from tests.exporter_process import FAST, GPU, Exporter, Serve
from tests.kubelet import Kubelet, claim, kubelet, pod
from tests.standin.mps import MpsStandIn
from tests.standin.nvml import MEBIBYTE, Device, NvmlStandIn, Process


@pytest.fixture
def serving() -> Iterator[Kubelet]:
    with kubelet() as running:
        yield running


def procfs(root: Path, pid: int, uid: str, others: Container[int]) -> Path:
    """Return a copy of /proc of links, in which a process is in the cgroup of a pod.

    Of the other processes, it has only `others`: the machine may run other daemons.
    """
    root.mkdir()
    for each in Path("/proc").iterdir():
        if not each.name.isdigit() or int(each.name) in others:
            (root / each.name).symlink_to(each)
    (root / str(pid)).mkdir()
    for each in Path(f"/proc/{pid}").iterdir():
        (root / str(pid) / each.name).symlink_to(each)
    (root / str(pid) / "cgroup").unlink()
    (root / str(pid) / "cgroup").write_text(f"0::/kubepods/burstable/pod{uid}/{'0' * 64}\n")
    return root


@pytest.fixture
def node(
    mps: MpsStandIn, nvml: NvmlStandIn, serve: Serve, start: Starter, serving: Kubelet, tmp_path: Path
) -> Exporter:
    """An exporter on a node whose only client is in the pod team-a/trainer-0."""
    mps.start()
    client = start().pid
    mps.connect_and_wait(client)
    assert mps.server_pid is not None
    server = Process(mps.server_pid, 66 * MEBIBYTE, in_mps_list=False)
    nvml.write([Device(processes=(server, Process(client)))])
    (tmp_path / "pods" / f"team-a_trainer-0_{POD}").mkdir(parents=True)
    # The path of pytest is too long for the name of a daemon.
    short = serving.socket.parent
    claim_directory(short, started_at=time.time())
    overrides = {
        **FAST,
        "procfs": procfs(tmp_path / "proc", client, POD, (mps.pid, mps.server_pid)),
        "pods": tmp_path / "pods",
        "pod_resources": serving.socket,
        "discovery": True,
        "pipe_directories": [str(short / "mps" / "*" / "pipe")],
        "gke_config": tmp_path / "gpu_config.json",
    }
    return serve(overrides=overrides)


@pytest.mark.systems
def test_reports_shares_and_claims_of_a_kubelet_that_has_recovered(
    serving: Kubelet, request: pytest.FixtureRequest
) -> None:
    """A kubelet that refuses costs only its own families."""
    serving.listed = b"garbage"
    exporter: Exporter = request.getfixturevalue("node")
    exporter.shows(0, "cuda_mps_exporter_source_up", source="pod_resources")
    exporter.shows(1, "cuda_mps_client_info", client_pod="trainer-0", client_namespace="team-a")
    assert exporter.samples("cuda_mps_gpu_allocated_shares") == []

    device = f"k8s.gpu.nvidia.com/claim={CLAIM}-gpu-0"
    serving.allocate(pod("team-c", "notebook", {}, claim("shared-gpu", "team-c", device)))
    names = {"claim_uid": CLAIM, "claim_namespace": "team-c", "claim_name": "shared-gpu"}
    exporter.shows(1, "cuda_mps_daemon_claim_info", **names)
    assert exporter.samples("cuda_mps_gpu_allocatable_shares") == []

    forms = {SHARED: f"{GPU}::{{}}", "nvidia.com/gpu": "nvidia0/vgpu{}"}
    """The device plugins of NVIDIA and of GKE."""
    serving.allocate(
        pod("team-a", "trainer-0", {name: [form.format(0)] for name, form in forms.items()}),
        pod("team-b", "notebook", {name: [form.format(1), form.format(2)] for name, form in forms.items()}),
        allocatable={name: [form.format(number) for number in range(10)] for name, form in forms.items()},
    )
    for resource in forms:
        exporter.shows(2, "cuda_mps_gpu_unused_shares", gpu=GPU, resource=resource)
        assert exporter.value("cuda_mps_gpu_allocatable_shares", gpu=GPU, resource=resource) == 10
        assert exporter.value("cuda_mps_gpu_allocated_shares", gpu=GPU, resource=resource) == 3
        containers = {
            (labels["client_namespace"], labels["client_pod"], labels["client_container_name"]): value
            for labels, value in exporter.samples("cuda_mps_container_allocated_shares", gpu=GPU, resource=resource)
        }
        assert containers == {("team-a", "trainer-0", "main"): 1, ("team-b", "notebook", "main"): 2}
    assert exporter.value("cuda_mps_exporter_source_up", source="pod_resources") == 1
