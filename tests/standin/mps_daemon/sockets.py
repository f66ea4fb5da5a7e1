"""Unix sockets in a directory whose path may be longer than a socket address can be."""

import os
import select
import socket

CREDENTIALS = b"CREDENTIALS"
"""What a program that sends commands says first. The real words were not measured."""
NO_CREDENTIALS = b"OUTBHELL\0"
GREETING = b"WELCOME"
DEAF = b"DEAF"
REPLY = b"="
LARGEST_MESSAGE = 1 << 20
LONGEST_PATH = 107


Directory = str | os.PathLike[str]


def _short_path(directory: int, name: str) -> str:
    return f"/proc/self/fd/{directory}/{name}"


def _path_to_bind(directory: Directory, descriptor: int, name: str) -> str:
    """The whole path, as the real daemon binds it and the kernel's table then shows it, where it fits."""
    path = os.path.join(directory, name)
    return path if len(os.fsencode(path)) <= LONGEST_PATH else _short_path(descriptor, name)


def listen(directory: Directory, name: str) -> socket.socket:
    """Listen at ``name``, in place of whatever an earlier daemon left there."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if os.path.lexists(os.path.join(directory, name)):
            os.unlink(name, dir_fd=descriptor)
        listener.bind(_path_to_bind(directory, descriptor, name))
    finally:
        os.close(descriptor)
    listener.listen(128)
    return listener


def connect(directory: Directory, name: str, timeout: float | None = None) -> socket.socket:
    """Connect to the socket ``name``; raises OSError when nobody listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(timeout)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        connection.connect(_short_path(descriptor, name))
    except OSError:
        connection.close()
        raise
    finally:
        os.close(descriptor)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Return whether the other side has closed the connection, and not only its own direction of it."""
    poll = select.poll()
    poll.register(connection, 0)
    return bool(poll.poll(0))
