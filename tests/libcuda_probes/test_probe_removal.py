"""Nothing is left behind: whoever watched has let go, or is no more, and the watched have their instructions back."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.libcuda_probes.loader import BpfError, Kernel
from exporter.libcuda_probes.probes import LibcudaProbes
from tests.eventually import eventually

from .kernel_objects import is_there, kept
from .process_work import SMS, boot_ns
from .standin import Program, StandInCuda, Work, code_at

ROOT = Path(__file__).parents[2]
FUNCTIONS = ("cuLaunchKernel", "cuCtxSynchronize", "cuStreamSynchronize")


@pytest.fixture
def offsets(cuda: StandInCuda) -> dict[str, int]:
    """Where a few doors are."""
    return {name: cuda.offsets()[name] for name in FUNCTIONS}


@pytest.fixture
def target(cuda: StandInCuda) -> Iterator[Program]:
    """A program that runs all the while."""
    with cuda.started(Work()) as program:
        yield program


@pytest.fixture
def exporter(kernel: Kernel, cuda: StandInCuda, offsets: dict[str, int]) -> Iterator["subprocess.Popen[str]"]:
    """Another process, which watches."""
    command = (sys.executable, "-m", "tests.libcuda_probes.probing_process", str(cuda.library), json.dumps(offsets))
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "watching\n"
            yield process
        finally:
            process.kill()


def instructions(target: Program, cuda: StandInCuda, offsets: dict[str, int]) -> list[bytes]:
    """What a program has in its memory where doors are, and in the library's file."""
    return [code_at(target.pid, cuda.library, offset, 8) for offset in offsets.values()]


def written(cuda: StandInCuda, offsets: dict[str, int]) -> list[bytes]:
    """The same in the library's file."""
    code = cuda.library.read_bytes()
    return [code[offset : offset + 8] for offset in offsets.values()]


def test_the_watched_have_probes_in_their_memory_and_nowhere_else(
    exporter: "subprocess.Popen[str]", target: Program, cuda: StandInCuda, offsets: dict[str, int]
) -> None:
    """So that the tests below see something go."""
    found, before = instructions(target, cuda, offsets), written(cuda, offsets)

    assert all(now != was for now, was in zip(found, before, strict=True))
    assert {kind for kind, _ in kept(exporter.pid)} >= {"prog", "map"}


def test_an_exporter_that_is_killed_leaves_no_probe(
    exporter: "subprocess.Popen[str]", target: Program, cuda: StandInCuda, offsets: dict[str, int]
) -> None:
    held = kept(exporter.pid)

    exporter.kill()
    exporter.wait()

    assert held
    eventually(lambda: gone(held))
    assert instructions(target, cuda, offsets) == written(cuda, offsets)
    target.go()
    status, (truth,) = target.end()
    assert (status, truth.kernels) == (0, 12)


def test_an_exporter_that_lets_go_leaves_no_probe(
    exporter: "subprocess.Popen[str]", target: Program, cuda: StandInCuda, offsets: dict[str, int]
) -> None:
    held = kept(exporter.pid)
    assert exporter.stdin is not None
    assert exporter.stdout is not None

    exporter.stdin.write("\n")
    exporter.stdin.flush()
    assert exporter.stdout.readline() == "closed\n"

    assert instructions(target, cuda, offsets) == written(cuda, offsets)
    assert not kept(exporter.pid)
    eventually(lambda: gone(held))


def test_a_library_that_is_watched_no_more_has_no_probe(
    kernel: Kernel, target: Program, cuda: StandInCuda, offsets: dict[str, int]
) -> None:
    watcher = LibcudaProbes(kernel, boot_ns, SMS)
    try:
        watcher.attach(str(cuda.library), offsets)
        watcher.detach(str(cuda.library))

        assert instructions(target, cuda, offsets) == written(cuda, offsets)
    finally:
        watcher.close()


def test_where_one_door_cannot_be_watched_none_is(
    kernel: Kernel, target: Program, cuda: StandInCuda, offsets: dict[str, int]
) -> None:
    """All or nothing: who sees launches and no synchronisation would tell of flights without end."""
    watcher = LibcudaProbes(kernel, boot_ns, SMS)
    try:
        with pytest.raises(BpfError, match=str(cuda.library)):
            watcher.attach(str(cuda.library), offsets | {"cuMemcpy": 1 << 40})

        assert instructions(target, cuda, offsets) == written(cuda, offsets)
    finally:
        watcher.close()


def gone(held: set[tuple[str, int]]) -> None:
    """The kernel has none of it; it takes its time."""
    assert not [each for each in held if is_there(*each)]
