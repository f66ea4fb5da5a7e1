"""A daemon's no is heard, although it exits with 0 (replies as measured on R580)."""

import pytest

from exporter.parse.denial import Denial, denial

NOT_ALLOWED = (
    "Insufficient privileges for UID 65534. Control deamon settings can only be modified by the user who started it or "
    "by the root user."
)


@pytest.mark.parametrize(
    ("command", "stdout", "why"),
    [
        ("set_default_active_thread_percentage 50", NOT_ALLOWED, Denial.NOT_ALLOWED),
        ("terminate_client 448 99999", f"{NOT_ALLOWED}\n800\n", Denial.NOT_ALLOWED),
        ("quit", "Not enough privilege to execute quit command", Denial.NOT_ALLOWED),
        ("terminate_client 1 1", "Server 1 not found\nServer 1 not found!\n1\n", Denial.NO_SUCH_SERVER),
        ("shutdown_server 7", "Server 7 not found\n", Denial.NO_SUCH_SERVER),
        ("terminate_client 448 99999", "Invalid process 99999!\n1\n", Denial.NO_SUCH_PROCESS),
        ("terminate_client 448 446", "1\n", Denial.FAILED),
        ("terminate_client 448 446", "", Denial.FAILED),
        ("set_client_priority 448 1", 'Unknown command "set_client_priority"', Denial.UNKNOWN_COMMAND),
    ],
)
def test_a_no_is_a_no(command: str, stdout: str, why: Denial) -> None:
    assert denial(command, stdout) is why


@pytest.mark.parametrize(
    ("command", "stdout"),
    [
        ("terminate_client 448 446", "0\n"),
        ("set_default_active_thread_percentage 50", "50.0\n"),
        ("set_default_device_pinned_mem_limit 0 2G", ""),
        ("shutdown_server 448 -f", ""),
        ("", ""),
    ],
)
def test_an_empty_answer_and_a_value_are_none(command: str, stdout: str) -> None:
    assert denial(command, stdout) is None
