"""The log files: opened once to append and never again, so that they follow a rename and start anew when truncated."""

import os
from datetime import datetime
from pathlib import Path


class Log:
    """One log, a line a write."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def append_to(cls, path: Path) -> "Log":
        """A log file, made together with its directory where there is none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        return cls(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644))

    def write(self, origin: str, pid: int, text: str) -> None:
        """Write ``[2026-11-20 15:08:45.147 Control   452] text``."""
        stamp = datetime.now().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        os.write(self._descriptor, f"[{stamp} {origin} {pid:5d}] {text}\n".encode())
