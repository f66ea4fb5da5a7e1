"""Processes that have files mapped, as users of CUDA have libcuda."""

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
    kept.append(mmap.mmap(file, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC))
    os.close(file)

kept = []
print(flush=True)
for line in sys.stdin:
    word, path = json.loads(line)
    {"dlopen": ctypes.CDLL, "map": map_code, "chroot": os.chroot}[word](path)
    print(flush=True)
"""


class MappingProcess:
    """A process that does as it is told; `enter` are words before its command, which put it elsewhere."""

    def __init__(self, enter: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*enter, sys.executable, "-S", "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answered()

    @property
    def pid(self) -> int:
        """Its PID."""
        return self._process.pid

    def dlopen(self, path: Path) -> None:
        """Have it load a library."""
        self._told("dlopen", path)

    def map(self, path: Path) -> None:
        """Have it map any file as code."""
        self._told("map", path)

    def chroot(self, path: Path) -> None:
        """Have it live below another root."""
        self._told("chroot", path)

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def _told(self, word: str, path: Path) -> None:
        assert self._process.stdin is not None
        print(json.dumps([word, str(path)]), file=self._process.stdin, flush=True)
        self._answered()

    def _answered(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "\n"


@contextlib.contextmanager
def mapping(*paths: Path, enter: Sequence[str] = ()) -> Iterator[MappingProcess]:
    """A process that has these files mapped as code."""
    process = MappingProcess(enter)
    try:
        for path in paths:
            process.map(path)
        yield process
    finally:
        process.end()
