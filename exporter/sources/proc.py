"""Reads /proc. All of it is data that a workload may have chosen. The only importer of psutil."""

from pathlib import Path

import psutil

from exporter.clock import Clock
from exporter.model.observation import ProcessReading
from exporter.parse import process_stat

_MOST_TEXT = 4096
_MOST_ENVIRONMENT = 1 << 20


class Proc:
    """The processes that this /proc shows. What may not be read, or is gone, is None."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root = root
        self._clock = clock

    def start_ticks(self, pid: int) -> int | None:
        """When a process that lives started, in clock ticks since boot; None too for the remains of one (a zombie)."""
        text = self._text(pid, "stat")
        return None if text is None or process_stat.is_zombie(text) else process_stat.start_ticks(text)

    def facts(self, pid: int) -> ProcessReading | None:
        """Who a process is."""
        start_ticks = self.start_ticks(pid)
        if start_ticks is None:
            return None
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                return ProcessReading(
                    at=self._clock.now(),
                    pid=pid,
                    start_ticks=start_ticks,
                    started=process.create_time(),
                    uid=process.uids().real,
                    user=_encodable(process.username()),
                    command=_encodable(process.name()),
                    executable=_executable(process),
                    cgroup=self._text(pid, "cgroup"),
                )
        except (psutil.Error, OSError):
            return None

    def variable(self, pid: int, name: str) -> str | None:
        """One variable of a process's environment; nothing else of it is kept."""
        try:
            with open(self._root / str(pid) / "environ", "rb") as file:
                variables = file.read(_MOST_ENVIRONMENT).split(b"\0")
        except OSError:
            return None
        key = name.encode() + b"="
        found = next((variable for variable in variables if variable.startswith(key)), None)
        return None if found is None else found[len(key) :][:_MOST_TEXT].decode(errors="replace")

    def _text(self, pid: int, name: str) -> str | None:
        try:
            with open(self._root / str(pid) / name, "rb") as file:
                return file.read(_MOST_TEXT).decode(errors="replace")
        except OSError:
            return None


def _executable(process: psutil.Process) -> str | None:
    """The path of the program; None where the exporter's user may not see it (another user's, without privilege)."""
    try:
        return _encodable(process.exe()) or None
    except (psutil.Error, OSError):
        return None


def _encodable(text: str) -> str:
    """Names may hold any bytes, which psutil hands over as lone surrogates; these no file and no socket would take."""
    return text[:_MOST_TEXT].encode(errors="replace").decode()
