"""Shares of GPUs that Kubernetes has allocated, compared with the pods that use the GPUs."""

from dataclasses import replace

import pytest

from exporter.model.node import CollectorName, Node
from exporter.model.observation import Observation, PodFound
from exporter.usage.allocation import AllocatedShares, ContainerName, PodName, allocation, claim_names
from tests.builders import (
    AT,
    CLAIM,
    CLIENT,
    GPU,
    HANGS,
    OTHER_GPU,
    POD,
    SHARED,
    allocated,
    at_work,
    claimed,
    gpu_reading,
    look,
    owned,
    pod_resources,
    process,
    reduced,
    shares,
)

OTHER_POD = "7d4f5c1e-2b8a-4a53-9f0e-6c1d2b3a4e5f"
TRAINER = shares("team-b", "trainer-0", f"{GPU}::1", f"{GPU}::2")


def in_pod(pid: int, uid: str = POD, at: float = AT) -> Observation:
    return process(pid, at=at, cgroup=f"0::/kubepods/burstable/pod{uid}/{'0' * 64}\n")


def of_gpu(node: Node, gpu: str = GPU, resource: str = SHARED) -> AllocatedShares:
    return allocation(node)[gpu][resource]


def test_counts_shares_of_pods_without_a_context() -> None:
    assert allocation(allocated()) == {
        GPU: {
            SHARED: AllocatedShares(
                allocatable=4,
                allocated=3,
                by_container={
                    ContainerName("team-a", "train-0", "main"): 1,
                    ContainerName("team-b", "trainer-0", "main"): 2,
                },
                unused=2,
                unused_by=(PodName("team-b", "trainer-0"),),
            )
        }
    }


def test_all_shares_are_used_once_each_pod_has_a_client() -> None:
    node = reduced(
        *at_work(CLIENT, CLIENT + 1),
        in_pod(CLIENT),
        in_pod(CLIENT + 1, OTHER_POD),
        gpu_reading([CLIENT, CLIENT + 1]),
        PodFound(at=AT, uid=POD, name="train-0", namespace="team-a"),
        PodFound(at=AT, uid=OTHER_POD, name="trainer-0", namespace="team-b"),
        pod_resources(TRAINER),
    ).node
    assert (of_gpu(node).unused, of_gpu(node).unused_by) == (0, ())


def test_a_process_that_bypasses_mps_uses_the_shares_of_its_pod() -> None:
    beside = [gpu_reading(beside=[700], at=AT + at) for at in (0, 2)]
    found = PodFound(at=AT + 2, uid=POD, name="trainer-0", namespace="team-b")
    node = reduced(*at_work(), *beside, in_pod(700, at=AT + 2), found, pod_resources(TRAINER)).node
    assert of_gpu(node).unused == 0


def test_a_pod_with_a_context_on_another_gpu_does_not_use_its_share() -> None:
    node = reduced(
        *at_work(CLIENT),
        in_pod(CLIENT),
        gpu_reading(),
        gpu_reading([CLIENT], gpu=OTHER_GPU, index=1),
        PodFound(at=AT, uid=POD, name="trainer-0", namespace="team-b"),
        pod_resources(TRAINER),
    ).node
    assert of_gpu(node).unused == 2


@pytest.mark.parametrize(
    "without",
    ["the name of a pod", "the process of a client", "the GPU's processes", "a reading of the GPU"],
)
def test_unused_shares_are_unknown_without(without: str) -> None:
    observations: dict[str, Observation] = {
        "the process of a client": in_pod(CLIENT),
        "the name of a pod": PodFound(at=AT, uid=POD, name="trainer-0", namespace="team-b"),
        "the GPU's processes": gpu_reading([CLIENT]),
    }
    present = [each for name, each in observations.items() if name != without]
    if without == "the GPU's processes":
        present.append(replace(gpu_reading(), compute_processes=None, mps_processes=None))
    if without == "a reading of the GPU":
        present += [look("nvml", at=AT + 20, problem=HANGS)]
    node = reduced(*at_work(CLIENT), *present, pod_resources(TRAINER, at=AT + 20)).node
    assert (of_gpu(node).allocated, of_gpu(node).unused, of_gpu(node).unused_by) == (2, None, None)


def test_a_client_outside_pods_uses_no_share() -> None:
    node = reduced(*at_work(CLIENT), process(CLIENT), gpu_reading([CLIENT]), pod_resources(TRAINER)).node
    assert of_gpu(node).unused == 2


def test_a_share_of_an_ended_pod_and_of_its_successor_counts_once() -> None:
    ended = shares("team-b", "ended", f"{GPU}::0")
    node = reduced(pod_resources(shares("team-a", "train-0", f"{GPU}::0"), ended), start=owned()).node
    found = of_gpu(node)
    assert (found.allocated, found.unused, found.unused_by) == (1, 0, ())
    assert sum(found.by_container.values()) == 2


def test_gke_names_gpus_by_index() -> None:
    gke = shares("team-b", "trainer-0", "nvidia1/vgpu0", "nvidia7/vgpu0", resource="nvidia.com/gpu")
    reading = replace(pod_resources(gke), allocatable={"nvidia.com/gpu": ("nvidia1/vgpu0", "nvidia1/vgpu1", "nvidia0")})
    node = reduced(reading, start=owned()).node
    assert {gpu: list(resources) for gpu, resources in allocation(node).items()} == {OTHER_GPU: ["nvidia.com/gpu"]}
    found = of_gpu(node, OTHER_GPU, "nvidia.com/gpu")
    assert (found.allocatable, found.allocated, found.unused) == (2, 1, 1)


def test_whole_gpus_and_other_devices_are_no_shares() -> None:
    devices = shares(
        "a", "b", GPU, "nvidia0", "garbage", f"{GPU}::x", "GPU-" + "0" * 8 + "-0000-0000-0000-000000000000::0"
    )
    reading = replace(pod_resources(devices), allocatable={SHARED: (GPU, "nvidia0", "\udcff")})
    assert allocation(reduced(reading, start=owned()).node) == {}


def test_old_data_are_not_current() -> None:
    node = allocated()
    assert allocation(replace(node, at=AT + 60)) != {}
    assert allocation(replace(node, at=AT + 61)) == {}
    assert claim_names(replace(node, at=AT + 61)) == {}


def test_data_from_before_a_failed_collection_are_not_current() -> None:
    failed = reduced(look(CollectorName.POD_RESOURCES, at=AT + 5, problem=HANGS), start=allocated()).node
    assert allocation(failed) == {}
    again = reduced(
        pod_resources(TRAINER, at=AT + 20), look(CollectorName.POD_RESOURCES, at=AT + 20), start=failed
    ).node
    assert of_gpu(again).allocated == 2


def test_claims_have_names_by_uid() -> None:
    assert claim_names(reduced(pod_resources(claims=[claimed()])).node) == {CLAIM: ("team-c", "shared-gpu")}
    assert claim_names(reduced().node) == {}
