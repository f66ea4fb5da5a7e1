"""Processes that map files, as CUDA programs map libcuda."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_PROGRAM = """
import ctypes, json, mmap, os, sys

def map_code(path):
    file = os.open(path, os.O_RDONLY)
    mappings.append(mmap.mmap(file, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC))
    os.close(file)

mappings = []
print(flush=True)
for line in sys.stdin:
    command, path = json.loads(line)
    {"dlopen": ctypes.CDLL, "map": map_code, "chroot": os.chroot}[command](path)
    print(flush=True)
"""


class MappingProcess:
    """A process that maps files on request. `enter` is a command prefix, for example to enter a namespace."""

    def __init__(self, enter: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*enter, sys.executable, "-S", "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._await_reply()

    @property
    def pid(self) -> int:
        return self._process.pid

    def dlopen(self, path: Path) -> None:
        self._send("dlopen", path)

    def map(self, path: Path) -> None:
        self._send("map", path)

    def chroot(self, path: Path) -> None:
        self._send("chroot", path)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _send(self, command: str, path: Path) -> None:
        assert self._process.stdin is not None
        print(json.dumps([command, str(path)]), file=self._process.stdin, flush=True)
        self._await_reply()

    def _await_reply(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "\n"


@contextlib.contextmanager
def mapping(*paths: Path, enter: Sequence[str] = ()) -> Iterator[MappingProcess]:
    """Start a process that maps these files as code."""
    process = MappingProcess(enter)
    try:
        for path in paths:
            process.map(path)
        yield process
    finally:
        process.end()
