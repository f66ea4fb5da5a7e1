"""Where the functions of a shared object lie in its file: what a uprobe is attached by.

They are looked up by their names in the hash table by which the dynamic linker finds them, which is there where section
headers and symbols are stripped. The file may be a workload's own work, made to keep its reader busy: of each table no
more is read than a sound one has. (Hence no pyelftools: it takes a hash table's word for how long it is, and follows
a chain that leads in a circle for ever.)
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from exporter.parse.elf_file import ElfError, ElfFile, Read
from exporter.parse.elf_hash import gnu_hash_table, hash_table


class Machine(StrEnum):
    """What the file's code runs on."""

    X86_64 = "x86-64"
    ARM64 = "arm64"


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions that were found, by their names, each with its offset in the file."""

    machine: Machine
    offsets: Mapping[str, int]


def exported_functions(read: Read, names: Iterable[str]) -> Functions:
    """Those of these functions that a shared object exports. Raises ElfError, or what `read` raises."""
    file = ElfFile(read)
    machine, segments = _head(file)
    symbols = _Symbols(file, segments)
    found = ((name, symbols.address(name.encode())) for name in names)
    offsets = {name: _code_offset(file, segments, address) for name, address in found if address is not None}
    return Functions(machine, {name: offset for name, offset in offsets.items() if offset is not None})


_HEADER = struct.Struct("<4sBB10xHHIQQQIHHH6x")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<QQ")
_SYMBOL = struct.Struct("<IBBHQQ")

_MACHINES = {62: Machine.X86_64, 183: Machine.ARM64}
_CLASS_64, _LITTLE_ENDIAN, _SHARED_OBJECT = 2, 1, 3
_LOADED, _DYNAMIC_SECTION, _EXECUTABLE = 1, 2, 1
_END, _HASH_TABLE, _STRINGS, _SYMBOL_TABLE = 0, 4, 5, 6
_GNU_HASH_TABLE, _VERSIONS = 0x6FFFFEF5, 0x6FFFFFF0
_FUNCTION, _UNDEFINED, _HIDDEN_VERSION = 2, 0, 0x8000

_MOST_SEGMENTS = 64
_MOST_DYNAMIC = 512


@dataclass(frozen=True, slots=True)
class _Segment:
    """A part of the file that is loaded, or has the dynamic section in it."""

    kind: int
    flags: int
    offset: int
    address: int
    size: int

    def offset_of(self, address: int) -> int | None:
        """Where in the file that is which is loaded to an address; None where that is another segment's."""
        within = address - self.address
        return self.offset + within if 0 <= within < self.size else None


def _head(file: ElfFile) -> tuple[Machine, tuple[_Segment, ...]]:
    """What it runs on, and its segments."""
    start = file.upto(0, _HEADER.size)
    if start[:4] != b"\x7fELF":
        raise ElfError("it is no ELF file")
    if len(start) < _HEADER.size:
        raise ElfError("it is cut short, or points beyond its end")
    _, word, order, kind, machine, _, _, table, _, _, _, size, count = _HEADER.unpack(start)
    if (word, order, kind) != (_CLASS_64, _LITTLE_ENDIAN, _SHARED_OBJECT):
        raise ElfError("it is no shared object of 64 bits, least significant byte first")
    if machine not in _MACHINES:
        raise ElfError(f"it is for another machine than x86-64 and arm64 (ELF's number {machine})")
    if size != _SEGMENT.size or not 1 <= count <= _MOST_SEGMENTS:
        raise ElfError("its table of segments is none")
    entries = _SEGMENT.iter_unpack(file.part(table, size * count))
    return _MACHINES[machine], tuple(
        _Segment(kind, flags, offset, address, size) for kind, flags, offset, address, _, size, _, _ in entries
    )


def _offset(segments: Iterable[_Segment], address: int) -> int:
    """Where in the file the dynamic linker's tables are."""
    for segment in segments:
        if segment.kind == _LOADED and (offset := segment.offset_of(address)) is not None:
            return offset
    raise ElfError("it points to what is not loaded")


def _code_offset(file: ElfFile, segments: Iterable[_Segment], address: int) -> int | None:
    """Where in the file the code at an address is; None where there is none."""
    for segment in segments:
        if segment.kind == _LOADED and segment.flags & _EXECUTABLE:
            offset = segment.offset_of(address)
            if offset is not None and file.upto(offset, 1):
                return offset
    return None


class _Symbols:
    """The functions that the dynamic linker finds, by their names."""

    def __init__(self, file: ElfFile, segments: tuple[_Segment, ...]) -> None:
        self._file = file
        tags = _dynamic_section(file, segments)
        if _SYMBOL_TABLE not in tags or _STRINGS not in tags:
            raise ElfError("it has no dynamic symbols")
        tables = {tag: _offset(segments, tags[tag]) for tag in _TABLES if tag in tags}
        self._symbols, self._strings = tables[_SYMBOL_TABLE], tables[_STRINGS]
        self._versions = tables.get(_VERSIONS)
        if _GNU_HASH_TABLE in tables:
            self._called = gnu_hash_table(file, tables[_GNU_HASH_TABLE])
        elif _HASH_TABLE in tables:
            self._called = hash_table(file, tables[_HASH_TABLE])
        else:
            raise ElfError("it has no hash table of its symbols")

    def address(self, name: bytes) -> int | None:
        """Of the function of this name, in its default version."""
        for number in self._called(name):
            address = self._function(number, name)
            if address is not None and not self._is_hidden(number):
                return address
        return None

    def _function(self, number: int, name: bytes) -> int | None:
        """The address of a symbol, if that is a function of this name, and defined."""
        start = self._file.part(self._symbols + number * _SYMBOL.size, _SYMBOL.size)
        string, info, _, section, address, _ = _SYMBOL.unpack(start)
        if info & 0xF != _FUNCTION or section == _UNDEFINED:
            return None
        called: bytes = self._file.upto(self._strings + string, len(name) + 1)
        return address if called == name + b"\0" else None

    def _is_hidden(self, number: int) -> bool:
        """Whether a symbol is of an older version, for programs that were linked with that."""
        return self._versions is not None and bool(self._file.number(self._versions + 2 * number, 2) & _HIDDEN_VERSION)


_TABLES = (_SYMBOL_TABLE, _STRINGS, _VERSIONS, _GNU_HASH_TABLE, _HASH_TABLE)


def _dynamic_section(file: ElfFile, segments: Iterable[_Segment]) -> Mapping[int, int]:
    """The dynamic section's entries by their tags, of which the first counts."""
    found: dict[int, int] = {}
    section = next((segment for segment in segments if segment.kind == _DYNAMIC_SECTION), None)
    if section is None:
        raise ElfError("it has no dynamic section")
    size = min(section.size // _DYNAMIC.size, _MOST_DYNAMIC) * _DYNAMIC.size
    for tag, value in _DYNAMIC.iter_unpack(file.part(section.offset, size)):
        if tag == _END:
            break
        found.setdefault(tag, value)
    return found
