"""Listeners, their errors, and systemd socket activation."""

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest

from exporter.errors import ConfigError, ListenError
from exporter.web.server import WebServer, activated_listeners
from tests.ports import LOCALHOST
from tests.program import main
from tests.web.serving import ReplaceableSite, ask, read_all, serving


@pytest.fixture
def taken() -> Iterator[int]:
    """A port in use."""
    with socket.create_server((LOCALHOST, 0)) as other:
        yield other.getsockname()[1]


def test_error_for_a_port_in_use_names_the_option(taken: int) -> None:
    with pytest.raises(ListenError, match=rf"cannot listen on {LOCALHOST}:{taken}: .*; stop the program"):
        WebServer(ReplaceableSite(), [(LOCALHOST, taken)], max_requests=1)


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
    WebServer(ReplaceableSite(), [(LOCALHOST, 0)], max_requests=1).close()


def test_releases_all_addresses_if_one_is_in_use(taken: int) -> None:
    with socket.create_server((LOCALHOST, 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ListenError):
        WebServer(ReplaceableSite(), [(LOCALHOST, port), (LOCALHOST, taken)], max_requests=1)

    with socket.create_server((LOCALHOST, port)):
        pass


PROGRAM = """
    import os, sys
    from exporter.errors import ConfigError
    from exporter.web.server import WebServer, activated_listeners
    os.dup2(int(sys.argv[1]), 3)
    try:
        listeners = activated_listeners({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}, os.getpid())
        web = WebServer(None, [], listeners=listeners, max_requests=1)
        print(web.port, os.get_inheritable(3))
    except ConfigError as error:
        print(error)
"""


def handed(listener: socket.socket) -> str:
    """Return the output of a process that inherits a socket as descriptor 3."""
    command = (sys.executable, "-W", "ignore::ResourceWarning", "-c", textwrap.dedent(PROGRAM), str(listener.fileno()))
    done = subprocess.run(
        command, pass_fds=[listener.fileno()], cwd=os.getcwd(), capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_uses_an_activated_socket_that_listens_and_does_not_pass_it_to_children() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as other:
        assert handed(listener) == f"{listener.getsockname()[1]} False"
        assert handed(other).startswith("--web.systemd-socket: descriptor 3 does not listen on TCP")


def test_error_names_the_socket_unit_if_systemd_passed_no_socket(subtests: pytest.Subtests) -> None:
    for environment in [
        {},
        {"LISTEN_FDS": "1"},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1"},
        {"LISTEN_PID": "42"},
        {"LISTEN_PID": "42", "LISTEN_FDS": "0"},
        {"LISTEN_PID": "42", "LISTEN_FDS": "x"},
        {"LISTEN_PID": "42", "LISTEN_FDS": "\u00b2"},
    ]:
        with (
            subtests.test(environment=environment),
            pytest.raises(ConfigError, match=r"--web\.systemd-socket: systemd passed no socket; start the \.socket"),
        ):
            activated_listeners(environment, 42)
