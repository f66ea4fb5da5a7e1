"""Paths of cgroups."""

import pytest

from exporter.parse.dmem import limit_of, parse_cgroup_v2


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0::/kubepods/pod1/main\n", "/kubepods/pod1/main"),
        ("4:memory:/v1\n0::/unified\n", "/unified"),
        ("0::/\n", "/"),
        ("0::/a//b/\n", "/a/b"),
        ("4:memory:/v1\n", None),
        ("0::/../../pod\n", None),
        ("0::/a/../b\n", None),
        ("0::/gone (deleted)\n", None),
        ("0::/a\n0::/b\n", None),
        ("0::/" + "a/" * 65, None),
        ("", None),
    ],
)
def test_returns_the_path_of_cgroup_v2(text: str, path: str | None) -> None:
    assert parse_cgroup_v2(text) == path


def test_the_largest_number_is_no_limit() -> None:
    assert (limit_of(0xFFFFFFFFFFFFFFFF), limit_of(0), limit_of(7)) == (None, 0, 7)
