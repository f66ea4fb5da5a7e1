"""ELF files: function offsets in a shared object, where a uprobe is attached, and the sections of an own object.

Functions are found by name in the hash table of the dynamic linker, which exists even if section headers and symbols
are stripped. A workload may have made the file to keep its reader busy, so all reads have bounds. pyelftools has none:
it trusts the length of a hash table, and follows a circular chain for ever. An object comes from this package, so the
reader of its sections checks little.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

Read = Callable[[int, int], bytes]  # Reads bytes of the file: offset, size. Returns fewer at the end of the file.
_HEADER = struct.Struct("<4sBB10xHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC = struct.Struct("<QQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_GNU_HASH_HEADER = struct.Struct("<IIII")
_HASH_HEADER = struct.Struct("<II")

_CLASS_64, _LITTLE_ENDIAN, _SHARED_OBJECT = 2, 1, 3
_LOADED, _DYNAMIC_SECTION, _EXECUTABLE = 1, 2, 1
_END, _HASH_TABLE, _STRINGS, _SYMBOL_TABLE = 0, 4, 5, 6
_GNU_HASH_TABLE, _VERSIONS = 0x6FFFFEF5, 0x6FFFFFF0
_TABLES = (_SYMBOL_TABLE, _STRINGS, _VERSIONS, _GNU_HASH_TABLE, _HASH_TABLE)
_FUNCTION, _UNDEFINED, _HIDDEN_VERSION = 2, 0, 0x8000

_MAX_OFFSET = 1 << 40
_MAX_SEGMENTS = 64
_MAX_DYNAMIC_ENTRIES = 512
_MAX_CHAIN = 1024
_MAX_SAME_HASH = 16
_HASHES_PER_READ = 64

_TRUNCATED = "it is truncated, or points beyond its end"


class Machine(StrEnum):
    """The architecture that the file's code runs on."""

    X86_64 = "x86-64"
    ARM64 = "arm64"


_MACHINES = {62: Machine.X86_64, 183: Machine.ARM64}


class ElfError(ValueError):
    """Why a file cannot be used, as a clause: "it is not an ELF file"."""


class ExportedFunctions(NamedTuple):
    """The functions that were found: their offsets in the file by name."""

    machine: Machine
    offsets: Mapping[str, int]


def exported_functions(read: Read, names: Iterable[str]) -> ExportedFunctions:
    """Return those of the named functions that a shared object exports. Raises ElfError, or what `read` raises."""
    file = _File(read)
    symbols = _Symbols(file)
    addresses = ((name, symbols.address(name.encode())) for name in names)
    offsets = ((name, file.code_offset(address)) for name, address in addresses if address is not None)
    return ExportedFunctions(file.machine, {name: offset for name, offset in offsets if offset is not None})


class _Segment(NamedTuple):
    kind: int
    flags: int
    offset: int
    address: int
    size: int


class _File:
    def __init__(self, read: Read) -> None:
        self._read = read
        start = self.up_to(0, _HEADER.size)
        if start[:4] != b"\x7fELF":
            raise ElfError("it is not an ELF file")
        if len(start) < _HEADER.size:
            raise ElfError(_TRUNCATED)
        _, bits, order, kind, machine, _, _, table, _, _, _, size, count, *_ = _HEADER.unpack(start)
        if (bits, order, kind) != (_CLASS_64, _LITTLE_ENDIAN, _SHARED_OBJECT):
            raise ElfError("it is not a 64-bit little-endian shared object")
        if machine not in _MACHINES:
            raise ElfError(f"it is for a machine other than x86-64 and arm64 (ELF machine {machine})")
        if size != _SEGMENT.size or not 1 <= count <= _MAX_SEGMENTS:
            raise ElfError("its segment table is invalid")
        self.machine = _MACHINES[machine]
        self.segments = tuple(
            _Segment(kind, flags, offset, address, size)
            for kind, flags, offset, address, _, size, _, _ in _SEGMENT.iter_unpack(self.exactly(table, size * count))
        )

    def up_to(self, offset: int, size: int) -> bytes:
        return self._read(offset, size) if offset + size <= _MAX_OFFSET else b""

    def exactly(self, offset: int, size: int) -> bytes:
        found = self.up_to(offset, size)
        if len(found) < size:
            raise ElfError(_TRUNCATED)
        return found

    def number(self, offset: int, size: int = 4) -> int:
        return int.from_bytes(self.exactly(offset, size), "little")

    def _loaded_from(self, address: int, flags: int = 0) -> Iterator[int]:
        """Yield the offset of an address in each loaded segment with these flags that contains it."""
        for segment in self.segments:
            inside = 0 <= address - segment.address < segment.size
            if inside and segment.kind == _LOADED and segment.flags & flags == flags:
                yield segment.offset + address - segment.address

    def table_offset(self, address: int) -> int:
        offset = next(self._loaded_from(address), None)
        if offset is None:
            raise ElfError("it points to an address that is not loaded")
        return offset

    def code_offset(self, address: int) -> int | None:
        return next((offset for offset in self._loaded_from(address, _EXECUTABLE) if self.up_to(offset, 1)), None)

    def dynamic_section(self) -> Mapping[int, int]:
        section = next((segment for segment in self.segments if segment.kind == _DYNAMIC_SECTION), None)
        if section is None:
            raise ElfError("it has no dynamic section")
        found: dict[int, int] = {}
        size = min(section.size // _DYNAMIC.size, _MAX_DYNAMIC_ENTRIES) * _DYNAMIC.size
        for tag, value in _DYNAMIC.iter_unpack(self.exactly(section.offset, size)):
            if tag == _END:
                break
            found.setdefault(tag, value)
        return found


class _Symbols:
    """The functions that the dynamic linker finds by name (System V's generic ABI, and GNU's hash table)."""

    def __init__(self, file: _File) -> None:
        self._file = file
        tags = file.dynamic_section()
        if _SYMBOL_TABLE not in tags or _STRINGS not in tags:
            raise ElfError("it has no dynamic symbols")
        self._tables = tables = {tag: file.table_offset(tags[tag]) for tag in _TABLES if tag in tags}
        if _GNU_HASH_TABLE in tables:
            start = tables[_GNU_HASH_TABLE]
            self._header = _GNU_HASH_HEADER.unpack(file.exactly(start, _GNU_HASH_HEADER.size))
            self._candidates = self._gnu_hash_candidates
        elif _HASH_TABLE in tables:
            self._header = _HASH_HEADER.unpack(file.exactly(tables[_HASH_TABLE], _HASH_HEADER.size))
            self._candidates = self._hash_candidates
        else:
            raise ElfError("it has no hash table of its symbols")

    def address(self, name: bytes) -> int | None:
        for number in self._candidates(name):
            entry = self._file.exactly(self._tables[_SYMBOL_TABLE] + number * _SYMBOL.size, _SYMBOL.size)
            string, info, _, section, address, _ = _SYMBOL.unpack(entry)
            if info & 0xF != _FUNCTION or section == _UNDEFINED:
                continue
            if self._file.up_to(self._tables[_STRINGS] + string, len(name) + 1) != name + b"\0":
                continue
            # A hidden version is an older one, for programs that were linked with that.
            versions = self._tables.get(_VERSIONS)
            if versions is None or not self._file.number(versions + 2 * number, 2) & _HIDDEN_VERSION:
                return int(address)
        return None

    def _gnu_hash_candidates(self, name: bytes) -> Iterator[int]:
        """Yield the numbers of symbols by DT_GNU_HASH: a chain is an array of hashes, and an odd hash is the last."""
        buckets, first, words, _ = self._header
        start = self._tables[_GNU_HASH_TABLE] + _GNU_HASH_HEADER.size + 8 * words
        chains = start + 4 * buckets
        wanted = 5381
        for byte in name:
            wanted = wanted * 33 + byte & 0xFFFFFFFF
        number = self._file.number(start + 4 * (wanted % buckets)) if buckets else 0
        matches = 0
        for _ in range(_MAX_CHAIN // _HASHES_PER_READ if number >= first and number else 0):
            hashes = self._file.up_to(chains + 4 * (number - first), 4 * _HASHES_PER_READ)
            for (value,) in struct.iter_unpack("<I", hashes[: len(hashes) // 4 * 4]):
                if value | 1 == wanted | 1 and matches < _MAX_SAME_HASH:
                    matches += 1
                    yield number
                if value & 1:
                    return
                number += 1

    def _hash_candidates(self, name: bytes) -> Iterator[int]:
        """Yield the numbers of symbols by DT_HASH, the only table of older linkers: a chain is a list that 0 ends."""
        buckets, symbols = self._header
        start = self._tables[_HASH_TABLE] + _HASH_HEADER.size
        wanted = 0
        for byte in name:
            wanted = (wanted << 4) + byte
            high = wanted & 0xF0000000
            wanted = (wanted ^ high >> 24) & ~high
        number = self._file.number(start + 4 * (wanted % buckets)) if buckets else 0
        for _ in range(_MAX_CHAIN):
            if not 0 < number < symbols:
                return
            yield number
            number = self._file.number(start + 4 * (buckets + number))


SYMBOLS, RELOCATIONS = 2, 9  # kinds of sections


class Section(NamedTuple):
    """A section of an object: its kind, the sections that it refers to, and its bytes."""

    name: str
    kind: int
    link: int
    info: int
    content: bytes


def sections(data: bytes) -> list[Section]:
    """Return all sections of an object in their order. Raises ValueError or struct.error if it is damaged."""
    magic, *_, table, _, _, _, _, size, count, strings = _HEADER.unpack_from(data)
    if magic != b"\x7fELF" or size != _SECTION.size:
        raise ValueError("not an ELF object of 64 bits")
    headers = list(_SECTION.iter_unpack(data[table : table + size * count]))
    contents = [data[header[4] : header[4] + header[5]] for header in headers]
    return [
        Section(_string(contents[strings], name), kind, link, info, content)
        for (name, kind, _, _, _, _, link, info, _, _), content in zip(headers, contents, strict=True)
    ]


def symbols(sections: list[Section]) -> list[tuple[str, int, int]]:
    """Return the name, the section's number and the value of each symbol of an object."""
    table = next(section for section in sections if section.kind == SYMBOLS)
    strings = sections[table.link].content
    return [
        (_string(strings, name), section, value) for name, _, _, section, value, _ in _SYMBOL.iter_unpack(table.content)
    ]


def _string(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode()
