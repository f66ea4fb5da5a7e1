"""The server process of the stand-in, which tests can observe, stop and kill.

It answers one byte with one byte, so that a stopped server blocks the daemon. It ends when the daemon closes the
socket or dies. A stopped server outlives its daemon. It is a separate script, because
it needs no other module. Its standard input is the daemon's socket.
"""

import contextlib
import socket


def main() -> None:
    """Answer until the daemon ends the connection."""
    channel = socket.socket(fileno=0)
    with contextlib.suppress(OSError):
        while channel.recv(1):
            channel.send(b"!")


if __name__ == "__main__":
    main()
