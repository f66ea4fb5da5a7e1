"""Which paths can be daemons' names."""

import pytest

from exporter.collectors.discovery import LONGEST_NAME, is_nameable, is_path
from exporter.parse.printable import LONGEST_TEXT, printable

CONTAINER, NAMESPACE = "0123456789ab", str(2**32)


@pytest.mark.parametrize("where", [CONTAINER, NAMESPACE])
def test_no_two_names_become_one_label(where: str) -> None:
    """Else two daemons have the same series, and Prometheus takes neither."""
    longest = f"/{'n' * (LONGEST_NAME - 1)}@{where}"

    assert is_nameable(longest.partition("@")[0])
    assert not is_nameable(f"/{'n' * LONGEST_NAME}")
    assert len(longest) <= LONGEST_TEXT
    assert printable(longest) == longest


def test_logs_may_lie_deeper() -> None:
    assert is_path(f"/{'n' * LONGEST_NAME}")
    assert not is_path("relative")
    assert not is_path("/new\nline")
