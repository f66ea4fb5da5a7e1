"""The stand-in libcuda and a program that uses it."""

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.eventually import PATIENCE_SECONDS
from tests.tools import needed

HERE = Path(__file__).parent
LAUNCH, SYNCHRONISE, NEVER = "cuLaunchKernel", "cuCtxSynchronize", "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The counts that a process prints. libcuda.h and targets.c describe each number."""

    pid: int
    kernels: int
    graphs: int
    captured: int
    spans: int
    flight_ns: int
    busy_ns: int
    queries: int
    outer_ns: int
    around_ns: int
    result: int

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the counts that are the same in every run."""
        return self.kernels, self.graphs, self.captured, self.spans, self.busy_ns, self.result


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of a program. `mode` defines what `count` means: streams, threads, children or turns."""

    mode: str = "loop"
    count: int = 1
    launch: str = LAUNCH
    synchronise: str = SYNCHRONISE
    launches: int = 12
    each: int = 3
    blocks: int = 7
    nanoseconds: int = 100_000

    def words(self) -> tuple[str, ...]:
        names = ("mode", "count", "launch", "synchronise", "launches", "each", "blocks", "nanoseconds")
        return tuple(str(getattr(self, name)) for name in names)


class Program:
    """A running program. At each gate it prints a line and waits for one."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.pid = process.pid
        self._lines: list[str] = []

    def reach(self, gate: str) -> None:
        """Wait until the program is at the gate. Store the lines before."""
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline().strip()) != gate:
            assert line, f"it ended before it was {gate}: {self._lines} {self.process.poll()}"
            self._lines.append(line)

    def go(self, gate: str | None = None) -> None:
        """Let the program go on, to this gate if one is given."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        if gate is not None:
            self.reach(gate)

    def end(self) -> tuple[int, list[Truth]]:
        """Let the program run to its end. Return its exit status and the counts of its processes."""
        output, _ = self.process.communicate(timeout=PATIENCE_SECONDS * 2)
        lines = [*self._lines, *output.splitlines()]
        return self.process.returncode, [Truth(**json.loads(line)) for line in lines if line.startswith("{")]


class StandInCuda:
    """The library, and the program with all its modes."""

    def __init__(self, directory: Path, *, built: bool = False) -> None:
        self.library = directory / "libcuda.so.1"
        self.program = directory / "target"
        self._offsets: dict[str, int] = {}
        if built:
            return
        _compile("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "libcuda.c", into=self.library)
        _compile("-std=gnu11", "-fexceptions", "targets.c", "hostile.c", "-ldl", into=self.program)

    def offsets(self) -> dict[str, int]:
        """Return the offset of each function in the library's file, from binutils."""
        self._offsets = self._offsets or self._read_offsets()
        return self._offsets

    def _read_offsets(self) -> dict[str, int]:
        headers = _output("readelf", "-lW", self.library)
        found = re.search(r"LOAD\s+(0x\w+) (0x\w+) \S+ \S+ \S+ R E", headers)
        assert found is not None, headers
        shift = int(found[1], 16) - int(found[2], 16)
        symbols = _output("nm", "-D", "--defined-only", self.library).splitlines()
        return {name: int(value, 16) + shift for value, _, name in (line.split() for line in symbols)}

    @contextlib.contextmanager
    def started(self, work: Work, **environment: str) -> Iterator[Program]:
        """Start a program. It has loaded the library and waits at its first gate."""
        process = subprocess.Popen(
            (str(self.program), *work.words()),
            env=os.environ | {"LD_LIBRARY_PATH": str(self.library.parent)} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                program = Program(process)
                program.reach("ready")
                yield program
            finally:
                process.kill()

    def run(self, work: Work, **environment: str) -> tuple[int, list[Truth]]:
        """Run a program to its end, past all gates."""
        with self.started(work, **environment) as program:
            return program.end()


def code_at(pid: int, library: Path, offset: int, length: int = 1) -> bytes:
    """Return the instructions in the memory of a process for this offset of a file."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        addresses, rights, start, _, _, *name = line.split(maxsplit=5)
        first, last = (int(address, 16) for address in addresses.split("-"))
        place = first + offset - int(start, 16)
        if name == [str(library)] and "x" in rights and first <= place < last:
            with open(f"/proc/{pid}/mem", "rb") as memory:
                memory.seek(place)
                return memory.read(length)
    raise AssertionError(f"process {pid} has not mapped {library} at {offset:#x}")


def _compile(*arguments: str, into: Path) -> None:
    command = [needed("gcc"), "-O1", "-pthread", "-Wall", "-Wextra", "-o", str(into), *arguments]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _output(program: str, *arguments: "str | Path") -> str:
    return subprocess.run([needed(program), *arguments], capture_output=True, text=True, check=True).stdout
