"""The client mode: send standard input to the daemon line by line, and print the replies.

It connects before it reads, and stays connected until its input ends. An open input blocks all other
sessions. It sends its credentials at once, because the daemon waits for them and does nothing else. Every
accepted connection is answered with a greeting; a refused one is closed without it.
"""

import os
import socket
import sys
from collections.abc import Iterable

from . import sockets
from .names import pid_file, pipe_directory, take_comm

NOT_FOUND = "Cannot find MPS control daemon process"
NOT_SENT = "Cannot send command to MPS control daemon process"


class SessionError(Exception):
    """The session was refused or interrupted. The text is that of the real client."""


def main(words: list[str]) -> int:
    """Send the command of the arguments, else every line of standard input."""
    take_comm()
    try:
        with _connect(pipe_directory()) as connection:
            _converse(connection, [" ".join(words)] if words else sys.stdin)
    except SessionError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


def _connect(directory: str) -> socket.socket:
    if not _daemon_lives(directory):
        raise SessionError(NOT_FOUND)
    try:
        return sockets.connect(directory, "control")
    except OSError:
        raise SessionError(NOT_FOUND) from None


def _daemon_lives(directory: str) -> bool:
    try:
        with open(pid_file(directory)) as file:
            os.kill(int(file.read()), 0)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True


def _converse(connection: socket.socket, commands: Iterable[str]) -> None:
    _send(connection, sockets.CREDENTIALS)
    greeting = _receive(connection)
    if greeting == sockets.DEAF:
        return
    for command in commands:
        sys.stdout.buffer.write(_ask(connection, command.rstrip("\n")))
        sys.stdout.buffer.flush()


def _ask(connection: socket.socket, command: str) -> bytes:
    _send(connection, command.encode() or b"\n")
    return _receive(connection).removeprefix(sockets.REPLY)


def _send(connection: socket.socket, message: bytes) -> None:
    try:
        connection.send(message)
    except OSError:
        raise SessionError(NOT_SENT) from None


def _receive(connection: socket.socket) -> bytes:
    try:
        message = connection.recv(sockets.LARGEST_MESSAGE)
    except OSError:
        message = b""
    if not message:
        raise SessionError(NOT_SENT)
    return message
