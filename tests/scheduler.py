"""Which tests may run at the same time, under pytest-xdist: those of different files, with some exceptions."""

from xdist.scheduler import LoadScopeScheduling

OF_THE_WHOLE_MACHINE = {
    "tests/deploy/test_pod.py",
    "tests/test_benchmarks.py",
    "tests/test_control_log_growth.py",
    "tests/test_end_to_end.py",
    "tests/test_service.py",
}
"""Where some look for daemons anywhere, and ask those that they find, and others count who is asked, and by whom."""


class ByFile(LoadScopeScheduling):
    """Gives each file to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "the whole machine" if file in OF_THE_WHOLE_MACHINE else file
