"""Clients that count their work in files."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.measure import PATIENCE_SECONDS
from benchmarks.nodes import Node
from benchmarks.real_node import RealNode
from lab.gpu.clients import build

LAUNCHES = Path(__file__).with_name("launches.cu")
BYTES = 8

TURNS = """
import mmap, sys, time
with open(sys.argv[1], "r+b") as file:
    count = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")
    while True:
        time.sleep(0.0005)
        count[0] += 1
"""
"""Program of a client without a GPU. It only shows that the script works."""


class Crowd:
    """Clients that count their work."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    def done(self) -> int:
        """Return the work of all clients so far."""
        return sum(self._counts())

    def rate(self, pass_time: Callable[[], None]) -> float:
        """Return the work a second while `pass_time` runs."""
        before, began = self.done(), time.monotonic()
        pass_time()
        return (self.done() - before) / (time.monotonic() - began)

    def wait(self) -> None:
        """Wait until all clients work; RuntimeError if that takes too long."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not all(self._counts()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"not all clients are at work: {self._counts()}")
            time.sleep(0.1)

    def _counts(self) -> list[int]:
        return [int.from_bytes(file.read_bytes(), sys.byteorder) for file in self._files]


@contextlib.contextmanager
def crowd(node: Node, clients: int, rounds: int) -> Iterator[Crowd]:
    """Yield more clients of a node that work. On a real node, their kernels run `rounds` rounds."""
    program: Sequence[str] = (sys.executable, "-c", TURNS)
    if isinstance(node, RealNode):
        program = (str(build(LAUNCHES, node.directory / "launches")),)
    files = [node.directory / f"count{number}" for number in range(clients)]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for file in files:
            file.write_bytes(bytes(BYTES))
            processes.append(subprocess.Popen((*program, str(file), str(rounds)), env=os.environ | node.environment()))
            node.adopt(processes[-1].pid)
        found = Crowd(files)
        found.wait()
        yield found
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(PATIENCE_SECONDS)
