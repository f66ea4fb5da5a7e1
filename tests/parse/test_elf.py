"""Function offsets in shared objects, and bounded reads of corrupted files."""

import ctypes
import re
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.parse.elf import ElfError, ExportedFunctions, Machine, exported_functions
from tests.shared_objects import EXPORTED, shared_object
from tests.tools import needed

NAMES = (*EXPORTED, "cuStreamSynchronize", "cuEventRecord", "cuMemcpy", "cuLaunchKernelEx", "")
MOST_READS = 5000

NO_LIBRARY = "it is not a 64-bit little-endian shared object"
OTHER_MACHINE = "it is for a machine other than x86-64 and arm64 (ELF machine 3)"
CUT_SHORT = "it is truncated, or points beyond its end"

VERSIONS = """
    __asm__(".symver old, cuGraphLaunch@LIB_1");
    __asm__(".symver new, cuGraphLaunch@@LIB_2");
    __asm__(".symver gone, cuCtxSynchronize@LIB_1");
    int old(void) { return 1; }
    int new(void) { return 2; }
    int gone(void) { return 3; }
"""


class Counted:
    """The bytes of a file, with a count of reads."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads = 0
        self.places: set[int] = set()

    def __call__(self, offset: int, size: int) -> bytes:
        """As os.pread does, which takes no offset beyond 63 bits."""
        assert 0 <= offset < 1 << 63
        assert 0 < size <= 1 << 16
        self.reads += 1
        self.places.add(offset)
        return self.data[offset : offset + size]


def functions(data: bytes) -> ExportedFunctions:
    return exported_functions(Counted(data), NAMES)


def without_section_headers(data: bytes) -> bytes:
    return data[:40] + bytes(8) + data[48:58] + bytes(6) + data[64:]


def loaded_offset(path: Path, name: str) -> int:
    address = ctypes.cast(getattr(ctypes.CDLL(str(path)), name), ctypes.c_void_p).value or 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end, offset = (int(each, 16) for each in (*re.split("[- ]", line)[:2], line.split()[2]))
        if start <= address < end:
            return offset + address - start
    raise AssertionError(name)


BUILDS = {
    "both hash tables": ("-Wl,--hash-style=both",),
    "gnu's alone": ("-Wl,--hash-style=gnu",),
    "system v's alone": ("-Wl,--hash-style=sysv",),
    "stripped": ("-s",),
    "loaded elsewhere": ("-Wl,-Ttext-segment=0x7000000", "-Wl,-z,separate-code"),
    "one segment for code and all": ("-Wl,-z,noseparate-code",),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    directory = tmp_path_factory.mktemp("built")

    def build(how: str) -> Path:
        path = directory / how.replace(" ", "-")
        return path if path.exists() else shared_object(path, *BUILDS[how])

    return build


@pytest.fixture(scope="module")
def sound(built: Callable[[str], Path]) -> bytes:
    return built("both hash tables").read_bytes()


@pytest.mark.parametrize("how", BUILDS)
def test_finds_the_functions_that_the_dynamic_linker_finds(how: str, built: Callable[[str], Path]) -> None:
    path = built(how)
    expected = {name: loaded_offset(path, name) for name in EXPORTED}

    assert functions(path.read_bytes()).offsets == expected
    assert functions(without_section_headers(path.read_bytes())).offsets == expected


def test_finds_the_default_version_of_a_symbol(tmp_path: Path) -> None:
    script = tmp_path / "versions"
    script.write_text("LIB_1 { cuCtxSynchronize; }; LIB_2 { global: cuGraphLaunch; local: *; };")
    path = shared_object(tmp_path / "lib.so", f"-Wl,--version-script={script}", source=VERSIONS)

    assert exported_functions(Counted(path.read_bytes()), ("cuGraphLaunch", "cuCtxSynchronize")).offsets == {
        "cuGraphLaunch": loaded_offset(path, "cuGraphLaunch")
    }


def test_agrees_with_readelf(tmp_path: Path) -> None:
    """Uses a system library with thousands of symbols."""
    (path,) = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libc.so.6" in line}
    readelf = subprocess.run([needed("readelf"), "-lW", "--dyn-syms", path], capture_output=True, text=True, check=True)
    segments = re.findall(r"LOAD +0x(\w+) 0x(\w+) 0x\w+ 0x(\w+) 0x\w+ R E", readelf.stdout)
    ((offset, address, _),) = [[int(each, 16) for each in segment] for segment in segments]
    symbols = re.findall(r": ([0-9a-f]{16}) +\d+ FUNC +\w+ +\w+ +\d+ (\w+)@@", readelf.stdout)
    expected = {name: int(value, 16) - address + offset for value, name in symbols}

    assert len(expected) > 1000
    assert exported_functions(Counted(Path(path).read_bytes()), expected).offsets == expected


@pytest.mark.parametrize(("number", "machine"), [(62, Machine.X86_64), (183, Machine.ARM64)])
def test_returns_the_machine(number: int, machine: Machine, sound: bytes) -> None:
    assert functions(sound[:18] + struct.pack("<H", number) + sound[20:]).machine is machine


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda data: b"", "it is not an ELF file"),
        (lambda data: b"#!/bin/sh\n" * 99, "it is not an ELF file"),
        (lambda data: data[:4], CUT_SHORT),
        (lambda data: data[:4] + b"\1" + data[5:], NO_LIBRARY),
        (lambda data: data[:5] + b"\2" + data[6:], NO_LIBRARY),
        (lambda data: data[:16] + b"\2" + data[17:], NO_LIBRARY),
        (lambda data: data[:18] + b"\3" + data[19:], OTHER_MACHINE),
        (lambda data: data[:56] + b"\xff\xff" + data[58:], "its segment table is invalid"),
        (lambda data: data[:56] + b"\1\0" + data[58:], "it has no dynamic section"),
        (lambda data: data[:32] + b"\xff" * 8 + data[40:], CUT_SHORT),
        (lambda data: data[:200], CUT_SHORT),
    ],
    ids=["empty", "a script", "four bytes", "32 bits", "big-endian", "a program", "i386", "65535 segments",
         "one segment", "segments nowhere", "cut short"],
)  # fmt: skip
def test_refuses_a_file_that_is_not_a_library(spoil: Callable[[bytes], bytes], why: str, sound: bytes) -> None:
    with pytest.raises(ElfError, match=f"^{re.escape(why)}$"):
        functions(spoil(sound))


def test_stops_in_a_circular_chain(built: Callable[[str], Path]) -> None:
    """Each chain entry refers to itself, and the table claims the maximum number of symbols."""
    path = built("system v's alone")
    data = bytearray(path.read_bytes())
    readelf = subprocess.run([needed("readelf"), "-dW", path], capture_output=True, text=True, check=True)
    (address,) = [int(each, 16) for each in re.findall(r"\(HASH\) +0x(\w+)", readelf.stdout)]
    buckets, symbols = struct.unpack_from("<II", data, address)
    for number in range(buckets):
        struct.pack_into("<I", data, address + 8 + 4 * number, 1)
    for number in range(symbols):
        struct.pack_into("<I", data, address + 8 + 4 * (buckets + number), 1)
    read = Counted(bytes(data))

    assert exported_functions(read, ["cuLaunchKernelEx"]).offsets == {}
    assert 1000 < read.reads < MOST_READS


@settings(max_examples=200)
@given(st.data())
def test_a_corrupted_file_causes_bounded_reads_inside_the_file(sound: bytes, data: st.DataObject) -> None:
    """Some of the bytes that the reader uses are changed to large sizes or other offsets. The file may end anywhere."""
    spoilt = bytearray(sound)
    read = Counted(sound)
    exported_functions(read, NAMES)
    places = sorted(read.places)
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.sampled_from(places)) + data.draw(st.integers(0, 63))
        word = data.draw(
            st.one_of(st.sampled_from((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)), st.integers(0, 1 << 16))
        )
        size = data.draw(st.sampled_from((1, 2, 4, 8)))
        spoilt[place : place + size] = (word % 256**size).to_bytes(size, "little")
    read = Counted(bytes(spoilt[: data.draw(st.one_of(st.just(len(sound)), st.integers(0, len(sound))))]))
    try:
        found = exported_functions(read, NAMES).offsets
    except ElfError:
        found = {}
    assert read.reads < MOST_READS * len(NAMES)
    assert all(0 <= offset < len(sound) for offset in found.values())
