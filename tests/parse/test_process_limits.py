"""How many files a process may have open."""

from exporter.parse.proc import max_open_files

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max processes             515072               515072               processes
Max open files            {}                1048576              files
"""


def test_the_soft_limit_counts() -> None:
    assert max_open_files(LIMITS.format(16384)) == 16384
    assert max_open_files(LIMITS.format("unlimited")) is None
    assert max_open_files("") is None
