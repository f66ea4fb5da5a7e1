"""Names of pods, from their log directories."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors.pods import Pods
from exporter.collectors.workload_processes import MAX_DIRECTORIES
from exporter.model.observation import PodFound
from exporter.parse.cgroup import parse_pod_directory
from tests.builders import AT, POD, denied

STATIC = "712b37831be464ccc2fb1553ef89aa91"


def pods(directory: Path, *watched: str) -> Pods:
    source = Pods(directory, clock=SystemClock())
    source.watch(frozenset(watched))
    return source


def test_returns_the_names_of_watched_pods(tmp_path: Path) -> None:
    for name in (f"team-a_train-0.gpu_{POD}", f"kube-system_etcd-node1_{STATIC}", f"default_other_{'1' * 32}"):
        (tmp_path / name).mkdir()
    reading = pods(tmp_path, POD, STATIC).collect()
    assert reading.problem is None
    assert [replace(each, at=AT) for each in reading.observations] == [
        PodFound(at=AT, uid=STATIC, name="etcd-node1", namespace="kube-system"),
        PodFound(at=AT, uid=POD, name="train-0.gpu", namespace="team-a"),
    ]


def test_finds_a_pod_at_each_collection_once_its_directory_exists(tmp_path: Path) -> None:
    source = pods(tmp_path, POD)
    assert source.collect().observations == ()
    (tmp_path / f"team-a_train-0_{POD}").mkdir()
    assert len(source.collect().observations) == len(source.collect().observations) == 1


def test_a_node_without_kubernetes_has_no_problem(tmp_path: Path) -> None:
    reading = pods(tmp_path / "pods", POD).collect()
    assert (reading.observations, reading.problem) == ((), None)


def test_reports_a_directory_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    assert pods(tmp_path, POD).collect().problem == denied(tmp_path)


def test_reads_nothing_without_watched_pods(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert pods(tmp_path / "loop").collect().problem is None
    assert pods(tmp_path / "loop", POD).collect().problem is not None


def test_limits_the_number_of_directory_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.collectors.pods.MAX_DIRECTORIES", 3)
    uids = [f"{number:032x}" for number in range(5)]
    for uid in uids:
        (tmp_path / f"default_many_{uid}").mkdir()
    assert len(pods(tmp_path, *uids).collect().observations) == 3
    assert MAX_DIRECTORIES >= 1024


def test_rejects_directories_with_other_names(subtests: pytest.Subtests) -> None:
    for directory in [
        "",
        "__",
        POD,
        f"train-0_{POD}",
        f"a_b_c_{POD}",
        f"_train-0_{POD}",
        f"team-a__{POD}",
        f"Team_train-0_{POD}",
        f"team.a_train-0_{POD}",
        f"-a_train-0_{POD}",
        f"team-a_train-0-_{POD}",
        f"team-a_train..0_{POD}",
        f'team-a_x"}} 1\n_{POD}',
        f"team-ä_train-0_{POD}",
        f"team-a_{'x' * 64}_{POD}",
        f"team-a_{'.'.join(['x'] * 130)}_{POD}",
        f"team-a_train-0_{POD.upper()}",
        f"team-a_train-0_{POD}0",
        f"team-a_train-0_{POD}\n",
        "team-a_train-0_../../etc",
    ]:
        with subtests.test(directory=directory):
            assert parse_pod_directory(directory) is None
