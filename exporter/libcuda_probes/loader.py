"""A loader of BPF maps, programs and uprobes, by bpf(2) and perf_event_open(2).

The programs are compiled already: they lie in an ELF object beside this file (build.sh). The loader needs a few
structures of linux/bpf.h and linux/perf_event.h, and no library. The kernel closes everything that is open here when
this process ends.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from exporter.parse import elf

_KPROBE = 2  # BPF_PROG_TYPE_KPROBE: a program that runs at a kprobe or uprobe

_MAP_CREATE, _LOOKUP, _UPDATE, _DELETE, _PROGRAM_LOAD, _LOOKUP_BATCH, _LINK_CREATE = 0, 1, 2, 3, 5, 24, 28
_SYSCALLS = {"x86_64": (321, 298), "aarch64": (280, 241)}
"""The numbers of bpf(2) and perf_event_open(2) on the machines with an object, as uname(2) names them."""
MACHINES = tuple(_SYSCALLS)
_SET_PROGRAM = 0x40042408
_UPROBE_MULTI, _ON_RETURN = 48, 1
_EVENT_BYTES = 112
_CLOSE_ON_EXEC = 8
_EVERY_PROCESS, _NO_GROUP = -1, -1
_LOG_BYTES = 1 << 16
_BATCH_BYTES = 1 << 18
_PROBE_TYPE = Path("/sys/bus/event_source/devices/uprobe/type")

_RELOCATION = struct.Struct("<QQ")
_MAP = struct.Struct("<IIII")
_INSTRUCTION = struct.Struct("<BBhi")
_RELOCATE_64_BITS = 1
_LOAD_64_BITS, _MAP_BY_DESCRIPTOR = 0x18, 1
_PROGRAM_PREFIX = "uprobe/"
_POSITION, _HEADER = struct.Struct("<Q"), struct.Struct("<I4x")
_BUSY, _DISCARDED = 1 << 31, 1 << 30


class MapDefinition(NamedTuple):
    """A map, as `struct map_definition` in the C file: its kind (enum bpf_map_type), sizes in bytes, and entries."""

    kind: int
    key_bytes: int
    value_bytes: int
    entries: int


class Program(NamedTuple):
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


class BpfObject(NamedTuple):
    """The license, the maps and the programs of an object, the latter two by name."""

    license: bytes
    maps: Mapping[str, MapDefinition]
    programs: Mapping[str, Program]


def object_path(machine: str) -> Path:
    """Return the path of the object for a machine of `MACHINES`."""
    return Path(__file__).with_name(f"probes.{machine}.o")


def parse_object(data: bytes) -> BpfObject:
    """Return the parts of an object. Raises ValueError, LookupError, StopIteration or struct.error if it is damaged.

    clang writes one section for each program, `uprobe/NAME`. A section of relocations names the map of each
    instruction that loads one.
    """
    sections = elf.sections(data)
    by_name = {section.name: section for section in sections if section.name}
    numbers = {section.name: number for number, section in enumerate(sections)}
    symbols = elf.symbols(sections)
    names = {value: name for name, section, value in symbols if section == numbers["maps"] and name}
    maps = {name: MapDefinition(*_MAP.unpack_from(by_name["maps"].content, value)) for value, name in names.items()}
    programs = {}
    for name, section in by_name.items():
        if name.startswith(_PROGRAM_PREFIX):
            references = {}
            for table in sections:
                if table.kind == elf.RELOCATIONS and table.info == numbers[name]:
                    for offset, info in _RELOCATION.iter_unpack(table.content):
                        symbol, of, value = symbols[info >> 32]
                        if info & 0xFFFFFFFF != _RELOCATE_64_BITS or of != numbers["maps"]:
                            raise ValueError(f"program {name} refers to {symbol or 'a section'}, which is not a map")
                        references[offset] = names[value]
            programs[name.removeprefix(_PROGRAM_PREFIX)] = Program(section.content, references)
    return BpfObject(by_name["license"].content.rstrip(b"\0"), maps, programs)


class BpfError(Exception):
    """The kernel refused a call: what was tried, why it failed, and what it needs; with its `errno` if it gave one."""

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class Kernel:
    """The two system calls, on a machine for which this package has programs."""

    def __init__(self, machine: str | None = None) -> None:
        """`machine` is as uname(2) names it. Raises BpfError if it is not supported."""
        machine = platform.machine() if machine is None else machine
        if machine not in MACHINES:
            raise BpfError(f"{machine} is not supported: only {' and '.join(MACHINES)} are")
        self._machine = machine
        self._bpf_number, self._perf_number = _SYSCALLS[machine]
        self._libc = ctypes.CDLL(None, use_errno=True)

    def read_object(self) -> BpfObject:
        """Return the compiled programs for this machine."""
        path = object_path(self._machine)
        try:
            return parse_object(path.read_bytes())
        except OSError as error:
            raise BpfError(f"cannot read {path}: {error.strerror}", error.errno) from error
        except (ValueError, LookupError, StopIteration, struct.error) as error:
            raise BpfError(f"{path} is damaged: install the exporter again") from error

    def create_map(self, name: str, definition: MapDefinition) -> "Map":
        """Create a map."""
        attributes = struct.pack("<IIIIIII16s", *definition, 0, 0, 0, name.encode()[:15])
        descriptor = self._bpf(_MAP_CREATE, attributes, f"create the BPF map {name}")
        return Map(self, descriptor, definition.key_bytes, definition.value_bytes)

    def load_program(self, name: str, code: bytes, license_name: bytes) -> int:
        """Load a program and return its descriptor. If the kernel rejects it, the error has the verifier's reason."""
        try:
            return self._load(name, code, license_name, log=None)
        except BpfError as error:
            if error.errno not in (errno.EINVAL, errno.EACCES):
                raise
            log = ctypes.create_string_buffer(_LOG_BYTES)
            try:
                return self._load(name, code, license_name, log=log)
            except BpfError as again:
                last = log.value.decode(errors="replace").strip().splitlines()[-3:]
                raise BpfError(f"{again}: {'; '.join(last)}", again.errno) from again

    def _load(self, name: str, code: bytes, license_name: bytes, log: "ctypes.Array[ctypes.c_char] | None") -> int:
        instructions = ctypes.create_string_buffer(code, len(code))
        license_text = ctypes.create_string_buffer(license_name)
        program = _KPROBE, len(code) // 8, ctypes.addressof(instructions), ctypes.addressof(license_text)
        verifier = (0, 0, 0) if log is None else (1, len(log), ctypes.addressof(log))
        attributes = struct.pack("<IIQQIIQII16sII", *program, *verifier, 0, 0, name.encode()[:15], 0, _UPROBE_MULTI)
        return self._bpf(_PROGRAM_LOAD, attributes, f"load the BPF program {name}")

    def attach(self, path: str, offsets: Sequence[int], program: int, *, on_return: bool) -> list[int]:
        """Run a program when any process executes, or returns from, the functions at these offsets of a file.

        Return the descriptors that hold the probes. From Linux 6.6 on, one link holds all of them: to remove 40 single
        probes took 4 s, to remove their links 0.1 s (measured, 6.18). Older kernels get one perf event for each.
        """
        try:
            return [self._link(path, offsets, program, on_return=on_return)]
        except BpfError as error:
            if error.errno != errno.EINVAL:
                raise
        events: list[int] = []
        try:
            events.extend(self._event(path, offset, program, on_return=on_return) for offset in offsets)
        except BpfError:
            close_all(events)
            raise
        return events

    def _link(self, path: str, offsets: Sequence[int], program: int, *, on_return: bool) -> int:
        file = ctypes.create_string_buffer(os.fsencode(path))
        places = (ctypes.c_uint64 * len(offsets))(*offsets)
        attributes = struct.pack(
            "<IIIIQQQQIII", program, 0, _UPROBE_MULTI, 0,
            ctypes.addressof(file), ctypes.addressof(places), 0, 0, len(offsets), _ON_RETURN if on_return else 0, 0,
        )  # fmt: skip
        return self._bpf(_LINK_CREATE, attributes, f"probe {path}")

    def _event(self, path: str, offset: int, program: int, *, on_return: bool) -> int:
        """Attach a program by a perf event.

        The event covers the whole system and is never inherited: an inherited event makes the next pthread_create of
        a traced process fail with EFAULT, which kills it (measured, Linux 6.x).
        """
        file = ctypes.create_string_buffer(os.fsencode(path))
        try:
            kind = int(_PROBE_TYPE.read_text())
        except (OSError, ValueError) as error:
            raise BpfError(f"this kernel has no uprobes for perf ({_PROBE_TYPE} is missing)") from error
        attributes = struct.pack(
            "<IIQQQQQIIQQ", kind, _EVENT_BYTES, int(on_return), 0, 0, 0, 0, 0, 0,
            ctypes.addressof(file), offset,
        ).ljust(_EVENT_BYTES, b"\0")  # fmt: skip
        buffer = ctypes.create_string_buffer(attributes, len(attributes))
        some_cpu = min(os.sched_getaffinity(0))  # the event names one CPU; its program runs on all
        event = self._call(
            f"probe {path} at {offset:#x}",
            self._perf_number, ctypes.byref(buffer), _EVERY_PROCESS, some_cpu, _NO_GROUP, _CLOSE_ON_EXEC,
        )  # fmt: skip
        try:
            fcntl.ioctl(event, _SET_PROGRAM, program)
        except OSError as error:
            os.close(event)
            raise _refusal(f"attach the BPF program to {path}", error) from error
        return event

    def finds(self, number: int, buffer: "ctypes.Array[ctypes.c_char]", what: str, *, nothing: int) -> bool:
        """Call bpf(2), which writes to the buffer. Return False if it fails with the errno `nothing`."""
        try:
            self._call(what, self._bpf_number, number, ctypes.byref(buffer), len(buffer))
        except BpfError as error:
            if error.errno != nothing:
                raise
            return False
        return True

    def _bpf(self, number: int, attributes: bytes, what: str) -> int:
        buffer = ctypes.create_string_buffer(attributes, len(attributes))
        return self._call(what, self._bpf_number, number, ctypes.byref(buffer), len(attributes))

    def _call(self, what: str, number: int, *arguments: object) -> int:
        result = int(self._libc.syscall(ctypes.c_long(number), *arguments))
        if result < 0:
            error = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            raise _refusal(what, error) from error
        return result


class Map:
    """A map in the kernel."""

    def __init__(self, kernel: Kernel, descriptor: int, key_bytes: int, value_bytes: int) -> None:
        self.descriptor = descriptor
        self._kernel = kernel
        self._key = ctypes.create_string_buffer(key_bytes)
        self._value = ctypes.create_string_buffer(value_bytes)
        self._batch = max(1, min(256, _BATCH_BYTES // max(1, value_bytes)))
        self._keys = ctypes.create_string_buffer(key_bytes * self._batch)
        self._values = ctypes.create_string_buffer(value_bytes * self._batch)
        self._next = ctypes.create_string_buffer(8)

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        self._key.raw, self._value.raw = key, value
        self._element(_UPDATE, "write into a BPF map")

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if the map does not have it."""
        self._key.raw = key
        return self._value.raw if self._element(_LOOKUP, "read a BPF map") else None

    def delete(self, key: bytes) -> None:
        """Delete a key if the map has it."""
        self._key.raw = key
        self._element(_DELETE, "delete from a BPF map", with_value=False)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all entries of a hash map, read in batches."""
        after, more = 0, True
        while more:
            buffers = (ctypes.addressof(buffer) for buffer in (self._next, self._keys, self._values))
            attributes = struct.pack("<QQQQIIQQ", after, *buffers, self._batch, self.descriptor, 0, 0)
            buffer = ctypes.create_string_buffer(attributes, len(attributes))
            # With the last entries, the kernel returns ENOENT.
            more = self._kernel.finds(_LOOKUP_BATCH, buffer, "read a BPF map", nothing=errno.ENOENT)
            (count,) = struct.unpack_from("<I", buffer.raw, 32)
            after = ctypes.addressof(self._next)
            keys = struct.iter_unpack(f"{len(self._key)}s", self._keys)
            values = struct.iter_unpack(f"{len(self._value)}s", self._values)
            yield from ((key, value) for (key,), (value,) in islice(zip(keys, values, strict=True), count))

    def _element(self, number: int, what: str, *, with_value: bool = True) -> bool:
        value = ctypes.addressof(self._value) if with_value else 0
        attributes = struct.pack("<IIQQQ", self.descriptor, 0, ctypes.addressof(self._key), value, 0)
        buffer = ctypes.create_string_buffer(attributes, len(attributes))
        return self._kernel.finds(number, buffer, what, nothing=errno.ENOENT)


class Ring:
    """A ring buffer of messages (Documentation/bpf/ringbuf.rst of Linux), with one reader."""

    def __init__(self, descriptor: int, size: int) -> None:
        """`size` is that of its data, in bytes. Raises BpfError."""
        self._size, page = size, mmap.PAGESIZE
        try:
            self._position = mmap.mmap(descriptor, page)
            self._data = mmap.mmap(descriptor, page + 2 * size, prot=mmap.PROT_READ, offset=page)
        except OSError as error:
            raise _refusal("map a BPF ring buffer", error) from error

    def read(self) -> Iterator[bytes]:
        """Yield the messages that are complete. The data is mapped twice in a row, so each message is in one piece."""
        (position,), (end,) = _POSITION.unpack_from(self._position), _POSITION.unpack_from(self._data)
        while position < end:
            at = mmap.PAGESIZE + position % self._size
            (header,) = _HEADER.unpack_from(self._data, at)
            if header & _BUSY:
                break
            length = header & ~_DISCARDED
            if not header & _DISCARDED:
                yield self._data[at + _HEADER.size : at + _HEADER.size + length]
            position += (_HEADER.size + length + 7) & ~7
            _POSITION.pack_into(self._position, 0, position)

    def close(self) -> None:
        """Unmap it."""
        self._position.close()
        self._data.close()


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors in parallel: for each, the kernel waits until no thread executes its program."""
    if descriptors:
        with ThreadPoolExecutor(len(descriptors)) as closers:
            tuple(closers.map(os.close, descriptors))


def _refusal(what: str, error: OSError) -> BpfError:
    hint = {
        errno.EPERM: "; this needs CAP_BPF and CAP_PERFMON (docs/security.md)",
        errno.EACCES: "; this needs CAP_BPF and CAP_PERFMON, and before Linux 6.6 CAP_SYS_ADMIN (docs/security.md)",
        errno.ENOSYS: "; this kernel was built without it",
        errno.E2BIG: "; this kernel is too old",
        errno.ENOMEM: "; LimitMEMLOCK= may be too low for a kernel before 5.11",
    }.get(error.errno or 0, "")
    return BpfError(f"cannot {what}: {error.strerror}{hint}", error.errno)
