"""Paths that can be names of daemons."""

import pytest

from exporter.collectors.discovery import LONGEST_NAME, is_nameable, is_path
from exporter.parse.printable import LONGEST_TEXT, printable

CONTAINER, NAMESPACE = "0123456789ab", str(2**32)


@pytest.mark.parametrize("where", [CONTAINER, NAMESPACE])
def test_a_name_is_never_longer_than_a_label(where: str) -> None:
    """Otherwise two daemons have the same series, and Prometheus rejects both."""
    longest = f"/{'n' * (LONGEST_NAME - 1)}@{where}"

    assert is_nameable(longest.partition("@")[0])
    assert not is_nameable(f"/{'n' * LONGEST_NAME}")
    assert len(longest) <= LONGEST_TEXT
    assert printable(longest) == longest


def test_a_log_directory_can_be_longer_than_a_name() -> None:
    assert is_path(f"/{'n' * LONGEST_NAME}")
    assert not is_path("relative")
    assert not is_path("/new\nline")
