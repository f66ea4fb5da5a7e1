"""Systemd socket activation."""

import os
import socket
import subprocess
import sys
import textwrap

import pytest

from exporter.errors import ConfigError
from exporter.web.server import activated_listeners

PROGRAM = """
    import os, sys
    from exporter.errors import ConfigError
    from exporter.web.server import WebServer, activated_listeners
    os.dup2(int(sys.argv[1]), 3)
    try:
        listeners = activated_listeners({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}, os.getpid())
        web = WebServer(None, [], listeners=listeners)
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
