"""The service's unix socket: which users it serves, and that no request breaks it."""

import contextlib
import json
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from exporter.errors import ServiceError
from exporter.status_client import NAME, query_service
from exporter.web.server import ServiceSocket, send
from tests.another_user import become, run_as
from tests.eventually import PATIENCE_SECONDS

OTHER_USER = 65534
PATIENCE = PATIENCE_SECONDS


def breaks() -> dict[str, object]:
    raise RuntimeError("a defect")


def repeat(*, word: str, times: int) -> dict[str, object]:
    return {"message": word * times}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where a service answers."""
    commands = {"status": lambda: {"table": "all well"}, "break": breaks, "repeat": repeat}
    service = ServiceSocket(tmp_path, lambda _: commands)
    service.open()
    yield tmp_path
    service.close()


def say(directory: Path, words: bytes) -> bytes:
    """Send these bytes, and hear what comes back."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(directory / NAME))
        connection.sendall(words)
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").read()


def test_answers_a_command_with_arguments_also_after_one_fails(directory: Path) -> None:
    assert query_service(directory, "repeat", PATIENCE, word="well", times=2) == {"message": "wellwell"}
    assert say(directory, b'{"command": "repeat", "arguments": {}}\n').startswith(b'{"problem": "unexpected TypeError')
    with pytest.raises(ServiceError, match="unexpected RuntimeError: a defect"):
        query_service(directory, "break", PATIENCE)
    assert query_service(directory, "status", PATIENCE) == {"table": "all well"}


def test_removes_escape_sequences_from_the_answer(directory: Path) -> None:
    """A process that poses as the service can have fewer rights than its client."""
    answer = query_service(directory, "repeat", PATIENCE, word="\x1b[2J\N{RIGHT-TO-LEFT OVERRIDE}a\n", times=1)
    assert answer == {"message": "\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}a\n"}


def test_rejects_an_answer_that_is_nested_too_deeply(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client reports it."""
    monkeypatch.setattr("exporter.status_client.read_line", lambda *_: b"[" * 1_000_000)
    with pytest.raises(ServiceError):
        query_service(directory, "status", PATIENCE)


def test_returns_none_without_a_service(tmp_path: Path) -> None:
    assert query_service(tmp_path, "status", PATIENCE) is None


def test_replaces_the_socket_of_a_killed_service(
    tmp_path: Path,
) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / NAME))
    assert query_service(tmp_path, "status", PATIENCE) is None

    service = ServiceSocket(tmp_path, lambda _: {"status": dict})
    service.open()
    assert query_service(tmp_path, "status", PATIENCE) == {}
    service.close()


def test_a_second_service_does_not_replace_the_socket(directory: Path) -> None:
    second = ServiceSocket(directory, lambda _: {"status": lambda: {"table": "another"}})
    second.open()
    second.close()
    assert query_service(directory, "status", PATIENCE) == {"table": "all well"}


def test_only_the_owner_can_open_the_socket_which_close_removes(tmp_path: Path) -> None:
    service = ServiceSocket(tmp_path, lambda _: {})
    service.open()
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    service.close()
    assert not (tmp_path / NAME).exists()


def test_service_continues_without_a_directory_for_the_socket(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    service = ServiceSocket(tmp_path / "file" / "below", lambda _: {})
    service.open()
    service.close()


@pytest.mark.parametrize(
    "words",
    [
        *(b"", b"\n", b"status\n", b"[]\n", b"{}\n", b'{"command": 7}\n', b'{"command": []}\n', b"\xff\xfe\n"),
        *(b"[" * 4096, b'{"command": "status", "arguments": 7}\n', b'{"command": "status", "arguments": [7]}\n'),
    ],
)
def test_lists_the_commands_after_an_invalid_request(directory: Path, words: bytes) -> None:
    assert json.loads(say(directory, words)) == {"problem": "unknown command; the commands are: status, break, repeat"}
    assert query_service(directory, "status", PATIENCE) == {"table": "all well"}


def test_does_not_read_an_endless_request(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(directory / NAME))
        with pytest.raises(ConnectionError):
            connection.sendall(b" " * (64 << 20))


def test_a_silent_client_delays_others_only_briefly(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(directory / NAME))
        assert query_service(directory, "status", PATIENCE) == {"table": "all well"}


class SlowReader(socket.socket):
    """Takes a few bytes at a time, and all of a long answer never within one timeout."""

    def __init__(self) -> None:
        super().__init__(socket.AF_UNIX)
        self.taken = b""

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Take the first bytes."""
        self.taken += bytes(data[:7])
        return min(7, len(data))

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        """Run into the timeout."""
        raise TimeoutError


def test_a_long_answer_reaches_a_client_that_reads_slowly() -> None:
    with SlowReader() as reader:
        send(reader, b"x" * 1000)
        assert reader.taken == b"x" * 1000


def test_refuses_another_user_whatever_the_mode_of_the_socket(everybodys: Path) -> None:
    def refused() -> str:
        try:
            return str(query_service(everybodys, "status", PATIENCE))
        except ServiceError as error:
            return str(error)

    with contextlib.closing(ServiceSocket(everybodys, lambda _: {"status": dict})) as service:
        service.open()
        (everybodys / NAME).chmod(0o666)
        answer = run_as(partial(become, OTHER_USER), refused)
    assert "this socket serves only root and the service's own user" in answer
