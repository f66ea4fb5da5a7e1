"""A libcuda: where its doors are."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from exporter.parse.elf_file import ElfError
from exporter.parse.elf_symbols import Machine, exported_functions
from exporter.sources.doors.doors import DOORS, WAITS, Kind
from exporter.sources.doors.library_file import LibraryError

_MACHINES = {"x86_64": Machine.X86_64, "aarch64": Machine.ARM64}
_LAUNCHES = frozenset({Kind.LAUNCH, Kind.LAUNCH_EX, Kind.GRAPH})


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A libcuda: its doors by their names, each with its offset in the file, and the processes that have it mapped.

    `path_to_open` is good for this process alone, as long as the library is told of. `path` is what it is called.
    """

    path_to_open: str
    path: str
    doors: Mapping[str, int]
    pids: tuple[int, ...] = ()


def machine_called(name: str) -> Machine | None:
    """The machine that uname(2) calls so; None for one that CUDA does not run on."""
    return _MACHINES.get(name)


def read_doors(descriptor: int, machine: Machine) -> Mapping[str, int]:
    """The doors of an open file, where it has one to launch and one to wait by. Raises LibraryError."""
    try:
        found = exported_functions(
            lambda offset, size: os.pread(descriptor, size, offset), [door.name for door in DOORS]
        )
    except ElfError as error:
        raise LibraryError(str(error)) from error
    except OSError as error:
        raise LibraryError(f"it cannot be read: {error.strerror}") from error
    if found.machine is not machine:
        raise LibraryError(f"it is for {found.machine}, and this machine is {machine}")
    kinds = {door.kind for door in DOORS if door.name in found.offsets}
    if not kinds & _LAUNCHES or not kinds & WAITS:
        raise LibraryError("it does not have the functions of libcuda")
    return _once(found.offsets)


def _once(offsets: Mapping[str, int]) -> Mapping[str, int]:
    """A function of two names is one door: with two probes there, all would be counted twice."""
    names: dict[int, str] = {}
    for name, offset in offsets.items():
        names.setdefault(offset, name)
    return {name: offset for offset, name in names.items()}
