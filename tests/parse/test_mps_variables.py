"""Values of CUDA's and MPS's environment variables: text that a workload chose."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model.settings import ACTIVE_THREAD_PERCENTAGE, PER_CONTEXT_PARTITIONING, PINNED_MEMORY_LIMIT
from exporter.parse.mps_variables import (
    client_memory_limits,
    client_thread_percentage,
    format_byte_size,
    names_device,
    parse_byte_size,
    visible_gpu_uuids,
)
from tests.builders import GPU, OTHER_GPU


def test_formats_a_size_in_whole_gigabytes_or_megabytes(subtests: pytest.Subtests) -> None:
    """Never as 0, which could remove the limit."""
    for size, written in [
        (2 << 30, "2G"),
        (512 << 20, "512M"),
        (3000 << 20, "3000M"),
        ((1 << 20) + 7, "1M"),
        (7, "1M"),
    ]:
        with subtests.test(size=size, written=written):
            assert format_byte_size(size) == written


def test_a_text_that_is_no_size_is_none(subtests: pytest.Subtests) -> None:
    for text in ["", "0", "0G", "x", "-1", "1\N{KELVIN SIGN}", "\N{ARABIC-INDIC DIGIT THREE}G", "9" * 16]:
        with subtests.test(text=text):
            assert parse_byte_size(text) is None


@given(st.integers(min_value=1, max_value=1 << 24))
def test_parses_a_formatted_size_to_the_same_value(megabytes: int) -> None:
    assert parse_byte_size(format_byte_size(megabytes << 20)) == megabytes << 20


def test_returns_the_thread_percentage_of_a_client(subtests: pytest.Subtests) -> None:
    for variables, percent in [
        ({}, 100.0),
        ({ACTIVE_THREAD_PERCENTAGE: "12.5"}, 12.5),
        ({ACTIVE_THREAD_PERCENTAGE: ""}, None),
        ({ACTIVE_THREAD_PERCENTAGE: "101"}, None),
        ({ACTIVE_THREAD_PERCENTAGE: "-1"}, None),
        ({ACTIVE_THREAD_PERCENTAGE: "25", PER_CONTEXT_PARTITIONING: ""}, 25.0),
        ({PER_CONTEXT_PARTITIONING: "yes"}, None),
    ]:
        with subtests.test(variables=variables, percent=percent):
            assert client_thread_percentage(variables) == percent


def test_returns_the_memory_limits_of_a_client(subtests: pytest.Subtests) -> None:
    for text, limits in [
        ("", {}),
        ("0=20G", {"0": 20 << 30}),
        ("0=1G, GPU-7=512MB,", {"0": 1 << 30, "GPU-7": 512 << 20}),
        ("0=1G,1=", None),
        ("0", None),
        ("1G", None),
        ("=1G", None),
        ("00=1G", None),
        ("0=1G,0=2G", None),
        ("0=1G, 0 =1G", None),
        ("0=1G" * 1000, None),
        (",".join(f"{device}=1G" for device in range(100)), {str(device): 1 << 30 for device in range(100)}),
        (",".join(f"{device}=1G" for device in range(400)), None),  # Such a long text may be truncated.
    ]:
        with subtests.test(text=text, limits=limits):
            assert client_memory_limits({PINNED_MEMORY_LIMIT: text}) == limits


def test_a_missing_variable_means_no_memory_limit() -> None:
    assert client_memory_limits({}) == {}


@given(st.text(max_size=5000))
def test_any_text_parses_as_client_limits(text: str) -> None:
    percent = client_thread_percentage({ACTIVE_THREAD_PERCENTAGE: text})
    assert percent is None or 0 < percent <= 100
    limits = client_memory_limits({PINNED_MEMORY_LIMIT: text})
    assert limits is None or all(limit > 0 for limit in limits.values())


def test_a_gpu_is_visible_by_index_or_uuid(subtests: pytest.Subtests) -> None:
    """As in CUDA: -1 ends the list, a UUID may be abbreviated, an empty list hides all GPUs."""
    for text, visible in [
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
    ]:
        with subtests.test(text=text, visible=visible):
            assert (GPU in visible_gpu_uuids(text, {GPU: 0, OTHER_GPU: 1})) is visible


def test_a_gpu_that_is_named_twice_ends_the_list() -> None:
    assert visible_gpu_uuids("1,1,0", {GPU: 0, OTHER_GPU: 1}) == (OTHER_GPU,)


def test_finds_a_gpu_without_an_index_by_its_uuid() -> None:
    assert not names_device("0", None, GPU)
    assert not names_device("None", None, GPU)
    assert names_device(GPU, None, GPU)
