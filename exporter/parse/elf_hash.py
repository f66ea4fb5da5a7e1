"""The hash tables by which the dynamic linker finds a symbol by its name (System V's generic ABI, and GNU's own)."""

import struct
from collections.abc import Callable, Iterator

from exporter.parse.elf_file import ElfFile

Lookup = Callable[[bytes], Iterator[int]]
"""The numbers of the symbols that may be of a name."""

_GNU_HASH = struct.Struct("<IIII")
_HASH = struct.Struct("<II")
_MOST_OF_A_CHAIN = 1024
_MOST_OF_A_NAME = 16
_BLOCK = 64


def gnu_hash_table(file: ElfFile, table: int) -> Lookup:
    """DT_GNU_HASH: a chain is a row of hashes, of which the last one is odd."""
    buckets, first, words, _ = _GNU_HASH.unpack(file.part(table, _GNU_HASH.size))
    start = table + _GNU_HASH.size + 8 * words
    chains = start + 4 * buckets

    def called(name: bytes) -> Iterator[int]:
        wanted = _gnu_hash(name)
        number = file.number(start + 4 * (wanted % buckets)) if buckets else 0
        met = 0
        for _ in range(_MOST_OF_A_CHAIN // _BLOCK if number >= first and number else 0):
            for (value,) in struct.iter_unpack("<I", _whole(file.upto(chains + 4 * (number - first), 4 * _BLOCK))):
                if value | 1 == wanted | 1 and met < _MOST_OF_A_NAME:
                    met += 1
                    yield number
                if value & 1:
                    return
                number += 1

    return called


def _whole(data: bytes) -> bytes:
    """As many words of four bytes as there are."""
    return data[: len(data) // 4 * 4]


def hash_table(file: ElfFile, table: int) -> Lookup:
    """DT_HASH, as older linkers make it alone: a chain is a list, which ends with 0."""
    buckets, symbols = _HASH.unpack(file.part(table, _HASH.size))
    start = table + _HASH.size
    chains = start + 4 * buckets

    def called(name: bytes) -> Iterator[int]:
        number = file.number(start + 4 * (_hash(name) % buckets)) if buckets else 0
        for _ in range(_MOST_OF_A_CHAIN):
            if not 0 < number < symbols:
                return
            yield number
            number = file.number(chains + 4 * number)

    return called


def _gnu_hash(name: bytes) -> int:
    value = 5381
    for byte in name:
        value = value * 33 + byte & 0xFFFFFFFF
    return value


def _hash(name: bytes) -> int:
    value = 0
    for byte in name:
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value
