"""Notifier sends the state of the service to systemd, and does not fail without systemd."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.service import Notifier
from tests.eventually import PATIENCE_SECONDS


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    """The service manager's end of a notify socket; the test binds it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.settimeout(PATIENCE_SECONDS)
        yield channel


def test_sends_each_message_as_a_datagram(manager: socket.socket, tmp_path: Path) -> None:
    manager.bind(str(tmp_path / "notify"))
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})

    notifier.ready()
    notifier.alive(lambda: "1 of 1 daemons up, 3 clients")
    notifier.reloading(12.5)
    notifier.stopping()

    assert [manager.recv(4096) for _ in range(4)] == [
        b"READY=1",
        b"WATCHDOG=1\nSTATUS=1 of 1 daemons up, 3 clients",
        b"RELOADING=1\nMONOTONIC_USEC=12500000",
        b"STOPPING=1",
    ]


def test_sends_to_an_abstract_socket(manager: socket.socket, tmp_path: Path) -> None:
    manager.bind(f"\0{tmp_path}/notify")
    Notifier({"NOTIFY_SOCKET": f"@{tmp_path}/notify"}).ready()

    assert manager.recv(4096) == b"READY=1"


def test_removes_the_socket_from_the_environment() -> None:
    environment = {"NOTIFY_SOCKET": "/nowhere/at/all", "PATH": "/bin"}
    Notifier(environment)

    assert environment == {"PATH": "/bin"}


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "/nowhere/at/all"}])
def test_does_nothing_without_systemd(environment: dict[str, str]) -> None:
    notifier = Notifier(environment)

    notifier.ready()
    notifier.alive(lambda: "well")
    notifier.stopping()


def test_does_not_wait_for_a_manager_that_does_not_read(manager: socket.socket, tmp_path: Path) -> None:
    manager.bind(str(tmp_path / "notify"))
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})

    for _ in range(2000):
        notifier.alive(lambda: "well")
