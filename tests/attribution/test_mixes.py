"""How far the shares are from what the clients themselves counted on an H200, in percentage points of all its SMs."""

import pytest

from tests.attribution.truth import HERE, Mix

MIXES = [Mix(file.name.removesuffix(".truth.json")) for file in sorted(HERE.glob("*.truth.json"))]

MEAN, WORST = 1.0, 5.0


def test_there_are_mixes() -> None:
    """Else the others say nothing."""
    assert MIXES


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
