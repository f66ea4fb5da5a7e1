"""Which processes a daemon may wait for: those with an open connection to it."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors.daemon_directory import probe, read_control_sockets, session_holder
from exporter.collectors.pipe_dir import Directory
from exporter.collectors.proc import Proc
from exporter.model.identity import ProcessIdentity
from tests.eventually import eventually

_DAEMON = """
import os, socket, sys, time
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind("control")
listener.listen(1)
if os.fork() == 0:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect("control")
    os.kill(os.getpid(), 19)
kept = []
while True:
    kept.append(listener.accept()[0])
    if len(kept) > 1 and os.path.exists("hang"):
        time.sleep(600)
    if len(kept) > 1:
        kept[-1].recv(64)
"""
"""A daemon with a server, which waits for the first bytes of each connection and keeps all of them."""


class _FromOutside(Proc):
    """No process is one of the exporter."""

    def descends_from_us(self, pid: int) -> bool:
        return False


PROC = _FromOutside(Path("/proc"), SystemClock())


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory whose path fits into the address of a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def daemon(directory: Path) -> Iterator[ProcessIdentity]:
    child = subprocess.Popen([sys.executable, "-c", _DAEMON], cwd=directory, start_new_session=True)
    try:
        eventually(lambda: _connects_its_server(child.pid))
        ticks = PROC.start_ticks(child.pid)
        assert ticks is not None
        yield ProcessIdentity(pid=child.pid, start_ticks=ticks)
    finally:
        os.killpg(child.pid, 9)
        child.wait()


def _connects_its_server(pid: int) -> None:
    assert len(PROC.sockets(pid, 64)) == 2


def _connected(directory: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(directory / "control"))
    return connection


def _peers(daemon: ProcessIdentity, number: int) -> tuple[tuple[int, int], ...]:
    """Return the peers, after the daemon has accepted so many connections beside its server's."""
    eventually(lambda: _accepted(daemon, number))
    sockets = read_control_sockets(PROC, daemon)
    assert sockets is not None
    assert sockets.listening
    return sockets.peers


def _accepted(daemon: ProcessIdentity, number: int) -> None:
    assert len(PROC.sockets(daemon.pid, 64)) == 2 + number


def test_a_process_with_an_open_connection_is_a_peer(directory: Path, daemon: ProcessIdentity) -> None:
    assert _peers(daemon, 0) == ()
    with _connected(directory):
        assert _peers(daemon, 1) == ((os.getpid(), os.getuid()),)
        holder = session_holder(PROC, SystemClock(), "node", read_control_sockets(PROC, daemon))
        assert (holder.pid, holder.uid) == (os.getpid(), os.getuid())
        own = read_control_sockets(Proc(Path("/proc"), SystemClock()), daemon)
        assert own is not None
        assert own.peers == ()


def test_a_connection_whose_other_end_is_closed_holds_no_daemon(directory: Path, daemon: ProcessIdentity) -> None:
    """A daemon that hangs keeps the connection of the command that was killed (measured, R580)."""
    (directory / "hang").touch()
    connection = _connected(directory)
    assert len(_peers(daemon, 1)) == 1
    connection.shutdown(socket.SHUT_WR)
    assert _peers(daemon, 1) == ()
    connection.close()
    assert _peers(daemon, 1) == ()


def test_sockets_of_another_process_with_the_pid_are_not_read(daemon: ProcessIdentity) -> None:
    other = ProcessIdentity(pid=daemon.pid, start_ticks=daemon.start_ticks + 1)
    assert read_control_sockets(PROC, other) is None


def test_a_full_queue_leaves_open_who_is_connected(directory: Path, daemon: ProcessIdentity) -> None:
    """Any user can fill it with connections that end at once: no accepted connection shows them."""
    (directory / "hang").touch()
    with _connected(directory):
        _peers(daemon, 1)
        for _ in range(2):
            _connected(directory).close()
        assert probe(Directory(directory), lambda: False) == (True, False, None)
        assert probe(Directory(directory), lambda: True) == (True, False, True)
