"""Errors of the shares on an H200, in percentage points of all SMs, compared with the clients' own counts."""

import pytest

from exporter.metrics.catalogue import CATALOGUE
from exporter.model.usage import SharedAccount
from exporter.usage.capacity import Bound, gpu_sharing
from exporter.view import View
from tests.usage.mix_recordings import FRAMEWORKS, HERE, Mix

MIXES = [Mix(file.name.removesuffix(".truth.json")) for file in sorted(HERE.glob("*.truth.json"))]

IN_FRAMEWORKS = [
    Mix(file.name.removesuffix(".truth.json"), FRAMEWORKS) for file in sorted(FRAMEWORKS.glob("*.truth.json"))
]

MEAN, WORST = 1.0, 5.0
MEAN_OF_MINUTES, COVERED, SHOWN = 1.0, 0.9, 0.9


def test_recordings_of_mixes_exist() -> None:
    """Otherwise the other tests would have no cases."""
    assert MIXES
    assert IN_FRAMEWORKS


@pytest.mark.parametrize("mix", MIXES, ids=repr)
def test_shares_agree_with_the_clients_counts(mix: Mix) -> None:
    wrong = {pid: abs(by) for pid, by in mix.errors_of().items()}
    assert max(wrong.values()) <= WORST, wrong
    assert sum(wrong.values()) / len(wrong) <= MEAN, wrong


@pytest.mark.parametrize("mix", MIXES, ids=repr)
def test_parts_of_a_window_add_up_to_the_use_of_the_gpu(mix: Mix) -> None:
    for window in mix.windows:
        parts = [share.sm for share in window.shares.values()]
        assert sum(parts) + window.unattributed == pytest.approx(window.sm)


@pytest.mark.parametrize("mix", [*MIXES, *IN_FRAMEWORKS], ids=repr)
def test_parts_of_a_minute_add_up_to_the_use_of_the_gpu(mix: Mix) -> None:
    for split, _ in mix.minutes:
        assert split.unattributed >= 0
        assert sum(share.sm for share in split.shares.values()) + split.unattributed == pytest.approx(split.sm)


@pytest.mark.parametrize("mix", [*MIXES, *IN_FRAMEWORKS], ids=repr)
def test_two_standard_errors_cover_nine_minutes_in_ten(mix: Mix) -> None:
    """Also if the probes were detached most of the time, or if some shares are absent."""
    shown = [each for _, minutes in mix.minutes for each in minutes if each.share is not None]
    assert shown
    assert sum(each.is_covered for each in shown) >= COVERED * len(shown), [
        each for each in shown if not each.is_covered
    ]


def test_most_minutes_have_a_share_with_a_small_error() -> None:
    """Very large errors and absent gauges would satisfy the other tests."""
    every = [each for mix in (*MIXES, *IN_FRAMEWORKS) for _, minutes in mix.minutes for each in minutes]
    shown = [(each.true, each.share) for each in every if each.share is not None]
    assert len(shown) >= SHOWN * len(every)
    assert sum(abs(share.sm - true) for true, share in shown) <= MEAN_OF_MINUTES / 100 * len(shown)
    assert sum(share.error for _, share in shown) <= 2 * MEAN_OF_MINUTES / 100 * len(shown)


@pytest.mark.parametrize("mix", [*MIXES, *IN_FRAMEWORKS], ids=repr)
def test_without_gpm_no_sm_time_is_invented(mix: Mix) -> None:
    """There is no window, no SM time and no share. Energy is unattributed, and memory is exact."""
    node = mix.node_without_gpm
    assert not node.splits
    for book in node.usage_totals.gpus.values():
        assert book.total.sm_us == 0
        assert book.by_account.keys() <= {(SharedAccount.UNATTRIBUTED, None)}
        assert book.memory_byte_ms
    shown = {family.name for family in CATALOGUE if any(True for _ in family.samples(View(node)))}
    assert "cuda_mps_workload_memory_byte_seconds_total" in shown
    assert not {name for name in shown if "_sm_" in name}
    assert not any(
        Bound.SM in each.headroom.by_bound or each.shares or each.idle for each in gpu_sharing(node).values()
    )
