"""A daemon's no is heard, although it exits with 0 (replies as measured on R580)."""

import pytest

from exporter.parse.control_reply import CommandRefusal, parse_refusal

NOT_ALLOWED = (
    "Insufficient privileges for UID 65534. Control deamon settings can only be modified by the user who started it or "
    "by the root user."
)


@pytest.mark.parametrize(
    ("stdout", "why"),
    [
        (NOT_ALLOWED, CommandRefusal.NOT_ALLOWED),
        ("Not enough privilege to execute quit command", CommandRefusal.NOT_ALLOWED),
        ("Server 7 not found\n", CommandRefusal.NO_SUCH_SERVER),
        ('Unknown command "set_client_priority"', CommandRefusal.UNKNOWN_COMMAND),
    ],
)
def test_a_no_is_a_no(stdout: str, why: CommandRefusal) -> None:
    assert parse_refusal(stdout) is why


@pytest.mark.parametrize("stdout", ["50.0\n", ""])
def test_an_empty_answer_and_a_value_are_none(stdout: str) -> None:
    assert parse_refusal(stdout) is None
