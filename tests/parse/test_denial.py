"""A daemon's no is heard, although it exits with 0 (replies as measured on R580)."""

import pytest

from exporter.parse.denial import Denial, denial

NOT_ALLOWED = (
    "Insufficient privileges for UID 65534. Control deamon settings can only be modified by the user who started it or "
    "by the root user."
)


@pytest.mark.parametrize(
    ("stdout", "why"),
    [
        (NOT_ALLOWED, Denial.NOT_ALLOWED),
        ("Not enough privilege to execute quit command", Denial.NOT_ALLOWED),
        ("Server 7 not found\n", Denial.NO_SUCH_SERVER),
        ('Unknown command "set_client_priority"', Denial.UNKNOWN_COMMAND),
    ],
)
def test_a_no_is_a_no(stdout: str, why: Denial) -> None:
    assert denial(stdout) is why


@pytest.mark.parametrize("stdout", ["50.0\n", ""])
def test_an_empty_answer_and_a_value_are_none(stdout: str) -> None:
    assert denial(stdout) is None
