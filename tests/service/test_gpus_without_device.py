"""NVML cannot be read: the problem is another one if only the exporter's container has no GPUs, and none on GKE."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter import app
from exporter.app import Assembly
from exporter.clock import SystemClock
from exporter.collectors.thread import Inbox, Reading
from exporter.config.settings import Config
from exporter.model.reason import Reason, ReasonCode
from tests import program

PROBLEM = Reason(ReasonCode.DRIVER_NOT_LOADED, detail="Driver Not Loaded")


class Nvml:
    """One that cannot be read, or can."""

    def __init__(self, problem: Reason | None) -> None:
        self._problem = problem

    def collect(self) -> Reading:
        """Say so."""
        return Reading(problem=self._problem)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Assembly]:
    """The collectors of a machine whose root is below `tmp_path`, in a container that has no device files."""
    monkeypatch.setattr(app, "NVIDIA_DEVICE", tmp_path / "dev" / "nvidiactl")
    constants = program.constants({"procfs": tmp_path / "proc", "gke_config": tmp_path / "gpu_config.json"})
    with contextlib.closing(Assembly(Config(constants=constants), SystemClock(), Inbox())) as collectors:
        yield collectors


def problem_of(made: Assembly, problem: Reason | None = PROBLEM) -> Reason | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "nvml", Nvml(problem))
        return made.collect_gpus().problem


def test_names_the_cause_if_only_the_container_has_no_gpus(made: Assembly, tmp_path: Path) -> None:
    """The first process of the node has the device file. On GKE, that is no problem."""
    assert problem_of(made, None) is None
    assert problem_of(made) == PROBLEM, "a machine without the driver"

    on_the_node = tmp_path / "proc" / "1" / "root" / app.NVIDIA_DEVICE.relative_to("/")
    on_the_node.parent.mkdir(parents=True)
    on_the_node.touch()
    assert problem_of(made) == Reason(ReasonCode.CONTAINER_WITHOUT_GPUS, detail=PROBLEM.parameters["detail"])
    of_xids = Reading(problem=Reason(ReasonCode.DRIVER_NOT_OPEN))
    assert made.explained(of_xids) == of_xids, "it names the problem of NVML"
    (tmp_path / "gpu_config.json").write_text("{}")
    assert problem_of(made) is None
    assert made.explained(of_xids).problem is None

    (tmp_path / "gpu_config.json").unlink()
    app.NVIDIA_DEVICE.parent.mkdir()
    app.NVIDIA_DEVICE.touch()
    assert problem_of(made) == PROBLEM, "the container has the device"
