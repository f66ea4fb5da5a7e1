"""A client's own limits, by its environment: text that a workload chose."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model.variables import ACTIVE_THREAD_PERCENTAGE, PER_CONTEXT_PARTITIONING, PINNED_MEMORY_LIMIT
from exporter.parse.mps_variables import client_memory_limits, client_thread_percentage


@pytest.mark.parametrize(
    ("variables", "percent"),
    [
        ({}, 100.0),
        ({ACTIVE_THREAD_PERCENTAGE: "12.5"}, 12.5),
        ({ACTIVE_THREAD_PERCENTAGE: ""}, None),
        ({ACTIVE_THREAD_PERCENTAGE: "101"}, None),
        ({ACTIVE_THREAD_PERCENTAGE: "-1"}, None),
        ({ACTIVE_THREAD_PERCENTAGE: "25", PER_CONTEXT_PARTITIONING: ""}, 25.0),
        ({PER_CONTEXT_PARTITIONING: "yes"}, None),
    ],
)
def test_thread_percentage(variables: Mapping[str, str], percent: float | None) -> None:
    assert client_thread_percentage(variables) == percent


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("", {}),
        ("0=20G", {"0": 20 << 30}),
        ("0=1G, GPU-7=512MB,", {"0": 1 << 30, "GPU-7": 512 << 20}),
        ("0=1G,1=", None),
        ("0", None),
        ("=1G", {}),
        ("0=1G" * 1000, None),
    ],
)
def test_memory_limits(text: str, limits: Mapping[str, int] | None) -> None:
    assert client_memory_limits({PINNED_MEMORY_LIMIT: text}) == limits


def test_no_variable_is_no_memory_limit() -> None:
    assert client_memory_limits({}) == {}


@given(st.text(max_size=5000))
def test_no_text_breaks_parsing(text: str) -> None:
    percent = client_thread_percentage({ACTIVE_THREAD_PERCENTAGE: text})
    assert percent is None or 0 < percent <= 100
    limits = client_memory_limits({PINNED_MEMORY_LIMIT: text})
    assert limits is None or all(limit > 0 for limit in limits.values())
