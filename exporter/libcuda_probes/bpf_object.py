"""The compiled BPF programs: their maps and their code, as they lie in the ELF object beside this file.

The object comes from this package (build.sh), so its reader checks little. clang writes one section for each program,
`uprobe/NAME`; a section of relocations names the map of each instruction that loads one.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MACHINES = ("x86_64", "aarch64")
"""Machines with an object, as uname(2) names them."""

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQ")
_MAP = struct.Struct("<IIII")
_INSTRUCTION = struct.Struct("<BBhi")

_SYMBOL_TABLE, _RELOCATIONS = 2, 9
_RELOCATE_64_BITS = 1
_LOAD_64_BITS, _MAP_BY_DESCRIPTOR = 0x18, 1
_PROGRAM_PREFIX = "uprobe/"


@dataclass(frozen=True, slots=True)
class MapDefinition:
    """A map, as `struct map_definition` in the C file: its kind (enum bpf_map_type), sizes in bytes, and entries."""

    kind: int
    key_bytes: int
    value_bytes: int
    entries: int


@dataclass(frozen=True, slots=True)
class Program:
    """The instructions of a program, and the map that each of these offsets refers to."""

    code: bytes
    references: Mapping[int, str]

    def linked(self, descriptors: Mapping[str, int]) -> bytes:
        """Return the code that refers to the maps by their file descriptors."""
        code = bytearray(self.code)
        for offset, name in self.references.items():
            operation, registers, _, _ = _INSTRUCTION.unpack_from(code, offset)
            if operation != _LOAD_64_BITS:
                raise ValueError(f"the instruction at {offset:#x} does not load the address of map {name}")
            _INSTRUCTION.pack_into(
                code, offset, operation, registers & 0x0F | _MAP_BY_DESCRIPTOR << 4, 0, descriptors[name]
            )
        return bytes(code)


@dataclass(frozen=True, slots=True)
class BpfObject:
    """The license, the maps and the programs of an object, the latter two by name."""

    license: bytes
    maps: Mapping[str, MapDefinition]
    programs: Mapping[str, Program]


def object_path(machine: str) -> Path:
    """Return the path of the object for a machine of `MACHINES`."""
    return Path(__file__).with_name(f"probes.{machine}.o")


def read_object(data: bytes) -> BpfObject:
    """Return the parts of an object. Raise ValueError, LookupError or struct.error if it is damaged."""
    sections = _sections(data)
    by_name = {name: section for name, section in sections if name}
    numbers = {name: number for number, (name, _) in enumerate(sections)}
    symbols = _symbols(sections)
    names = {value: name for name, section, value in symbols if section == numbers["maps"] and name}
    maps = {name: MapDefinition(*_MAP.unpack_from(by_name["maps"].content, value)) for value, name in names.items()}
    programs = {}
    for name, section in by_name.items():
        if name.startswith(_PROGRAM_PREFIX):
            relocations = [each for _, each in sections if each.kind == _RELOCATIONS and each.info == numbers[name]]
            references = {}
            for offset, info in (pair for each in relocations for pair in _RELOCATION.iter_unpack(each.content)):
                symbol, of, value = symbols[info >> 32]
                if info & 0xFFFFFFFF != _RELOCATE_64_BITS or of != numbers["maps"]:
                    raise ValueError(f"program {name} refers to {symbol or 'a section'}, which is not a map")
                references[offset] = names[value]
            programs[name.removeprefix(_PROGRAM_PREFIX)] = Program(section.content, references)
    return BpfObject(by_name["license"].content.rstrip(b"\0"), maps, programs)


@dataclass(frozen=True, slots=True)
class _Section:
    kind: int
    link: int
    info: int
    content: bytes


def _sections(data: bytes) -> list[tuple[str, _Section]]:
    """Return all sections in their order, each with its name."""
    *_, table, _, _, _, _, size, count, strings = _HEADER.unpack_from(data)
    if data[:4] != b"\x7fELF" or size != _SECTION.size:
        raise ValueError("not an ELF object of 64 bits")
    headers = list(_SECTION.iter_unpack(data[table : table + size * count]))
    contents = [data[header[4] : header[4] + header[5]] for header in headers]
    return [
        (_string(contents[strings], name), _Section(kind, link, info, content))
        for (name, kind, _, _, _, _, link, info, _, _), content in zip(headers, contents, strict=True)
    ]


def _symbols(sections: list[tuple[str, _Section]]) -> list[tuple[str, int, int]]:
    """Return the name, the section's number and the value of each symbol."""
    table = next(section for _, section in sections if section.kind == _SYMBOL_TABLE)
    strings = sections[table.link][1].content
    return [
        (_string(strings, name), section, value) for name, _, _, section, value, _ in _SYMBOL.iter_unpack(table.content)
    ]


def _string(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode()
