"""Sizes, as MPS writes and takes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.parse.mps_variables import format_byte_size, parse_byte_size


@pytest.mark.parametrize(
    ("size", "written"),
    [(2 << 30, "2G"), (512 << 20, "512M"), (3000 << 20, "3000M"), ((1 << 20) + 7, "1M"), (7, "1M")],
)
def test_a_size_is_given_in_whole_gigabytes_or_megabytes(size: int, written: str) -> None:
    """Never as nothing, which could lift the limit."""
    assert format_byte_size(size) == written


@given(st.integers(min_value=1, max_value=1 << 24))
def test_what_is_given_is_what_is_read_back(megabytes: int) -> None:
    assert parse_byte_size(format_byte_size(megabytes << 20)) == megabytes << 20
