"""Families of usage totals: the series of workloads add up exactly to those of the GPU."""

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

import pytest

from exporter.metrics.catalogue import CATALOGUE
from exporter.model.identity import Workload, WorkloadIdentity, WorkloadKind
from exporter.model.node import Node
from exporter.model.usage import Method, Share, SharedAccount, UsageTotals
from exporter.usage.accounting import post_memory, post_time
from exporter.view import View
from tests.builders import (
    AT,
    CLIENT,
    CONTEXT_BYTES,
    GPU,
    SERVER_BYTES,
    USER_ALICE,
    USER_BOB,
    accounted,
    at_work,
    exited,
    gpu_reading,
    process,
    reduced,
)

Series = dict[tuple[str, ...], float]

FAMILIES = {family.name: family for family in CATALOGUE}
CLIENT_BYTES = (1 << 30) + CONTEXT_BYTES


def series(name: str, view: View) -> Series:
    return dict(FAMILIES[name].samples(view))


def of(totals: UsageTotals) -> View:
    return View(Node(usage_totals=totals))


def test_each_workload_has_its_sm_time_by_method_and_energy_in_proportion() -> None:
    sm_seconds = {
        (GPU, "user", "alice", "flight"): 2.0,
        (GPU, "user", "bob", "measured"): 1.0,
        (GPU, "unattributed", "", ""): 1.0,
    }
    assert series("cuda_mps_workload_sm_seconds_total", View(accounted())) == sm_seconds
    joules = {labels: 2 * seconds for labels, seconds in sm_seconds.items()}
    assert series("cuda_mps_workload_energy_joules_total", View(accounted())) == joules


def test_memory_counts_clients_and_the_server() -> None:
    assert series("cuda_mps_workload_memory_byte_seconds_total", View(accounted())) == {
        (GPU, "user", "alice"): 10.0 * CLIENT_BYTES,
        (GPU, "user", "bob"): 10.0 * CLIENT_BYTES,
        (GPU, "mps_server", ""): 10.0 * SERVER_BYTES,
    }


@pytest.mark.parametrize(
    ("workloads", "closed", "whole"),
    [
        ("workload_sm_seconds", "gpu_closed_sm_seconds", "gpu_sm_seconds"),
        ("workload_energy_joules", "gpu_closed_energy_joules", "gpu_accounted_energy_joules"),
    ],
)
def test_workloads_and_ended_series_add_up_to_the_gpu(workloads: str, closed: str, whole: str) -> None:
    parts: defaultdict[tuple[str, ...], Fraction] = defaultdict(Fraction)
    for name in (workloads, closed):
        for labels, value in series(f"cuda_mps_{name}_total", View(accounted())).items():
            parts[labels[:1]] += Fraction(value)
    assert parts == {
        labels: Fraction(value) for labels, value in series(f"cuda_mps_{whole}_total", View(accounted())).items()
    }


def test_shared_accounts_have_a_kind_and_no_name() -> None:
    totals = post_time(
        UsageTotals(),
        GPU,
        3,
        {(SharedAccount.SERVER, Method.FLIGHT): 1 / 3, (SharedAccount.OTHERS, None): 1 / 3},
        at=AT,
    )
    kinds = {labels[1:] for labels in series("cuda_mps_workload_sm_seconds_total", of(totals))}
    assert kinds == {("mps_server", "", "flight"), ("others", "", ""), ("unattributed", "", "")}


def test_ended_series_have_a_family_of_their_own() -> None:
    totals = post_time(UsageTotals(), GPU, 2_000_000, {(SharedAccount.CLOSED, Method.FLIGHT): 0.5}, at=AT)
    assert set(series("cuda_mps_workload_sm_seconds_total", of(totals))) == {(GPU, "unattributed", "", "")}
    assert series("cuda_mps_gpu_closed_sm_seconds_total", of(totals)) == {(GPU,): 1.0}


def test_names_with_the_same_shown_text_are_one_workload() -> None:
    """No two series may have the same labels."""
    alike = [Workload(kind=WorkloadKind.USER, name=name) for name in ("a" * 5000, "a" * 5001)]
    totals = post_time(UsageTotals(), GPU, 2_000_000, dict.fromkeys(((each, None) for each in alike), 0.5), at=AT)
    totals = post_memory(totals, GPU, dict.fromkeys(alike, 500), at=AT)
    assert list(series("cuda_mps_workload_sm_seconds_total", of(totals)).values()) == [2.0]
    assert list(series("cuda_mps_workload_memory_byte_seconds_total", of(totals)).values()) == [1.0]
    units = (WorkloadIdentity(user="a", unit=unit) for unit in ("b.service", "c.service"))
    view = of(replace(totals, identities=dict(zip(alike, units, strict=True))))
    ((labels, _),) = FAMILIES["cuda_mps_workload_info"].samples(view)
    assert ("a" in labels, "b.service" in labels, "c.service" in labels) == (True, False, False)


def test_shows_the_stored_totals_if_there_are_any() -> None:
    stored = post_time(UsageTotals(), GPU, 1_000_000, {}, at=AT)
    view = View(accounted(), usage_totals=stored)
    assert series("cuda_mps_gpu_sm_seconds_total", view) == {(GPU,): 1.0}


def test_a_client_has_its_share_and_the_error() -> None:
    view = View(accounted())
    ratios = series("cuda_mps_client_sm_utilization_ratio", view)
    assert sorted((method, ratio) for (*_, method), ratio in ratios.items()) == [("flight", 0.2), ("measured", 0.1)]
    errors = series("cuda_mps_client_sm_utilization_error_ratio", view)
    assert {labels[:3] for labels in ratios} == set(errors)
    assert series("cuda_mps_gpu_sm_unattributed_ratio", view) == {(GPU,): 0.1}


def test_without_gpm_it_is_unknown_what_is_unattributed() -> None:
    node = accounted()
    estimated = View(replace(node, splits={GPU: replace(node.splits[GPU], measured=False)}))
    assert series("cuda_mps_gpu_sm_unattributed_ratio", estimated) == {}


def test_the_gauge_of_a_new_client_is_the_mean_since_it_began() -> None:
    """An idle client has 0. The totals and the rest of the GPU do not depend on when a client began."""
    node = accounted()
    first, second = (client.pid for _, client, _ in View(node).clients)
    shares = {first: Share(method=Method.FLIGHT, sm=0.1, error=0.02), second: Share(method=Method.FLIGHT, sm=0.0)}
    split = replace(node.splits[GPU], seconds=60.0, shares=shares, lasted={first: 15.0})
    view = View(replace(node, splits={GPU: split}))
    ratios = series("cuda_mps_client_sm_utilization_ratio", view)
    assert sorted(ratios.values()) == [0.0, pytest.approx(0.4)]
    assert sorted(series("cuda_mps_client_sm_utilization_error_ratio", view).values()) == [0.0, pytest.approx(0.08)]
    for family in ("cuda_mps_gpu_sm_unattributed_ratio", "cuda_mps_workload_sm_seconds_total"):
        assert series(family, view) == series(family, View(node))


def test_a_disconnected_client_and_an_old_attribution_have_no_gauges() -> None:
    left = reduced(exited(CLIENT, at=AT + 20), start=accounted()).node
    assert len(series("cuda_mps_client_sm_utilization_ratio", View(left))) == 1
    late = View(replace(accounted(), at=AT + 71))
    assert series("cuda_mps_client_sm_utilization_ratio", late) == {}
    assert series("cuda_mps_gpu_sm_unattributed_ratio", late) == {}


@pytest.mark.parametrize(("after", "shown"), [(9.0, True), (11.0, False), (-1.0, False)])
def test_an_attribution_is_shown_for_as_long_as_it_is(after: float, shown: bool) -> None:
    """It is in the future if the clock was set back."""
    split = replace(accounted().splits[GPU], seconds=10.0)
    view = View(replace(accounted(), at=split.at + after, splits={GPU: split}))
    assert bool(series("cuda_mps_gpu_sm_unattributed_ratio", view)) is shown


def test_usage_totals_do_not_depend_on_client_series() -> None:
    view = View(accounted(), client_min_age=1e9)
    assert series("cuda_mps_client_sm_utilization_ratio", view) == {}
    assert {labels[2] for labels in series("cuda_mps_workload_sm_seconds_total", view)} >= {
        USER_ALICE.name,
        USER_BOB.name,
    }


SM_FAMILIES = (
    "cuda_mps_workload_sm_seconds_total",
    "cuda_mps_gpu_sm_seconds_total",
    "cuda_mps_gpu_closed_sm_seconds_total",
    "cuda_mps_client_sm_utilization_ratio",
    "cuda_mps_client_sm_utilization_error_ratio",
    "cuda_mps_gpu_sm_unattributed_ratio",
)


@pytest.mark.parametrize("gpm_supported", [False, None], ids=["NVML reports it", "no reading has it"])
def test_the_sm_time_of_a_gpu_without_gpm_is_absent(gpm_supported: bool | None) -> None:
    readings = [
        gpu_reading(
            [CLIENT], at=AT + at, gpm_supported=gpm_supported, gpu_percent=90, energy_millijoules=1000 * (1 + at)
        )
        for at in (0, 10, 20)
    ]
    node = reduced(*at_work(CLIENT), process(CLIENT), *readings).node
    assert node.gpus[GPU].has_gpm is False
    assert [name for name in SM_FAMILIES if series(name, View(node))] == []
    assert series("cuda_mps_gpu_accounted_energy_joules_total", View(node)) == {(GPU,): 20.0}
    assert series("cuda_mps_workload_energy_joules_total", View(node)) == {(GPU, "unattributed", "", ""): 20.0}


def test_the_sm_time_of_a_gpu_with_gpm_is_zero_until_gpm_has_measured_something() -> None:
    """GPM measures the time between two readings, and a counter exists before its first event."""
    for readings in (
        [gpu_reading([CLIENT], at=AT + at, sm_utilization=0.0, gpm_seconds=10.0) for at in (10, 20)],
        [gpu_reading([CLIENT], at=AT + at, gpm_supported=True, energy_millijoules=1000 * (1 + at)) for at in (0, 10)],
    ):
        view = View(reduced(*at_work(CLIENT), *readings).node)
        assert series("cuda_mps_gpu_sm_seconds_total", view) == {(GPU,): 0.0}
