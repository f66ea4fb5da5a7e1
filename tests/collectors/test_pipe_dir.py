"""What another user put into a directory is opened only if it is a regular file: to open a device can act on it."""

import contextlib
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exporter.actions.evidence import snapshot
from exporter.collectors import systemd
from exporter.collectors.logs import DaemonLogs, read_tail
from exporter.collectors.pipe_dir import CONTROL_LOG, PID_FILE, SERVER_LOG, STDOUT, Directory, on_host, open_path
from exporter.collectors.proc import Proc
from exporter.doctor.readers import read_directory
from exporter.model.action import SaveEvidence
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import LogFile
from tests.actions.action_setup import action
from tests.clocks import HandClock
from tests.tools import not_here

NAME = "node"


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening, contextlib.chdir(path.parent):
        listening.bind(path.name)


def _device(path: Path) -> None:
    """Make a device, which takes root. To open it makes a terminal."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(5, 2))
    except PermissionError:
        not_here("only root can make a device")


KINDS: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "socket": _socket,
    "device": _device,
    "link": lambda path: path.symlink_to("/dev/null"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_regular_files_is_opened(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = (PID_FILE, CONTROL_LOG, SERVER_LOG, STDOUT)
    for name in names:
        KINDS[kind](tmp_path / name)
    wrong: list[str] = []
    really_open = os.open

    def spy(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        descriptor = really_open(path, flags | os.O_NONBLOCK, *arguments, **options)
        mode = os.fstat(descriptor).st_mode
        if not flags & os.O_PATH and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            wrong.append(str(path))
        return descriptor

    monkeypatch.setattr(os, "open", spy)
    clock = HandClock()
    location = on_host(NAME, tmp_path, tmp_path)
    daemon = Daemon(name=NAME, pipe_directory=str(tmp_path), log_directory=str(tmp_path))
    proc = Proc(Path("/proc"), clock)
    files = Directory(tmp_path).files()
    assert files is not None
    assert files.pid is None
    seen = DaemonLogs(location, clock).collect().observations
    assert {type(each) for each in seen} == {LogFile}
    saved = dict(snapshot(action(SaveEvidence()), Node(), location, proc=Path("/proc"), kmsg=None))
    assert not saved.keys() & set(names)
    assert read_directory(daemon, None, proc).pid is None
    with pytest.raises(OSError, match="regular file"):
        list(read_tail(location))
    assert open_path(tmp_path / SERVER_LOG) is None
    assert systemd._text(str(tmp_path / SERVER_LOG)) == ""
    assert wrong == []
