"""The process that the daemon calls its server: it is there to be seen, stopped and killed.

It answers one byte with one byte, so that a stopped server keeps a daemon waiting, and ends when the daemon lets go
of it. Run as a script of its own, since it needs nothing of the rest. Its standard input is the daemon's socket.
"""

import ctypes
import signal
import socket
from pathlib import Path

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Answer until told to go; a daemon that is killed takes even a stopped server with it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    Path("/proc/self/comm").write_text("nvidia-cuda-mps")
    channel = socket.socket(fileno=0)
    while channel.recv(1):
        channel.send(b"!")


if __name__ == "__main__":
    main()
