"""How far the shares are from what the clients themselves counted on an H200, in percentage points of all its SMs."""

import pytest

from exporter.metrics.catalogue import CATALOGUE
from exporter.model.accounting import SharedAccount
from exporter.usage.capacity import Bound, gpu_sharing
from exporter.view import View
from tests.attribution.truth import FRAMEWORKS, HERE, Mix

MIXES = [Mix(file.name.removesuffix(".truth.json")) for file in sorted(HERE.glob("*.truth.json"))]

IN_FRAMEWORKS = [
    Mix(file.name.removesuffix(".truth.json"), FRAMEWORKS) for file in sorted(FRAMEWORKS.glob("*.truth.json"))
]

MEAN, WORST = 1.0, 5.0
MEAN_OF_MINUTES, COVERED, TOLD = 1.0, 0.9, 0.9


def test_there_are_mixes() -> None:
    """Else the others say nothing."""
    assert MIXES
    assert IN_FRAMEWORKS


@pytest.mark.parametrize("mix", MIXES, ids=repr)
def test_each_client_has_what_it_used(mix: Mix) -> None:
    wrong = {pid: abs(by) for pid, by in mix.wrong_by().items()}
    assert max(wrong.values()) <= WORST, wrong
    assert sum(wrong.values()) / len(wrong) <= MEAN, wrong


@pytest.mark.parametrize("mix", MIXES, ids=repr)
def test_what_is_told_is_together_what_the_gpu_did(mix: Mix) -> None:
    for window in mix.windows:
        parts = [share.sm for share in window.shares.values()]
        assert sum(parts) + window.unattributed == pytest.approx(window.sm)


@pytest.mark.parametrize("mix", [*MIXES, *IN_FRAMEWORKS], ids=repr)
def test_the_parts_of_a_minute_are_the_whole(mix: Mix) -> None:
    for split, _ in mix.minutes:
        assert split.unattributed >= 0
        assert sum(share.sm for share in split.shares.values()) + split.unattributed == pytest.approx(split.sm)


@pytest.mark.parametrize("mix", [*MIXES, *IN_FRAMEWORKS], ids=repr)
def test_two_standard_errors_cover_nine_minutes_in_ten(mix: Mix) -> None:
    """Also if the probes were detached most of the time, or a part of it is withheld."""
    told = [each for _, minutes in mix.minutes for each in minutes if each.share is not None]
    assert told
    assert sum(each.is_covered for each in told) >= COVERED * len(told), [each for each in told if not each.is_covered]


def test_most_minutes_are_told_with_a_small_error() -> None:
    """An error that covers all, and gauges that are absent, would be of no use."""
    every = [each for mix in (*MIXES, *IN_FRAMEWORKS) for _, minutes in mix.minutes for each in minutes]
    told = [(each.true, each.share) for each in every if each.share is not None]
    assert len(told) >= TOLD * len(every)
    assert sum(abs(share.sm - true) for true, share in told) <= MEAN_OF_MINUTES / 100 * len(told)
    assert sum(share.error for _, share in told) <= 2 * MEAN_OF_MINUTES / 100 * len(told)


@pytest.mark.parametrize("mix", [*MIXES, *IN_FRAMEWORKS], ids=repr)
def test_without_gpm_no_sm_time_is_invented(mix: Mix) -> None:
    """No window, no SM time, no share; energy is unattributed, and memory as ever."""
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
