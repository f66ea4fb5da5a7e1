"""A client that forks, as for the workers of a data loader. A child has its parent's connection after that has exited.

As a program: `python -m tests.standin.forking PIPE_DIRECTORY CHILDREN [exec]`. It prints the PIDs of its children, and
exits at the end of its input. With `exec`, the children execute another program. With `without-connection` or
`without-listener`, they close one of the sockets. With `other-listener`, its socket is not as that of libcuda. With
`as-client`, they have such a socket of their own.
"""

import contextlib
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.standin.mps import MpsStandIn, wait_until
from tests.standin.mps_daemon import sockets
from tests.standin.mps_daemon.side_channel import NAME

ROOT = Path(__file__).resolve().parents[2]


class ForkingClient:
    """Such a client; a context manager that ends it and its children."""

    def __init__(self, mps: MpsStandIn, children: int = 1, *options: str) -> None:
        """Start it, and wait until it is a client with children."""
        command = [sys.executable, "-m", "tests.standin.forking", str(mps.pipe_directory), str(children), *options]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe)
        self.pid = self._process.pid
        wait_until(lambda: _outcome(mps, self.pid) == "active", f"client {self.pid}")
        self.children = [int(_line(self._process)) for _ in range(children)]

    def exit(self) -> None:
        """Let the process exit, but not its children."""
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.exit()
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def _outcome(mps: MpsStandIn, pid: int) -> str:
    with contextlib.suppress(RuntimeError):
        return mps.outcome(pid)
    return ""


def _line(process: "subprocess.Popen[bytes]") -> bytes:
    if process.stdout is None:
        raise RuntimeError("its output is closed")
    return process.stdout.readline()


def _listen(name: str) -> socket.socket:
    """Listen as libcuda does for the file descriptor of UVM (measured, R580)."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0{name}-{os.stat('/proc/self/ns/pid').st_ino}-{os.getpid()}")
    listener.listen()
    return listener


def main(pipe_directory: str, children: int, *options: str) -> None:
    """Run the client."""
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory, "libcuda.so.1")
        library.write_bytes(bytes(mmap.PAGESIZE))
        with library.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with sockets.connect(pipe_directory, NAME) as request:
        request.send(b"attach 0")
        _, (connection,), *_ = socket.recv_fds(request, sockets.LARGEST_MESSAGE, 1)
    listener = _listen("worker" if "other-listener" in options else "cuda-uvmfd")
    for _ in range(children):
        child = os.fork()
        if child == 0:
            # Otherwise it would hold the pipes of the test.
            for number in (0, 1):
                os.dup2(os.open(os.devnull, os.O_RDWR), number)
            if "without-connection" in options:
                os.close(connection)
            if "without-listener" in options:
                listener.close()
            if "as-client" in options:
                _own = _listen("cuda-uvmfd")
            if "exec" in options:
                for number in (connection, listener.fileno()):
                    os.set_inheritable(number, True)
                os.execlp("sleep", "sleep", "3600")
            signal.pause()
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
    sys.stdin.read()
    mapped.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
