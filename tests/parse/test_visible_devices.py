"""CUDA_VISIBLE_DEVICES of a control daemon: which GPUs it serves."""

import pytest

from exporter.parse.mps_variables import is_device_visible
from tests.builders import GPU, OTHER_GPU


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        (None, True),
        ("0", True),
        ("1", False),
        ("0,1", True),
        (" 1 , 0 ", True),
        ("10", False),
        (GPU, True),
        (GPU[:12], True),
        (OTHER_GPU, False),
        (f"{OTHER_GPU},{GPU}", True),
        ("", False),
        ("-1", False),
        ("-1,0", False),
        ("1,-1,0", False),
        ("none", False),
    ],
)
def test_a_gpu_is_visible_by_index_by_uuid_or_where_nothing_is_set(text: str | None, visible: bool) -> None:
    """As CUDA reads it: -1 ends the list, a UUID may be cut short, an empty list hides all."""
    assert is_device_visible(text, 0, GPU) is visible


def test_a_gpu_without_an_index_is_found_by_its_uuid_alone() -> None:
    assert not is_device_visible("0", None, GPU)
    assert is_device_visible(GPU, None, GPU)
