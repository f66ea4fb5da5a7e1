"""The maximum number of clients of a server, by the GPUs and the version of MPS."""

from dataclasses import replace
from itertools import product

import pytest

from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.settings import MAX_CONNECTIONS
from exporter.state.devices import gpus_by_ordinal, serves_gpu
from exporter.state.limits import clients_limit
from tests.builders import (
    AT,
    DAEMON,
    GPU,
    OTHER_GPU,
    SERVER,
    at_work,
    clients,
    control_log,
    failure,
    gpu_reading,
    look,
    process,
    reduced,
    reply,
    server_log,
)

CAPABILITIES = ("6.0", "6.1", "7.0", "7.2", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")

VERSIONS = {
    **dict.fromkeys((11040, 11060, 12000, 12020, 12040, 12080, 12090, 13000), 48),
    **dict.fromkeys((13010, 13020, 13030, 13040), 60),
    **dict.fromkeys((13050, 13060, 14000), None),
}
"""Client contexts per device from Volta on, by the CUDA version of the drivers R470 to R615, and of later ones."""

DEVICES = "Device Ordinal,PCI ID,UUID,Name\n"


def limit(*seen: Observation) -> int | None:
    return limit_of(reduced(*at_work(), *seen).node)


def limit_of(present: Node) -> int | None:
    daemon = present.daemons[DAEMON]
    return clients_limit(present, daemon, daemon.servers[SERVER])


def test_limit_depends_on_compute_capability_and_version(subtests: pytest.Subtests) -> None:
    for capability, version, places in [
        ("3.5", "9000", 16),
        ("6.1", "12040", 16),
        ("6.1", "13010", 16),
        ("7.0", "12040", 48),
        ("9.0", "13000", 48),
        ("7.5", "13010", 60),
        ("9.0", "13010", 60),
        ("12.0", "13040", 60),
        ("9.0", "13050", None),
        ("9.0", "14000", None),
        (None, "13000", None),
        ("?", "13000", None),
    ]:
        with subtests.test(capability=capability, version=version, places=places):
            line = control_log(f"CUDA MPS Control binary version: {version}")
            assert limit(*line, gpu_reading(compute_capability=capability)) == places


def test_the_drivers_cuda_version_replaces_an_unknown_version_of_the_daemon(subtests: pytest.Subtests) -> None:
    for cuda, places in [
        ("12.4", 48),
        ("13.0", 48),
        ("13.1", 60),
        ("13.4", 60),
        ("13.5", None),
        (None, None),
        ("13", None),
        ("²", None),
    ]:
        with subtests.test(cuda=cuda, places=places):
            present = reduced(*at_work(), gpu_reading(cuda_version=cuda)).node
            daemon = replace(present.daemons[DAEMON], runtime=replace(present.daemons[DAEMON].runtime, version=None))
            assert limit_of(replace(present, daemons={DAEMON: daemon})) == places


def test_limit_is_unknown_without_a_gpu() -> None:
    assert limit() is None


def test_limit_is_unknown_if_one_gpu_is_unknown() -> None:
    assert limit(gpu_reading(), gpu_reading(gpu=OTHER_GPU, index=1, compute_capability=None)) is None
    assert limit(gpu_reading(), gpu_reading(gpu=OTHER_GPU, index=1, compute_capability="8.0")) == 48


@pytest.mark.parametrize("visible", [None, "1,0", f"{OTHER_GPU},{GPU}"])
def test_gpus_before_volta_are_ignored_beside_later_ones(visible: str | None) -> None:
    """The control daemon filters them out (NVIDIA's MPS guide, CUDA_VISIBLE_DEVICES)."""
    old = gpu_reading(gpu=OTHER_GPU, index=1, compute_capability="6.1")
    present = with_visible(visible, reduced(*at_work(), gpu_reading(), old).node)
    daemon = present.daemons[DAEMON]
    assert limit_of(present) == 48
    assert [serves_gpu(present, daemon, present.gpus[each].reading) for each in (GPU, OTHER_GPU)] == [True, False]
    assert gpus_by_ordinal(present, daemon) == ({} if visible is None else {0: GPU})


def test_gpus_before_volta_are_served_if_no_later_one_is_visible() -> None:
    old = gpu_reading(gpu=OTHER_GPU, index=1, compute_capability="6.1")
    present = with_visible("1", reduced(*at_work(), gpu_reading(), old).node)
    assert limit_of(present) == 16
    assert gpus_by_ordinal(present, present.daemons[DAEMON]) == {0: OTHER_GPU}


def with_visible(visible: str | None, present: Node) -> Node:
    """Return the node with a daemon that has no list of its devices, but this CUDA_VISIBLE_DEVICES."""
    daemon = present.daemons[DAEMON]
    runtime = replace(daemon.runtime, devices={}, visible_devices=visible)
    return replace(present, daemons={DAEMON: replace(daemon, runtime=runtime)})


def test_limit_is_right_or_unknown_for_all_architectures_and_versions(subtests: pytest.Subtests) -> None:
    for capability, (version, places) in product(CAPABILITIES, VERSIONS.items()):
        with subtests.test(capability=capability, version=version, places=places):
            line = control_log(f"CUDA MPS Control binary version: {version}")
            expected = 16 if capability.startswith("6.") else places
            assert limit(*line, gpu_reading(compute_capability=capability)) == expected


def test_only_the_gpus_of_the_daemon_matter() -> None:
    answer = reply("device_query --csv", f"{DEVICES}0,00000000:00:06.0,{GPU},NVIDIA H200\n")
    present = reduced(*at_work(), answer, gpu_reading(), gpu_reading(gpu=OTHER_GPU, index=1, compute_capability="6.1"))
    assert present.daemon.runtime.devices == {0: GPU}
    assert limit_of(present.node) == 48


def test_the_server_and_the_configuration_have_precedence_over_the_guide() -> None:
    line = server_log("Failed to accept new client. Maximum number of clients (20) reached.")
    full = (clients(*range(1000, 1020)), *line)
    assert limit(*full, gpu_reading(compute_capability=None)) == 20
    present = reduced(*at_work(), *full, gpu_reading()).node
    daemon = replace(present.daemons[DAEMON], declared=replace(present.daemons[DAEMON].declared, clients_limit=12))
    assert limit_of(replace(present, daemons={DAEMON: daemon})) == 12


def test_a_failed_reading_does_not_change_the_limit() -> None:
    """The compute capability of a GPU does not change."""
    assert limit(gpu_reading(), look(at=AT + 60, problem=failure("timeout"))) == 48


def test_limit_is_unknown_if_a_client_requests_more_work_queues(subtests: pytest.Subtests) -> None:
    """All clients share a pool of work queues (NVIDIA's MPS guide, CUDA_DEVICE_MAX_CONNECTIONS)."""
    for queues, places in [(None, 48), ("1", 48), ("2", 48), ("8", None), ("32", None), ("", None), ("x", None)]:
        with subtests.test(queues=queues, places=places):
            environment = {} if queues is None else {MAX_CONNECTIONS: queues}
            line = control_log("CUDA MPS Control binary version: 13000")
            assert limit(*line, gpu_reading(), clients(1000), process(1000, environment=environment)) == places
