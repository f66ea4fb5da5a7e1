"""Families of shares that Kubernetes has allocated, and of resource claims."""

import pytest

from exporter.metrics import gpus
from exporter.metrics.catalogue import CATALOGUE
from exporter.model.node import Node
from exporter.model.values import replace
from exporter.view import View
from tests.builders import AT, CLAIM, GPU, SHARED, allocated, owned, pod_resources, reduced, shares

FAMILIES = {family.name: family for family in CATALOGUE}


def series(name: str, node: Node) -> dict[tuple[str, ...], float]:
    return dict(FAMILIES[name].samples(View(node)))


def test_a_gpu_has_its_shares_by_resource() -> None:
    node = allocated()
    assert series("cuda_mps_gpu_allocatable_shares", node) == {(GPU, SHARED): 4}
    assert series("cuda_mps_gpu_allocated_shares", node) == {(GPU, SHARED): 3}
    assert series("cuda_mps_gpu_unused_shares", node) == {(GPU, SHARED): 2}
    assert series("cuda_mps_container_allocated_shares", node) == {
        (GPU, SHARED, "team-a", "train-0", "main"): 1,
        (GPU, SHARED, "team-b", "trainer-0", "main"): 2,
    }


def test_a_gpu_without_allocated_shares_has_zeros() -> None:
    node = reduced(pod_resources(), start=owned()).node
    assert series("cuda_mps_gpu_allocated_shares", node) == {(GPU, SHARED): 0}
    assert series("cuda_mps_gpu_unused_shares", node) == {(GPU, SHARED): 0}


def test_there_are_no_samples_without_current_data() -> None:
    for node in (owned(), replace(allocated(), at=AT + 61)):
        for each in gpus.ALLOCATION.families[:-1]:
            assert series(each.name, node) == {}


def test_unknown_unused_shares_are_absent() -> None:
    node = replace(allocated(), pods={})
    assert series("cuda_mps_gpu_unused_shares", node) == {}
    assert series("cuda_mps_gpu_allocated_shares", node) == {(GPU, SHARED): 3}


def test_the_daemon_of_a_claim_has_the_names_of_the_claim() -> None:
    ((labels, value),) = series("cuda_mps_daemon_claim_info", allocated()).items()
    assert (labels[1:], value) == ((CLAIM, "team-c", "shared-gpu"), 1)
    ((labels, value),) = series("cuda_mps_daemon_claim_info", replace(allocated(), pod_resources=None)).items()
    assert (labels[1:], value) == ((CLAIM, "", ""), 1)


def test_the_number_of_series_of_containers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "MOST_SERIES", 3)
    many = [shares("a", f"pod-{number}", f"{GPU}::{number}") for number in range(5)]
    node = reduced(pod_resources(*many, replicas=5), start=owned()).node
    assert len(series("cuda_mps_container_allocated_shares", node)) == 3
    assert series("cuda_mps_gpu_allocated_shares", node) == {(GPU, SHARED): 5}


def test_names_with_the_same_shown_text_are_one_container() -> None:
    """No two series may have the same labels."""
    alike = [shares("a", f"pod{character}", f"{GPU}::{number}") for number, character in enumerate("\x01\x02")]
    node = reduced(pod_resources(*alike), start=owned()).node
    found = series("cuda_mps_container_allocated_shares", node)
    assert sum(found.values()) == 2
