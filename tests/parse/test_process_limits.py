"""How many files a process may have open."""

from exporter.parse.process_limits import open_files

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max processes             515072               515072               processes
Max open files            {}                1048576              files
"""


def test_the_soft_limit_counts() -> None:
    assert open_files(LIMITS.format(16384)) == 16384
    assert open_files(LIMITS.format("unlimited")) is None
    assert open_files("") is None
