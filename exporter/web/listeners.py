"""The sockets that are listened on: of the addresses that are named, or handed over by systemd."""

import os
import socket
from collections.abc import Mapping, Sequence

from exporter.errors import ConfigError, ListenError

BACKLOG = 128
FIRST_ACTIVATED = 3
"""The first descriptor that systemd hands over (sd_listen_fds(3))."""


def listen(address: tuple[str, int]) -> socket.socket:
    """Listen on an address, both protocols where no host is named; ListenError if it cannot be had now."""
    host, port = address
    try:
        if host:
            return _listening(socket.AF_INET6 if ":" in host else socket.AF_INET, host, port)
        return _on_all(port)
    except OSError as error:
        shown = f"[{host}]" if ":" in host else host
        raise ListenError(f"--web.listen-address: cannot listen on {shown}:{port}: {error.strerror}") from error


def activated_listeners(environment: Mapping[str, str], pid: int) -> Sequence[socket.socket]:
    """The listening sockets that systemd handed over to this process; ConfigError if there are none of use."""
    count = environment.get("LISTEN_FDS", "")
    if environment.get("LISTEN_PID") != str(pid) or not (count.isascii() and count.isdigit() and int(count) > 0):
        raise ConfigError(
            "--web.systemd-socket: systemd handed over no socket; start the .socket unit that goes with this service,"
            " or use --web.listen-address"
        )
    return [_activated(FIRST_ACTIVATED + number) for number in range(int(count))]


def _on_all(port: int) -> socket.socket:
    try:
        return _listening(socket.AF_INET6, "", port)
    except OSError:
        return _listening(socket.AF_INET, "", port)


def _listening(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _activated(descriptor: int) -> socket.socket:
    try:
        os.set_inheritable(descriptor, False)
        listener = socket.socket(fileno=descriptor)
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ConfigError(f"--web.systemd-socket: descriptor {descriptor} is no socket: {error.strerror}") from error
    if not listens or listener.family not in (socket.AF_INET, socket.AF_INET6):
        raise ConfigError(
            f"--web.systemd-socket: descriptor {descriptor} does not listen on TCP; use ListenStream=PORT"
        )
    return listener
