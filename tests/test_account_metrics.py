"""The families of the accounts: what the owners' say is together exactly what the GPU's say."""

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

import pytest

from exporter.metrics.catalogue import CATALOGUE
from exporter.model.accounting import SharedAccount, UsageTotals
from exporter.model.identity import Workload, WorkloadKind
from exporter.model.node import Node
from exporter.model.usage import Method
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


def of(ledger: UsageTotals) -> View:
    return View(Node(usage_totals=ledger))


def test_each_owner_has_what_it_used_by_how_that_was_found_out() -> None:
    assert series("cuda_mps_workload_sm_seconds_total", View(accounted())) == {
        (GPU, "user", "alice", "flight"): 2.0,
        (GPU, "user", "bob", "measured"): 1.0,
        (GPU, "unattributed", "", ""): 1.0,
    }


def test_energy_is_in_proportion_to_sm_time() -> None:
    assert series("cuda_mps_workload_energy_joules_total", View(accounted())) == {
        (GPU, "user", "alice", "flight"): 4.0,
        (GPU, "user", "bob", "measured"): 2.0,
        (GPU, "unattributed", "", ""): 2.0,
    }


def test_memory_is_that_of_all_who_hold_it() -> None:
    assert series("cuda_mps_workload_memory_byte_seconds_total", View(accounted())) == {
        (GPU, "user", "alice"): 10.0 * CLIENT_BYTES,
        (GPU, "user", "bob"): 10.0 * CLIENT_BYTES,
        (GPU, "mps_server", ""): 10.0 * SERVER_BYTES,
    }


@pytest.mark.parametrize(
    ("owners", "closed", "whole"),
    [
        ("workload_sm_seconds", "gpu_closed_sm_seconds", "gpu_sm_seconds"),
        ("workload_energy_joules", "gpu_closed_energy_joules", "gpu_accounted_energy_joules"),
    ],
)
def test_the_owners_and_the_closed_are_the_whole(owners: str, closed: str, whole: str) -> None:
    parts: defaultdict[tuple[str, ...], Fraction] = defaultdict(Fraction)
    for name in (owners, closed):
        for labels, value in series(f"cuda_mps_{name}_total", View(accounted())).items():
            parts[labels[:1]] += Fraction(value)
    assert parts == {
        labels: Fraction(value) for labels, value in series(f"cuda_mps_{whole}_total", View(accounted())).items()
    }


def test_who_is_nobody_known_has_a_kind_and_no_name() -> None:
    ledger = post_time(
        UsageTotals(),
        GPU,
        3,
        {(SharedAccount.SERVER, Method.FLIGHT): 1 / 3, (SharedAccount.OTHERS, None): 1 / 3},
        at=AT,
    )
    kinds = {labels[1:] for labels in series("cuda_mps_workload_sm_seconds_total", of(ledger))}
    assert kinds == {("mps_server", "", "flight"), ("others", "", ""), ("unattributed", "", "")}


def test_closed_pages_are_told_apart_so_that_no_owner_seems_to_use_them() -> None:
    ledger = post_time(UsageTotals(), GPU, 2_000_000, {(SharedAccount.CLOSED, Method.FLIGHT): 0.5}, at=AT)
    assert set(series("cuda_mps_workload_sm_seconds_total", of(ledger))) == {(GPU, "unattributed", "", "")}
    assert series("cuda_mps_gpu_closed_sm_seconds_total", of(ledger)) == {(GPU,): 1.0}


def test_names_that_look_the_same_are_one_owner() -> None:
    """No two series may have the same labels."""
    alike = [Workload(kind=WorkloadKind.USER, name=name) for name in ("a" * 5000, "a" * 5001)]
    ledger = post_time(UsageTotals(), GPU, 2_000_000, dict.fromkeys(((each, None) for each in alike), 0.5), at=AT)
    ledger = post_memory(ledger, GPU, dict.fromkeys(alike, 500), at=AT)
    assert list(series("cuda_mps_workload_sm_seconds_total", of(ledger)).values()) == [2.0]
    assert list(series("cuda_mps_workload_memory_byte_seconds_total", of(ledger)).values()) == [1.0]


def test_what_is_shown_is_what_is_kept_where_it_is() -> None:
    kept = post_time(UsageTotals(), GPU, 1_000_000, {}, at=AT)
    view = View(accounted(), ledger=kept)
    assert series("cuda_mps_gpu_sm_seconds_total", view) == {(GPU,): 1.0}


def test_a_client_has_its_part_and_how_sure_that_is() -> None:
    view = View(accounted())
    ratios = series("cuda_mps_client_sm_utilization_ratio", view)
    assert sorted((method, ratio) for (*_, method), ratio in ratios.items()) == [("flight", 0.2), ("measured", 0.1)]
    errors = series("cuda_mps_client_sm_utilization_error_ratio", view)
    assert {labels[:3] for labels in ratios} == set(errors)
    assert series("cuda_mps_gpu_sm_unattributed_ratio", view) == {(GPU,): 0.1}


def test_who_has_left_has_none() -> None:
    left = reduced(exited(CLIENT, at=AT + 20), start=accounted()).node
    assert len(series("cuda_mps_client_sm_utilization_ratio", View(left))) == 1


def test_a_split_that_is_old_tells_nothing_of_now() -> None:
    late = View(replace(accounted(), at=AT + 71))
    assert series("cuda_mps_client_sm_utilization_ratio", late) == {}
    assert series("cuda_mps_gpu_sm_unattributed_ratio", late) == {}


def test_where_clients_have_no_series_the_accounts_stand() -> None:
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


@pytest.mark.parametrize("told_by_nvml", [False, None], ids=["NVML says so", "no reading has it"])
def test_the_sm_time_of_a_gpu_without_gpm_is_absent(told_by_nvml: bool | None) -> None:
    """What an earlier version has stored is time with any kernel running, and is not shown; energy is."""
    readings = [
        gpu_reading(
            [CLIENT], at=AT + at, gpm_supported=told_by_nvml, gpu_percent=90, energy_millijoules=1000 * (1 + at)
        )
        for at in (0, 10, 20)
    ]
    node = reduced(*at_work(CLIENT), process(CLIENT), *readings).node
    assert series("cuda_mps_gpu_reading_supported", View(node))[(GPU, "gpm")] == 0
    stored = post_time(node.usage_totals, GPU, 4_000_000, {(USER_ALICE, Method.MEASURED): 1.0}, at=AT)
    for ledger in (node.usage_totals, stored):
        view = View(replace(node, usage_totals=ledger))
        assert [name for name in SM_FAMILIES if series(name, view)] == []
        assert series("cuda_mps_gpu_accounted_energy_joules_total", view) == {(GPU,): 20.0}
    assert series("cuda_mps_workload_energy_joules_total", View(node)) == {(GPU, "unattributed", "", ""): 20.0}


def test_the_sm_time_of_a_gpu_with_gpm_is_zero_until_something_runs() -> None:
    readings = [gpu_reading([CLIENT], at=AT + at, sm_utilization=0.0, gpm_seconds=10.0) for at in (10, 20)]
    view = View(reduced(*at_work(CLIENT), *readings).node)
    assert series("cuda_mps_gpu_sm_seconds_total", view) == {(GPU,): 0.0}


def test_the_sm_time_of_a_gpu_with_gpm_is_zero_before_gpm_has_measured_anything() -> None:
    """GPM measures the time between two readings, and a counter exists before its first event."""
    readings = [
        gpu_reading([CLIENT], at=AT + at, gpm_supported=True, energy_millijoules=1000 * (1 + at)) for at in (0, 10)
    ]
    view = View(reduced(*at_work(CLIENT), *readings).node)
    assert series("cuda_mps_gpu_sm_seconds_total", view) == {(GPU,): 0.0}
