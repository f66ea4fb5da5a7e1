"""The checked-in BPF objects match the C file, and Python uses the layout of the programs."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from exporter.libcuda_probes import probes
from exporter.libcuda_probes.loader import MACHINES, BpfError, BpfObject, Kernel, Program, object_path, parse_object
from exporter.libcuda_probes.probes import (
    ALL_SMS,
    FIELDS,
    LOST,
    MAX_PROCESSES,
    PROGRAMS,
    SEVERAL_GPUS,
    Group,
    KernelEntry,
    MessageKind,
    Stream,
)
from tests.tools import needed, not_here

FOLDER = object_path("x86_64").parent
SOURCE = FOLDER / "probes.bpf.c"

CLANG = 14
"""The version that wrote the objects: Debian 12's."""

REGISTERS = {
    "x86_64": {"di": 112, "si": 104, "dx": 96, "cx": 88, "ax": 80, "sp": 152},
    "aarch64": {"x[0]": 0, "x[1]": 8, "x[2]": 16, "x[3]": 24, "sp": 248},
}
"""Offsets in the kernel's struct pt_regs (asm/ptrace.h)."""


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def checked_in(machine: str) -> BpfObject:
    return parse_object(object_path(machine).read_bytes())


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the C file, and return the directory of the objects."""
    found = re.search(r"version (\d+)", subprocess.check_output([needed("clang"), "--version"], text=True))
    if found is None or int(found[1]) != CLANG:
        not_here(f"the instructions are compared with those of clang {CLANG}")

    directory = tmp_path_factory.mktemp("compiled")
    subprocess.run([FOLDER / "build.sh", directory], check=True)
    return directory


def test_the_objects_are_compiled_from_the_source(checked_in: BpfObject, machine: str, compiled: Path) -> None:
    """If this fails after a change of the C file: run build.sh and check the objects in."""
    assert parse_object((compiled / f"probes.{machine}.o").read_bytes()) == checked_in


def test_every_probe_point_has_a_program(checked_in: BpfObject) -> None:
    assert set(checked_in.programs) == set(PROGRAMS)


def test_the_kernel_lets_the_license_read_user_memory(checked_in: BpfObject) -> None:
    assert checked_in.license == b"Dual BSD/GPL"
    assert SOURCE.read_text().startswith("// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause\n")


def test_every_map_has_a_bound(checked_in: BpfObject) -> None:
    entries = {name: each.entries for name, each in checked_in.maps.items()}

    assert {entries.pop(name) for name in ("processes", "sm_limits")} == {MAX_PROCESSES}
    assert entries == {
        "calls": 4096,
        "questions": 4096,
        "events": 32768,
        "contexts": 4096,
        "currents": 8192,
        "streams": 8192,
        "numbers": 8,
        "blank": 1,
        "no_kernels": 1,
        "no_capture": 1,
        "kernels_of": 896,
        "lookups": 1024,
        "captures": 256,
        "same": 4096,
        "rates": 1024,
        "messages": 1 << 21,
    }


def test_python_uses_the_layout_of_the_programs(checked_in: BpfObject, machine: str) -> None:
    """The compiler compares: each field where it is read, and each register where the kernel stores it."""
    head = {name: 8 * place for place, name in enumerate(FIELDS)} | {"streams": 8 * len(FIELDS)}
    stream = {name: 8 * place for place, name in enumerate(Stream._fields)}
    kernel = {name.removesuffix("_ns"): 8 * place for place, name in enumerate(KernelEntry._fields[:9])} | {"block": 76}
    checks = [
        *_offsets("process", head),
        *_offsets("stream", stream),
        *_offsets("kernel", kernel),
        *_offsets("message", {"pid": 0, "kind": 4, "at": 8, "value": 16, "of": 24}),
        "sizeof(struct kernel) == 88",
        f"CAPTURED_KERNELS == {probes.CAPTURED_KERNELS}",
        *(f"{kind.name} == {kind.value}" for kind in MessageKind),
        *_offsets("registers", REGISTERS[machine]),
        f"STREAMS == {probes.STREAMS}",
        f"FRACTION_BITS == {probes.FRACTION_BITS}",
        f"DONE_NS == {probes.DONE_NS}",
        f"CONTEXT == {probes.CONTEXT} && KINDS == {probes.KINDS}",
        f"LOST == {LOST} && ALL_SMS == {ALL_SMS} && SEVERAL_GPUS == {SEVERAL_GPUS}",
        f"WATCHED_SINCE == {Group.FREQUENT} && RARE_SINCE == {Group.RARE} && QUERIES_SINCE == {Group.QUERIES}",
        f"sizeof(struct process) == {checked_in.maps['processes'].value_bytes}",
        f"sizeof(struct process) == {8 * (len(FIELDS) + probes.STREAMS * len(Stream._fields))}",
    ]
    code = "".join([f'#include "{SOURCE}"\n', *(f'_Static_assert({check}, "");\n' for check in checks)])
    multiarch = f"/usr/include/{os.uname().machine}-linux-gnu"
    command = [needed("clang"), "-target", "bpf", "-fsyntax-only", f"-DMACHINE_{machine.upper()}"]

    subprocess.run([*command, "-idirafter", multiarch, "-x", "c", "-"], input=code, text=True, check=True)


def _offsets(struct: str, fields: dict[str, int]) -> list[str]:
    return [f"__builtin_offsetof(struct {struct}, {name}) == {offset}" for name, offset in fields.items()]


@pytest.mark.parametrize("length", [0, 10, 64, 5_000, -1_000])
def test_a_damaged_object_is_an_error_with_a_remedy(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "probes.o"
    damaged.write_bytes(object_path("x86_64").read_bytes()[:length])
    monkeypatch.setattr("exporter.libcuda_probes.loader.object_path", lambda _: damaged)

    with pytest.raises(BpfError, match="is damaged: install the exporter again"):
        Kernel("x86_64").read_object()


def test_a_missing_object_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.libcuda_probes.loader.object_path", lambda _: tmp_path / "none")

    with pytest.raises(BpfError, match="No such file"):
        Kernel("x86_64").read_object()


def test_links_maps_only_in_instructions_that_load_them() -> None:
    load, leave = bytes.fromhex("1801000000000000" + "00" * 8), bytes.fromhex("9500000000000000")

    linked = Program(load + leave, {0: "numbers"}).linked({"numbers": 7})

    assert linked == bytes.fromhex("1811000007000000" + "00" * 8) + leave
    with pytest.raises(ValueError, match="does not load the address of map numbers"):
        Program(load + leave, {16: "numbers"}).linked({"numbers": 7})
