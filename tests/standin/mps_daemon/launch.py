"""Start processes with the names of NVIDIA's programs."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from .names import CONTROL_NAME, SERVER_NAME

SCRIPT = Path(__file__).resolve().parent.parent / "bin" / CONTROL_NAME
SERVER_SCRIPT = Path(__file__).resolve().with_name("server_process.py")
READY_DESCRIPTOR = "STANDIN_MPS_READY_DESCRIPTOR"
INTERPRETER = "STANDIN_MPS_INTERPRETER"


def has_its_name() -> bool:
    """Return whether argv[0] of this process is the daemon's name, not ``python3 script``."""
    return sys.orig_argv[0] == CONTROL_NAME


def become_daemon_process(arguments: list[str]) -> None:
    """Execute this script again in the same process, under the name of the real binary in /proc.

    With another argv[0], Python cannot find its home, which is therefore set.
    """
    os.environ["PYTHONHOME"] = f"{sys.base_prefix}:{sys.base_exec_prefix}"
    os.environ[INTERPRETER] = sys.executable
    os.execv(sys.executable, [CONTROL_NAME, str(SCRIPT), *arguments])


def start_in_background(arguments: list[str]) -> int:
    """Start a daemon that outlives this process. Return when it answers, or its exit code."""
    readable, writable = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _detach_from_terminal()
            os.set_inheritable(writable, True)
            os.environ[READY_DESCRIPTOR] = str(writable)
            become_daemon_process(arguments)
        os._exit(0)
    os.wait()
    os.close(writable)
    return 0 if os.read(readable, 1) else 1


def _detach_from_terminal() -> None:
    """Detach, but leave standard output open until the daemon is ready, for error messages."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def report_ready(errors: Path) -> None:
    """Notify ``start_in_background``, and close its standard output."""
    descriptor = os.environ.pop(READY_DESCRIPTOR, None)
    if descriptor is not None:
        os.write(int(descriptor), b"1")
        os.close(int(descriptor))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)


def _named_interpreter(directory: Path) -> Path:
    link = directory / SERVER_NAME
    with contextlib.suppress(FileExistsError):
        link.symlink_to(os.environ[INTERPRETER])
    return link


def _wait_for_name(process: "subprocess.Popen[bytes]") -> None:
    """Wait until the child has its new name: execve(2) lets the parent continue a moment before (Linux 6.18)."""
    while process.poll() is None:
        if Path(f"/proc/{process.pid}/comm").read_text().strip() == SERVER_NAME[:15]:
            return
        time.sleep(0.0005)


class ServerProcess:
    """A child process as the MPS server. It has the log fifo open, like the real one."""

    def __init__(self, log: int, directory: Path) -> None:
        """Start it. The directory gets a link to the interpreter with the server's name.

        The kernel names a process after its executable. A process that renames itself has another name at
        first, and a reader would take it for another program.
        """
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [SERVER_NAME, str(SERVER_SCRIPT)],
                executable=_named_interpreter(directory),
                stdin=theirs.fileno(),
                pass_fds=[log],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self.pid = self._process.pid
        _wait_for_name(self._process)

    def answers(self) -> bool:
        """Query it, and wait without limit if it is stopped. Return False if it has died."""
        try:
            self._channel.send(b"?")
            return self._channel.recvmsg(1)[0] != b""
        except OSError:
            return False

    def dismiss(self) -> None:
        """Let it exit."""
        self._channel.close()

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()

    def reap(self) -> None:
        """Reap it after its end."""
        self._process.wait()
        self._channel.close()
