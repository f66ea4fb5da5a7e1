"""After the exporter detaches or ends, no probe remains and the programs have their original instructions."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.libcuda_probes.loader import BpfError, Kernel
from exporter.libcuda_probes.probes import LibcudaProbes
from tests.eventually import eventually

from .kernel_objects import bpf_objects_of, exists
from .standin import Program, StandInCuda, Work, code_at

ROOT = Path(__file__).parents[2]
FUNCTIONS = ("cuLaunchKernel", "cuCtxSynchronize", "cuStreamSynchronize")


@pytest.fixture
def offsets(cuda: StandInCuda) -> dict[str, int]:
    return {name: cuda.offsets()[name] for name in FUNCTIONS}


@pytest.fixture
def target(cuda: StandInCuda) -> Iterator[Program]:
    with cuda.started(Work()) as program:
        yield program


@pytest.fixture
def exporter(kernel: Kernel, cuda: StandInCuda, offsets: dict[str, int]) -> Iterator["subprocess.Popen[str]"]:
    command = (sys.executable, "-m", "tests.libcuda_probes.probing_process", str(cuda.library), json.dumps(offsets))
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "watching\n"
            yield process
        finally:
            process.kill()


def instructions(target: Program, cuda: StandInCuda, offsets: dict[str, int]) -> list[bytes]:
    """Return the instructions in the program's memory at these offsets."""
    return [code_at(target.pid, cuda.library, offset, 8) for offset in offsets.values()]


def written(cuda: StandInCuda, offsets: dict[str, int]) -> list[bytes]:
    """Return the instructions in the library's file at these offsets."""
    code = cuda.library.read_bytes()
    return [code[offset : offset + 8] for offset in offsets.values()]


def test_probes_change_only_the_probed_functions_in_memory(
    exporter: "subprocess.Popen[str]", target: Program, cuda: StandInCuda, offsets: dict[str, int]
) -> None:
    """Without this, the tests below could not fail."""
    found, before = instructions(target, cuda, offsets), written(cuda, offsets)

    assert all(now != was for now, was in zip(found, before, strict=True))
    assert {kind for kind, _ in bpf_objects_of(exporter.pid)} >= {"prog", "map"}


def test_killed_exporter_leaves_no_probe(
    exporter: "subprocess.Popen[str]", target: Program, cuda: StandInCuda, offsets: dict[str, int]
) -> None:
    held = bpf_objects_of(exporter.pid)

    exporter.kill()
    exporter.wait()

    assert held
    eventually(lambda: gone(held))
    assert instructions(target, cuda, offsets) == written(cuda, offsets)
    target.go()
    status, (truth,) = target.end()
    assert (status, truth.kernels) == (0, 12)


def test_closed_exporter_leaves_no_probe(
    exporter: "subprocess.Popen[str]", target: Program, cuda: StandInCuda, offsets: dict[str, int]
) -> None:
    held = bpf_objects_of(exporter.pid)
    assert exporter.stdin is not None
    assert exporter.stdout is not None

    exporter.stdin.write("\n")
    exporter.stdin.flush()
    assert exporter.stdout.readline() == "closed\n"

    assert instructions(target, cuda, offsets) == written(cuda, offsets)
    assert not bpf_objects_of(exporter.pid)
    eventually(lambda: gone(held))


def test_detached_library_has_no_probe(
    detached: LibcudaProbes, target: Program, cuda: StandInCuda, offsets: dict[str, int]
) -> None:
    detached.attach(str(cuda.library), offsets)
    detached.detach(str(cuda.library))

    assert instructions(target, cuda, offsets) == written(cuda, offsets)


def test_attaches_all_functions_or_none(
    detached: LibcudaProbes, target: Program, cuda: StandInCuda, offsets: dict[str, int]
) -> None:
    """With launches but no synchronisations, work would appear in flight forever."""
    with pytest.raises(BpfError, match=str(cuda.library)):
        detached.attach(str(cuda.library), offsets | {"cuMemcpy": 1 << 40})

    assert instructions(target, cuda, offsets) == written(cuda, offsets)


def gone(held: set[tuple[str, int]]) -> None:
    """Assert that the kernel has removed all objects, which it does with a delay."""
    assert not [each for each in held if exists(*each)]
