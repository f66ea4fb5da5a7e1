"""The smallest loader of BPF programs that will do: maps, programs and probes, by bpf(2) and perf_event_open(2).

No library loads BPF from Python without a compiler or an object file of one (libbpf's bindings, bcc, pythonbpf): what
is needed of the kernel's interface is a few structures, written here with ctypes and struct (linux/bpf.h,
linux/perf_event.h). Whatever is opened is closed by the kernel when this process ends, however it ends.
"""

import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from exporter.sources.doors.registers import Registers, registers_of

HASH, ARRAY, LRU_HASH = 1, 2, 9
"""Kinds of maps."""

KPROBE = 2
"""The kind of program that runs at a probe, of the kernel's or a user's function."""

LICENSE = b"Dual BSD/GPL"
"""The kernel lets programs read a process' memory that are under a license like its own."""

_MAP_CREATE, _LOOKUP, _UPDATE, _DELETE, _PROGRAM_LOAD, _LOOKUP_BATCH, _LINK_CREATE = 0, 1, 2, 3, 5, 24, 28
_SYSCALLS = {"x86_64": (321, 298), "aarch64": (280, 241)}
_SET_PROGRAM = 0x40042408
_MANY_PROBES, _ON_RETURN = 48, 1
_EVENT_BYTES = 112
_CLOSE_ON_EXEC = 8
_EVERYBODY, _NO_GROUP = -1, -1
_LOG_BYTES = 1 << 16
_BATCH = 256
_PROBE_TYPE = Path("/sys/bus/event_source/devices/uprobe/type")


class BpfError(Exception):
    """The kernel does not let us: what was tried, why not, and what to do; with its `errno`, where it gave one."""

    def __init__(self, words: str, errno: int | None = None) -> None:
        super().__init__(words)
        self.errno = errno


class Kernel:
    """The two system calls, on a machine on which they are known."""

    def __init__(self, machine: str | None = None) -> None:
        """`machine` is as uname(2) has it. BpfError where nothing is known of it."""
        machine = platform.machine() if machine is None else machine
        registers = registers_of(machine)
        if registers is None:
            raise BpfError(f"{machine} is not supported: only x86_64 and aarch64 are")
        self.registers: Registers = registers
        self._bpf_number, self._perf_number = _SYSCALLS[machine]
        self._libc = ctypes.CDLL(None, use_errno=True)

    def map(self, kind: int, name: str, key_bytes: int, value_bytes: int, entries: int) -> "Map":
        """Make a map."""
        attributes = struct.pack("<IIIIIII16s", kind, key_bytes, value_bytes, entries, 0, 0, 0, name.encode()[:15])
        return Map(self, self._bpf(_MAP_CREATE, attributes, f"make the BPF map {name}"), key_bytes, value_bytes)

    def program(self, name: str, code: bytes) -> int:
        """Load a program; its descriptor."""
        try:
            return self._load(name, code, log=None)
        except BpfError as error:
            if error.errno not in (errno.EINVAL, errno.EACCES):
                raise
            log = ctypes.create_string_buffer(_LOG_BYTES)
            try:
                return self._load(name, code, log=log)
            except BpfError as again:
                last = log.value.decode(errors="replace").strip().splitlines()[-3:]
                raise BpfError(f"{again}: {'; '.join(last)}", again.errno) from again

    def _load(self, name: str, code: bytes, log: "ctypes.Array[ctypes.c_char] | None") -> int:
        instructions, license_text = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(LICENSE)
        attributes = struct.pack(
            "<IIQQIIQII16sII",
            KPROBE,
            len(code) // 8,
            ctypes.addressof(instructions),
            ctypes.addressof(license_text),
            0 if log is None else 1,
            0 if log is None else len(log),
            0 if log is None else ctypes.addressof(log),
            0,
            0,
            name.encode()[:15],
            0,
            _MANY_PROBES,
        )
        return self._bpf(_PROGRAM_LOAD, attributes, f"load the BPF program {name}")

    def probes(self, path: str, offsets: Sequence[int], program: int, *, on_return: bool) -> list[int]:
        """Run a program wherever anybody executes an instruction at these offsets of a file, or returns; descriptors.

        One link for all of them, where the kernel knows such (6.6), since the kernel takes its time to let go of each
        probe: 40 doors took 4 s, their links 0.1 s at once (measured, 6.18). An event for each where it does not.
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
            let_go(events)
            raise
        return events

    def _link(self, path: str, offsets: Sequence[int], program: int, *, on_return: bool) -> int:
        file = ctypes.create_string_buffer(os.fsencode(path))
        places = (ctypes.c_uint64 * len(offsets))(*offsets)
        attributes = struct.pack(
            "<IIIIQQQQIII", program, 0, _MANY_PROBES, 0,
            ctypes.addressof(file), ctypes.addressof(places), 0, 0, len(offsets), _ON_RETURN if on_return else 0, 0,
        )  # fmt: skip
        return self._bpf(_LINK_CREATE, attributes, f"probe {path}")

    def _event(self, path: str, offset: int, program: int, *, on_return: bool) -> int:
        """A probe by an event, which runs the program.

        Attached once for the whole system, and never inherited: an event that is inherited fails its target's next
        pthread_create with EFAULT, which kills it (measured, Linux 6.x).
        """
        file = ctypes.create_string_buffer(os.fsencode(path))
        attributes = struct.pack(
            "<IIQQQQQIIQQ", self._probe_type(), _EVENT_BYTES, int(on_return), 0, 0, 0, 0, 0, 0,
            ctypes.addressof(file), offset,
        ).ljust(_EVENT_BYTES, b"\0")  # fmt: skip
        buffer = ctypes.create_string_buffer(attributes, len(attributes))
        some_cpu = min(os.sched_getaffinity(0))  # an event is for one; its program runs on all
        event = self._called(
            f"probe {path} at {offset:#x}",
            self._perf_number, ctypes.byref(buffer), _EVERYBODY, some_cpu, _NO_GROUP, _CLOSE_ON_EXEC,
        )  # fmt: skip
        try:
            fcntl.ioctl(event, _SET_PROGRAM, program)
        except OSError as error:
            os.close(event)
            raise _refused(f"attach the BPF program to {path}", error) from error
        return event

    def asked(self, number: int, buffer: "ctypes.Array[ctypes.c_char]", what: str, *, nothing: int) -> bool:
        """One bpf(2) that may find `nothing`, an errno: whether it found something. The kernel writes to the buffer."""
        try:
            self._called(what, self._bpf_number, number, ctypes.byref(buffer), len(buffer))
        except BpfError as error:
            if error.errno != nothing:
                raise
            return False
        return True

    def _bpf(self, number: int, attributes: bytes, what: str) -> int:
        buffer = ctypes.create_string_buffer(attributes, len(attributes))
        return self._called(what, self._bpf_number, number, ctypes.byref(buffer), len(attributes))

    def _called(self, what: str, number: int, *arguments: object) -> int:
        answer = int(self._libc.syscall(ctypes.c_long(number), *arguments))
        if answer < 0:
            error = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            raise _refused(what, error) from error
        return answer

    @staticmethod
    def _probe_type() -> int:
        try:
            return int(_PROBE_TYPE.read_text())
        except (OSError, ValueError) as error:
            raise BpfError(f"this kernel has no uprobes for perf ({_PROBE_TYPE} is missing)") from error


class Map:
    """A map in the kernel."""

    def __init__(self, kernel: Kernel, descriptor: int, key_bytes: int, value_bytes: int) -> None:
        self.descriptor = descriptor
        self._kernel = kernel
        self._key = ctypes.create_string_buffer(key_bytes)
        self._value = ctypes.create_string_buffer(value_bytes)
        self._keys = ctypes.create_string_buffer(key_bytes * _BATCH)
        self._values = ctypes.create_string_buffer(value_bytes * _BATCH)
        self._next = ctypes.create_string_buffer(8)

    def put(self, key: bytes, value: bytes) -> None:
        """Set what a key has."""
        self._key.raw, self._value.raw = key, value
        self._element(_UPDATE, "write into a BPF map")

    def get(self, key: bytes) -> bytes | None:
        """What a key has; None where it is not there."""
        self._key.raw = key
        return self._value.raw if self._element(_LOOKUP, "read a BPF map") else None

    def drop(self, key: bytes) -> None:
        """Forget a key, if it is there."""
        self._key.raw = key
        self._element(_DELETE, "delete from a BPF map", with_value=False)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All that a hash has, read in as few calls as will do."""
        began, more = False, True
        while more:
            attributes = struct.pack(
                "<QQQQIIQQ",
                ctypes.addressof(self._next) if began else 0,
                ctypes.addressof(self._next),
                ctypes.addressof(self._keys),
                ctypes.addressof(self._values),
                _BATCH,
                self.descriptor,
                0,
                0,
            )
            count, more = self._batch(attributes)
            began = True
            keys, values = self._keys.raw, self._values.raw
            key_bytes, value_bytes = len(self._key), len(self._value)
            for index in range(count):
                yield (
                    keys[index * key_bytes : (index + 1) * key_bytes],
                    values[index * value_bytes : (index + 1) * value_bytes],
                )

    def _batch(self, attributes: bytes) -> tuple[int, bool]:
        """How many were read, and whether there are more; the kernel says ENOENT with the last ones."""
        buffer = ctypes.create_string_buffer(attributes, len(attributes))
        more = self._kernel.asked(_LOOKUP_BATCH, buffer, "read a BPF map", nothing=errno.ENOENT)
        return int(struct.unpack_from("<I", buffer.raw, 32)[0]), more

    def _element(self, number: int, what: str, *, with_value: bool = True) -> bool:
        value = ctypes.addressof(self._value) if with_value else 0
        attributes = struct.pack("<IIQQQ", self.descriptor, 0, ctypes.addressof(self._key), value, 0)
        buffer = ctypes.create_string_buffer(attributes, len(attributes))
        return self._kernel.asked(number, buffer, what, nothing=errno.ENOENT)


def let_go(descriptors: Sequence[int]) -> None:
    """Close them, all at once: for each, the kernel waits until nobody is within its program any more."""
    if descriptors:
        with ThreadPoolExecutor(len(descriptors)) as closers:
            tuple(closers.map(os.close, descriptors))


def _refused(what: str, error: OSError) -> BpfError:
    hint = {
        errno.EPERM: "; it takes CAP_BPF and CAP_PERFMON (docs/rights.md)",
        errno.EACCES: "; it takes CAP_BPF and CAP_PERFMON, and before Linux 6.6 CAP_SYS_ADMIN (docs/rights.md)",
        errno.ENOSYS: "; this kernel was built without it",
        errno.E2BIG: "; this kernel is too old",
        errno.ENOMEM: "; LimitMEMLOCK= may be too low for a kernel before 5.11",
    }.get(error.errno or 0, "")
    return BpfError(f"cannot {what}: {error.strerror}{hint}", error.errno)
