"""Daemons that the node's MPS installation declares, in the layouts of each installation."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.collectors.declarations import STARTUP_LOG, Declarations
from exporter.collectors.pipe_dir import DaemonLocation, on_host
from exporter.model.daemon import NamedBy
from tests.tools import not_here

CLAIM = "0b4a3c5e-7f1d-4d0c-9a53-2f6b1c8e9d10"
BOOTED_AT = 1_700_000_000
NOBODY = 65534


@pytest.fixture
def node(tmp_path: Path) -> Callable[[], Declarations]:
    """The file system of a node that has booted."""
    (tmp_path / "stat").write_text(f"cpu 1 2 3\nbtime {BOOTED_AT}\nprocesses 7\n")

    def matches() -> list[DaemonLocation]:
        return [on_host(str(each), each, each) for each in sorted(tmp_path.glob("mps/**/pipe"))]

    return lambda: Declarations(matches, procfs=tmp_path, gke_config=tmp_path / "gpu_config.json")


def names(declarations: Declarations) -> list[tuple[str, str]]:
    """Return the sources and directories of the declared daemons."""
    return [(by, Path(name).parent.name) for name, (by, _) in declarations.read()[0].items()]


def claim(tmp_path: Path, *, started_at: float | None = BOOTED_AT + 60.0, uid: str = CLAIM) -> Path:
    """Create the directories of a claim as the DRA driver does, and the file of its pod after the daemon's start."""
    directory = tmp_path / "mps" / f"{uid}-0a1b2"
    for name in ("pipe", "log", "shm"):
        (directory / name).mkdir(parents=True)
    if started_at is not None:
        (directory / STARTUP_LOG).write_text("startup complete\n")
        os.utime(directory / STARTUP_LOG, (started_at, started_at))
    return directory


def test_several_resources_of_the_device_plugin_are_declared(node: Callable[[], Declarations], tmp_path: Path) -> None:
    """A node with a renamed and another resource, of which one is not shared by MPS."""
    for resource, started in (("gpu.shared", True), ("mig-1g.10gb.shared", True), ("gpu", False)):
        directory = tmp_path / "mps" / "nvidia.com" / resource
        (directory / "pipe").mkdir(parents=True)
        if started:
            (directory / ".started").touch()
    (tmp_path / "mps" / ".ready").touch()
    assert names(node()) == [("device_plugin", "gpu.shared"), ("device_plugin", "mig-1g.10gb.shared")]


@pytest.mark.parametrize("resource", ["gpu", "nvidia.com/gpu"])
def test_a_daemon_that_the_device_plugin_could_not_stop_is_withdrawn(
    node: Callable[[], Declarations], tmp_path: Path, resource: str
) -> None:
    """The plugin leaves `.started` if the daemon was dead, but always removes `.ready`, and creates it again later."""
    (tmp_path / "mps" / resource / "pipe").mkdir(parents=True)
    (tmp_path / "mps" / resource / ".started").touch()
    ready = tmp_path / "mps" / ".ready"
    ready.touch()
    declarations = node()
    assert names(declarations) == [("device_plugin", "gpu")]

    ready.unlink()
    declared, withdrawn = declarations.read()
    assert (dict(declared), [by for by, _ in withdrawn.values()]) == ({}, [NamedBy.DEVICE_PLUGIN])
    assert names(node()) == []

    ready.touch()
    assert names(declarations) == [("device_plugin", "gpu")]


def test_a_claim_is_declared_from_the_start_of_its_daemon_to_its_end(
    node: Callable[[], Declarations], tmp_path: Path
) -> None:
    """A new container of the pod removes the file, and may then fail."""
    declarations = node()
    directory = claim(tmp_path, started_at=None)
    assert names(declarations) == []

    (directory / STARTUP_LOG).write_text("startup complete\n")
    assert names(declarations) == [("dra", directory.name)]

    (directory / STARTUP_LOG).unlink()
    assert names(declarations) == [("dra", directory.name)]

    for name in ("pipe", "log", "shm"):
        (directory / name).rmdir()
    declared, withdrawn = declarations.read()
    assert (dict(declared), [by for by, _ in withdrawn.values()]) == ({}, [NamedBy.DRA])


def test_a_claim_from_before_the_boot_is_not_declared(node: Callable[[], Declarations], tmp_path: Path) -> None:
    """Its pod has not started again yet."""
    claim(tmp_path, started_at=BOOTED_AT - 60.0)
    assert names(node()) == []


def test_other_directories_below_the_plugin_are_no_claims(node: Callable[[], Declarations], tmp_path: Path) -> None:
    claim(tmp_path, uid="not-a-uid")
    assert names(node()) == []


def test_another_user_cannot_declare_a_claim(node: Callable[[], Declarations], tmp_path: Path) -> None:
    if os.geteuid() != 0:
        not_here("this needs two users")
    os.chown(claim(tmp_path) / STARTUP_LOG, NOBODY, NOBODY)
    assert names(node()) == []


@pytest.mark.parametrize(
    ("configuration", "declared"),
    [
        ({"GPUSharingConfig": {"GPUSharingStrategy": "mps", "MaxSharedClientsPerGPU": 48}}, True),
        ({"GPUSharingConfig": {"GPUSharingStrategy": "time-sharing", "MaxSharedClientsPerGPU": 48}}, False),
        ({"GPUPartitionSize": "1g.5gb"}, False),
        ({"GPUSharingConfig": None}, False),
        ([], False),
        (None, False),
    ],
)
def test_gke_declares_the_default_directory_if_it_shares_gpus_with_mps(
    node: Callable[[], Declarations], tmp_path: Path, configuration: object, declared: bool
) -> None:
    """Whether or not the directory exists."""
    if configuration is not None:
        (tmp_path / "gpu_config.json").write_text(json.dumps(configuration))
    expected = [(NamedBy.GKE, "/tmp/nvidia-mps", "/var/log/nvidia-mps")] if declared else []
    found = node().read()[0].values()
    assert [(by, str(each.pipe.path), str(each.log.path)) for by, each in found] == expected


def test_a_broken_configuration_of_gke_declares_nothing(node: Callable[[], Declarations], tmp_path: Path) -> None:
    (tmp_path / "gpu_config.json").write_text("[" * 60_000)
    assert names(node()) == []
