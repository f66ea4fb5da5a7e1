"""Listeners and their errors."""

import contextlib
import http.client
import socket
from collections.abc import Callable, Iterator

import pytest

from exporter.errors import ListenError
from exporter.web.server import WebServer
from tests.ports import LOCALHOST
from tests.program import main
from tests.web.serving import Stage, ask, read_all, serving


@pytest.fixture
def taken() -> Iterator[int]:
    """A port in use."""
    with socket.create_server((LOCALHOST, 0)) as other:
        yield other.getsockname()[1]


def test_error_for_a_port_in_use_names_the_option(taken: int) -> None:
    with pytest.raises(ListenError, match=rf"--web\.listen-address: cannot listen on {LOCALHOST}:{taken}: "):
        WebServer(Stage(), [(LOCALHOST, taken)])


@pytest.mark.parametrize(
    ("command", "address"),
    [
        (["serve"], lambda taken: f"{LOCALHOST}:{taken}"),
        (["serve"], lambda taken: f":{taken}"),
        (["serve"], lambda _: "no.such.host.invalid:1"),
        (["demo", "--calm"], lambda taken: f"{LOCALHOST}:{taken}"),
    ],
    ids=["one address", "all addresses", "a host without an address", "demo"],
)
def test_exits_with_1_if_a_listen_address_cannot_be_used_now(
    command: list[str], address: Callable[[int], str], taken: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--web.listen-address", address(taken)]) == 1  # systemd then starts the service again
    assert "--web.listen-address: cannot listen on " in capsys.readouterr().err


def healthy(host: str, port: int) -> bool:
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=30)) as connection:
        return ask(connection, "/-/healthy").status == 200


def test_origins_are_urls_for_a_browser_on_this_machine() -> None:
    for host, shown in {"": "localhost", LOCALHOST: LOCALHOST, "::1": "[::1]"}.items():
        with serving((host, 0)) as web:
            assert list(web.server.origins) == [f"http://{shown}:{web.server.port}"]


def test_serves_one_site_at_several_addresses_and_with_ipv4_and_ipv6_if_the_host_is_empty() -> None:
    with serving((LOCALHOST, 0), ("127.0.0.2", 0)) as web:
        assert [host for host, _ in web.server.addresses] == [LOCALHOST, "127.0.0.2"]
        assert all(healthy(host, port) for host, port in web.server.addresses)
    with serving(("", 0)) as web:
        for host in (LOCALHOST, "::1") if socket.has_dualstack_ipv6() else (LOCALHOST,):
            assert healthy(host, web.server.port)


def test_closes_a_silent_connection_if_the_limit_is_reached() -> None:
    with serving(max_requests=1) as web, web.connect() as silent:
        assert healthy(LOCALHOST, web.server.port)
        assert read_all(silent) == b""


def test_closes_a_server_that_was_never_opened() -> None:
    WebServer(Stage(), [(LOCALHOST, 0)]).close()


def test_releases_all_addresses_if_one_is_in_use(taken: int) -> None:
    with socket.create_server((LOCALHOST, 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ListenError):
        WebServer(Stage(), [(LOCALHOST, port), (LOCALHOST, taken)])

    with socket.create_server((LOCALHOST, port)):
        pass
