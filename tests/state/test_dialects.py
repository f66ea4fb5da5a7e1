"""The commands and abilities of both protocols, and that only their dialects know a protocol by its number."""

import re
from pathlib import Path

import pytest

from exporter.model.dialect import PROTOCOL_2, PROTOCOL_3, Dialect, dialect_of, is_given_as_arguments
from exporter.model.server import Server

SERVER = Server(pid=513, started_at=0.0, name="uid_1000")
EXPORTER = Path(__file__).parents[2] / "exporter"


def test_protocol_2_names_a_server_by_its_pid() -> None:
    assert (PROTOCOL_2.list_servers, PROTOCOL_2.list_clients.format(server=513)) == (
        "get_server_list",
        "get_client_list 513",
    )
    assert PROTOCOL_2.quit_now == "quit -t 3"
    assert PROTOCOL_2.command_to_end(SERVER, forced=False) == "shutdown_server 513"
    assert PROTOCOL_2.command_to_end(SERVER, forced=True) == "shutdown_server 513 -f"
    memory, threads, priority = PROTOCOL_2.limit_commands(SERVER)
    assert memory.format(device=1, value="2G") == "set_device_pinned_mem_limit 513 1 2G"
    assert threads.format(value=40) == "set_active_thread_percentage 513 40"
    assert priority.format(value=1) == "set_default_client_priority 1"
    assert PROTOCOL_2.default_limits is not None
    assert [each.format(device=1, value=40) for each in PROTOCOL_2.default_limits] == [
        "set_default_device_pinned_mem_limit 1 40",
        "set_default_active_thread_percentage 40",
        "set_default_client_priority 40",
    ]


def test_protocol_3_names_a_server_by_its_name() -> None:
    assert (PROTOCOL_3.list_servers, PROTOCOL_3.list_clients.format(server=513)) == (
        "server list --format=csv",
        "client list --all --format=csv",
    )
    assert PROTOCOL_3.quit_now == "-q"
    assert PROTOCOL_3.command_to_end(SERVER, forced=False) == "server delete uid_1000"
    assert PROTOCOL_3.command_to_end(SERVER, forced=True) == "server delete uid_1000 --force"
    assert [each.format(value=40) for each in PROTOCOL_3.limit_commands(SERVER)] == [
        "server set uid_1000 --pinned-memory-limit=40",
        "server set uid_1000 --active-thread-percentage=40",
        "server set uid_1000 --client-priority=40",
    ]
    assert PROTOCOL_3.default_limits is None


@pytest.mark.parametrize("name", [None, "", "training", "my_uid_1000"])
def test_protocol_3_ends_only_a_server_that_the_daemon_creates_again(name: str | None) -> None:
    assert PROTOCOL_3.command_to_end(Server(pid=513, started_at=0.0, name=name), forced=True) is None


def abilities(dialect: Dialect) -> tuple[bool, ...]:
    """Return whether it has the abilities of protocol 3, and whether the exporter can query it."""
    named, tables = dialect.named_servers, dialect.answers_in_tables
    return named, tables, dialect.limits_by_namespace, dialect.servers_by_user, dialect.supported


def test_each_protocol_has_its_abilities_and_variables() -> None:
    assert dialect_of(None) == dialect_of(2) == PROTOCOL_2
    assert dialect_of(3) == PROTOCOL_3
    assert abilities(PROTOCOL_2) == (False, False, False, False, True)
    assert abilities(PROTOCOL_3) == (True, True, True, True, True)
    assert abilities(dialect_of(4)) == (False, False, False, True, False)
    assert [dict(dialect_of(each).variables) for each in (None, 2, 3, 4)] == [
        {},
        {},
        {"CUDA_MPS_PROTOCOL_VERSION": "3"},
        {"CUDA_MPS_PROTOCOL_VERSION": "4"},
    ]


def test_only_commands_of_protocol_3_and_flags_are_arguments() -> None:
    third = (PROTOCOL_3.list_servers, PROTOCOL_3.list_partitions, PROTOCOL_3.list_namespaces, PROTOCOL_3.quit_now)
    assert all(map(is_given_as_arguments, (*third, *PROTOCOL_3.limit_commands(SERVER), "-v")))
    second = (PROTOCOL_2.list_servers, PROTOCOL_2.list_devices, PROTOCOL_2.quit_now, "server_list")
    assert not any(map(is_given_as_arguments, second))


def test_other_modules_ask_the_dialect_instead_of_comparing_protocols() -> None:
    compared = re.compile(
        r"(==|!=|\bin) \(?(\w+\.)*\w*PROTOCOL(_\d)?(\.number)?(?![\w.])|\.protocol (==|!=|is not|not in|in) [^N]"
    )
    found = {path.relative_to(EXPORTER).as_posix() for path in EXPORTER.rglob("*.py") if _compares(path, compared)}
    assert found == {"model/dialect.py"}


def _compares(path: Path, compared: re.Pattern[str]) -> bool:
    return any(compared.search(line) for line in path.read_text().splitlines())
