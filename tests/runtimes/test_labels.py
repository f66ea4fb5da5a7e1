"""Clients in real containers and Slurm jobs have the labels of their container, pod or job."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.exporter_process import Exporter, Serve
from tests.runtimes.programs import CGROUPS, Containerd, Place, Podman, Slurm
from tests.standin.mps import MpsStandIn
from tests.tools import not_here

pytestmark = [pytest.mark.systems, pytest.mark.timeout(180)]

POD = "6f9a2c1e-1b5d-4c57-9b0e-3d0f5a7c2b11"
SLICES = "/kubepods.slice/kubepods-besteffort.slice"
POD_CGROUP = f"{SLICES}/kubepods-besteffort-pod{POD.replace('-', '_')}.slice/cri-containerd-ID.scope"


@pytest.fixture
def place() -> Iterator[Place]:
    """Namespaces with a directory whose path is short enough for sockets."""
    if os.geteuid() != 0:
        not_here("only root can start containers and jobs")
    with tempfile.TemporaryDirectory(prefix="rt") as directory, Place(Path(directory)) as place:
        yield place


@pytest.fixture
def exporter(mps: MpsStandIn, serve: Serve) -> Exporter:
    """An exporter, with a daemon."""
    mps.start()
    return serve(fast=True)


def assert_labels(exporter: Exporter, pid: int, **expected: str) -> None:
    """Wait until a client has exactly these labels that name its workload."""
    names = ("client_container", "client_pod_uid", "job_manager", "job_id", "task")

    def labelled() -> None:
        found = [labels for labels, _ in exporter.samples("cuda_mps_client_info", pid=str(pid))]
        assert [{name: each[name] for name in names if each[name]} for each in found] == [expected]

    eventually(labelled)


def test_containers_of_podman(place: Place, exporter: Exporter, mps: MpsStandIn) -> None:
    podman = Podman(place)
    found = dict(podman.start() for _ in range(2))
    for pid in found.values():
        mps.connect_and_wait(pid)
    for container, pid in found.items():
        assert_labels(exporter, pid, client_container=container)

    ended = next(iter(found))
    podman.remove(ended)
    exporter.shows(None, "cuda_mps_client_info", client_container=ended)


def test_tasks_of_containerd(place: Place, exporter: Exporter, mps: MpsStandIn) -> None:
    """One as the kubelet has them, and two as nerdctl has them."""
    containerd = Containerd(place)
    in_pod, pid_in_pod = containerd.start("k8s.io", POD_CGROUP)
    alone = dict(containerd.start("default", "/default/ID") for _ in range(2))
    for pid in (pid_in_pod, *alone.values()):
        mps.connect_and_wait(pid)
    assert_labels(exporter, pid_in_pod, client_container=in_pod, client_pod_uid=POD)
    for container, pid in alone.items():
        assert_labels(exporter, pid, client_container=container)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_jobs_of_slurm(place: Place, exporter: Exporter, mps: MpsStandIn, version: str) -> None:
    """Two of one user at the same time, of which one ends."""
    if version == "v1" and not (CGROUPS / "freezer").is_dir():
        not_here("the machine has no cgroups of version 1")
    slurm = Slurm(place, version)
    jobs = dict(slurm.submit() for _ in range(2))
    for pid in jobs.values():
        mps.connect_and_wait(pid)
    for job, pid in jobs.items():
        assert_labels(exporter, pid, job_manager="slurm", job_id=job)
    assert exporter.value("cuda_mps_workload_clients", workload_kind="job") == 2

    ended, other = jobs
    slurm.cancel(ended)
    exporter.shows(None, "cuda_mps_client_info", job_id=ended)
    assert exporter.value("cuda_mps_client_info", job_id=other) == 1


def test_a_job_that_slurm_names_by_its_sluid(place: Place, exporter: Exporter, mps: MpsStandIn) -> None:
    """The number is in the title of a real slurmstepd. Its directory is the one of Slurm 26.05, made by hand."""
    slurm = Slurm(place, "v2")
    jobs = dict(slurm.submit() for _ in range(2))
    for job in jobs:
        slurm.move_to_sluid(job)
    for job, pid in jobs.items():
        mps.connect_and_wait(pid)
        assert_labels(exporter, pid, job_manager="slurm", job_id=job)
