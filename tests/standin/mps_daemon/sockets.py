"""Unix sockets in directories with paths that are too long for a socket address."""

import os
import select
import socket
import struct

CREDENTIALS = b"CREDENTIALS"
"""First message of a program that sends commands. The real one was not measured."""
NO_CREDENTIALS = b"OUTBHELL\0"
GREETING = b"WELCOME"
DEAF = b"DEAF"
REPLY = b"="
LARGEST_MESSAGE = 1 << 20
LONGEST_PATH = 107
PEER = struct.Struct("=iII")  # `struct ucred` (unix(7))


Directory = str | os.PathLike[str]


def _short_path(directory: int, name: str) -> str:
    return f"/proc/self/fd/{directory}/{name}"


def _path_to_bind(directory: Directory, descriptor: int, name: str) -> str:
    """Return the full path if it fits, as the real daemon binds it."""
    path = os.path.join(directory, name)
    return path if len(os.fsencode(path)) <= LONGEST_PATH else _short_path(descriptor, name)


def listen(directory: Directory, name: str) -> socket.socket:
    """Listen at ``name``, and replace the socket of an earlier daemon."""
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
    """Connect to the socket ``name``; OSError if no process listens."""
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
    """Return whether the peer has closed both directions of the connection."""
    poll = select.poll()
    poll.register(connection, 0)
    return bool(poll.poll(0))
