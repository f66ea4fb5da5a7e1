"""Pods: names from log directories, the kubelet, and processes of jobs and pods."""

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from exporter.clock import SystemClock
from exporter.collectors import pod_resources, pod_resources_pb2
from exporter.collectors.pod_resources import PodResources
from exporter.collectors.processes import MAX_DIRECTORIES, Pods
from exporter.model.identity import ContainerClaim, ContainerDevices, PodResourcesReading
from exporter.model.observation import PodFound
from exporter.model.reason import ReasonCode
from exporter.parse.cgroup import parse_pod_directory
from tests.builders import AT, GPU, POD, denied
from tests.kubelet import Kubelet, claim, kubelet, pod

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
    monkeypatch.setattr("exporter.collectors.processes.MAX_DIRECTORIES", 3)
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


# -- PodResources ----------------------------------------------------------------------------------------------------


SHARED = "nvidia.com/gpu.shared"
CDI = "k8s.gpu.nvidia.com/claim=7d4f5c1e-2b8a-4a53-9f0e-6c1d2b3a4e5f-gpu-0"


@pytest.fixture
def serving() -> Iterator[Kubelet]:
    with kubelet() as running:
        yield running


def collector(path: Path) -> PodResources:
    return PodResources(path, SystemClock())


def code(path: Path) -> ReasonCode | None:
    reading = collector(path).collect()
    assert reading.observations == () or reading.problem is None
    return None if reading.problem is None else reading.problem.code


def test_returns_devices_claims_and_allocatable_devices(serving: Kubelet) -> None:
    serving.allocate(
        pod("team-a", "trainer-0", {SHARED: [f"{GPU}::0", f"{GPU}::3"]}, container="train"),
        pod("team-b", "notebook", {}, claim("shared-gpu", "team-b", CDI)),
        pod("team-b", "idle", {}),
        allocatable={SHARED: [f"{GPU}::{number}" for number in range(4)]},
    )
    (reading,) = collector(serving.socket).collect().observations
    assert isinstance(reading, PodResourcesReading)
    assert replace(reading, at=AT) == PodResourcesReading(
        at=AT,
        devices=(
            ContainerDevices(
                namespace="team-a",
                pod="trainer-0",
                container="train",
                resource=SHARED,
                ids=(f"{GPU}::0", f"{GPU}::3"),
            ),
        ),
        claims=(
            ContainerClaim(
                namespace="team-b",
                pod="notebook",
                container="main",
                claim="shared-gpu",
                claim_namespace="team-b",
                devices=(CDI,),
            ),
        ),
        allocatable={SHARED: tuple(f"{GPU}::{number}" for number in range(4))},
    )


def test_opens_a_connection_for_each_collection(serving: Kubelet) -> None:
    """A restarted kubelet has a new socket."""
    source = collector(serving.socket)
    for _ in range(3):
        assert source.collect().problem is None
    assert serving.asked == ["List", "GetAllocatableResources"] * 3


def test_a_node_without_kubelet_has_no_problem_and_imports_no_grpc(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from exporter.clock import SystemClock;"
        "from exporter.collectors.pod_resources import PodResources;"
        f"print(PodResources(Path({str(tmp_path / 'none')!r}), SystemClock()).collect());"
        "print('grpc' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    reading, imported = done.stdout.splitlines()
    assert reading == "Reading(observations=(), problem=None, more=False, idle=False)"
    assert imported == "False"


def test_a_socket_that_it_may_not_use_is_no_problem(serving: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an exporter that is not root, on the host."""
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert code(serving.socket) is None
    assert serving.asked == []


def test_reports_a_missing_package(serving: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    problem = collector(serving.socket).collect().problem
    assert problem is not None
    assert (problem.code, problem.parameters.get("subject")) == (ReasonCode.PACKAGE_MISSING, "grpc")


def test_reports_a_kubelet_that_accepts_and_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_resources, "DEADLINE_SECONDS", 0.3)
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("hung.sock")
        listener.listen(8)
        assert code(Path("hung.sock")) is ReasonCode.TIMEOUT


def test_reports_a_kubelet_that_hangs_in_its_second_answer(serving: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both calls have one deadline: the second would have enough time by itself."""
    monkeypatch.setattr(pod_resources, "DEADLINE_SECONDS", 2.0)
    answer, delays = serving.answer, iter((0.5, 1.7))
    monkeypatch.setattr(serving, "answer", lambda *call: time.sleep(next(delays)) or answer(*call))
    problem = collector(serving.socket).collect().problem
    assert problem is not None
    assert (problem.code, problem.parameters.get("subject")) == (ReasonCode.TIMEOUT, "GetAllocatableResources")


def test_reports_a_socket_without_a_listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("left.sock")
    assert code(Path("left.sock")) is ReasonCode.CALL_FAILED


def test_recovers_from_a_failure_at_the_next_collection(serving: Kubelet) -> None:
    source = collector(serving.socket)
    serving.listed = grpc.StatusCode.UNAVAILABLE
    assert source.collect().problem is not None
    serving.allocate()
    assert source.collect().problem is None


@pytest.mark.parametrize(
    "answer",
    [b"garbage", b"\x0a\x05\x0a\x03\xff\xfe\xfd", grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNKNOWN],
    ids=["garbage", "invalid UTF-8", "unimplemented", "unknown"],
)
@pytest.mark.parametrize("method", ["listed", "allocatable"])
def test_reports_an_answer_that_it_cannot_use(
    serving: Kubelet, method: str, answer: object, capfd: pytest.CaptureFixture[str]
) -> None:
    setattr(serving, method, answer)
    assert code(serving.socket) is ReasonCode.CALL_FAILED
    assert capfd.readouterr().err == ""


def test_reports_another_service(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert code(tmp_path / "file") is ReasonCode.CALL_FAILED


@pytest.mark.parametrize(
    "too_large",
    [
        pod("a", "b", {SHARED: ["x" * 513]}),
        pod("a" * 513, "b", {SHARED: ["x"]}),
        pod("a", "b", {SHARED: ["x"] * 32768}),
        pod("a", "b", {}, *[claim("c", "d", "e")] * 8192),
        pod("a", "b", {SHARED: ["x" * 512] * 33000}),
    ],
    ids=["id", "name", "many ids", "many claims", "many bytes"],
)
def test_refuses_an_answer_beyond_its_limits(serving: Kubelet, too_large: object) -> None:
    serving.allocate(too_large)
    assert code(serving.socket) is ReasonCode.ANSWER_TOO_LARGE


def test_refuses_too_many_containers_and_reads_as_many_as_permitted(serving: Kubelet) -> None:
    each = pod("a", "b", {SHARED: ["x"]})
    serving.allocate(*[each] * 2048)
    (reading,) = collector(serving.socket).collect().observations
    assert isinstance(reading, PodResourcesReading)
    assert len(reading.devices) == 2048
    serving.allocate(*[each] * 2049)
    assert code(serving.socket) is ReasonCode.ANSWER_TOO_LARGE


def test_generated_code_is_that_of_the_proto_file(tmp_path: Path) -> None:
    """The descriptors are compared: the text differs between versions of the compiler."""
    protoc = pytest.importorskip("grpc_tools.protoc")
    folder = Path(pod_resources.__file__).parent
    assert protoc.main(["", f"-I{folder}", f"--python_out={tmp_path}", "pod_resources.proto"]) == 0
    script = "import pod_resources_pb2; print(pod_resources_pb2.DESCRIPTOR.serialized_pb.hex())"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert bytes.fromhex(done.stdout) == pod_resources_pb2.DESCRIPTOR.serialized_pb


def test_reports_a_socket_that_disappears_after_an_answer(serving: Kubelet, tmp_path: Path) -> None:
    """The shares of GPUs are unknown then, and not absent because the node has no kubelet."""
    socket = tmp_path / "kubelet.sock"
    socket.symlink_to(serving.socket)
    kubelet = collector(socket)
    assert kubelet.collect().problem is None
    socket.unlink()
    problem = kubelet.collect().problem
    assert problem is not None
    assert (problem.code, problem.parameters.get("subject")) == (ReasonCode.NOT_FOUND, str(socket))
    socket.symlink_to(serving.socket)
    assert kubelet.collect().problem is None
