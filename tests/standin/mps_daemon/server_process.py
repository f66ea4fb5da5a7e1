"""The process that the daemon calls its server: it is there to be seen, stopped and killed.

It answers one byte with one byte, so that a stopped server keeps a daemon waiting, and ends when the daemon lets go
of it, or is killed: a stopped one, which sees nothing of that, outlives its daemon. Run as a script of its own, since
it needs nothing of the rest. Its standard input is the daemon's socket.
"""

import contextlib
import socket


def main() -> None:
    """Answer until told to go, or until nobody is there to ask."""
    channel = socket.socket(fileno=0)
    with contextlib.suppress(OSError):
        while channel.recv(1):
            channel.send(b"!")


if __name__ == "__main__":
    main()
