"""Files of /proc (proc(5)). Parsers return None, or nothing, if a value is missing or has another form."""

import re
import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum, StrEnum
from ipaddress import ip_address
from typing import NamedTuple

_DELETED = " (deleted)"

# -- Programs, environment and limits ------------------------------------------------------------------------------

_MPS_NAME = re.compile(r"nvidia-cuda-mp(?:s|$)")
"""In the names of both programs. The kernel stores 15 bytes: `.nvidia-cuda-mp` of `.nvidia-cuda-mps-control.13`."""


class MpsProgram(StrEnum):
    """A program of MPS."""

    CONTROL = "nvidia-cuda-mps-control"
    SERVER = "nvidia-cuda-mps-server"


def mps_program(executable: str | None, *others: str | None) -> MpsProgram | None:
    """Return the program of MPS that a process runs; None if it runs another program.

    The executable's name decides if it is one of NVIDIA's. A process can choose its command, the name with argv[0].
    """
    names = (name.rpartition("/")[2] for name in (executable, *others) if name)
    name = next(filter(is_mps_name, names), None)
    if name is None:
        return None
    return MpsProgram.SERVER if "-server" in name else MpsProgram.CONTROL


def is_mps_name(name: str) -> bool:
    """Return whether a program may be one of MPS, by the name that the kernel stores. A site may have renamed it."""
    return _MPS_NAME.search(name) is not None


_ASSIGNMENT = re.compile(rb"[^\s=]+=")
_LONGEST_TITLE = 4095  # The kernel shows at most a page of a title that is longer than the arguments were.
_TITLE = re.compile(r"[\s:=(\[]")
_WORD = re.compile(r"[A-Za-z]+(?:[._-][A-Za-z]+)*")


def is_environment_intact(environment: bytes, arguments: bytes) -> bool:
    """Return whether /proc/PID/environ has what the process was started with, given /proc/PID/cmdline.

    A process that shows a title (setproctitle, Perl, nginx, sshd) writes it over its arguments and the environment
    behind them, and fills the rest with NUL bytes or spaces. If the title is longer than the arguments were, the kernel
    shows all of it as the only argument. Then the environment begins with its end, which may look like an assignment.
    Without arguments, an empty environment is not believed: both are empty during execve(2).
    """
    if not environment:
        return bool(arguments)
    variables, title = environment.removesuffix(b"\0").split(b"\0"), arguments.rstrip(b"\0 ")
    is_end = title.endswith(variables[0].rstrip(b" ")) or len(title) >= _LONGEST_TITLE
    return all(map(_ASSIGNMENT.match, variables)) and (b"\0" in title or not is_end)


def stable_command(name: str, arguments: bytes, program: str | None) -> str:
    """Return the name of a process; if it shows a title, its `program` and the first word of the title.

    The rest of a title may change all the time: Ray shows `ray::IDLE`, and then each task.
    """
    title, executable = arguments.rstrip(b"\0"), (program or "").rpartition("/")[2].removesuffix(_DELETED)
    is_padded = b"\0" not in title and len(arguments) - len(title) > 1
    is_alone = bool(executable) and title.decode(errors="replace") == name
    if executable.startswith(name) or not (is_padded or is_alone or _TITLE.search(name)):
        return name
    word = _WORD.match(name)
    first = "" if word is None or word[0] == executable else word[0]
    return " ".join(filter(None, (executable, first))) or name


def max_open_files(text: str) -> int | None:
    """Return the soft limit of open files in /proc/PID/limits; None if there is none."""
    found = re.search(r"^Max open files +([0-9]{1,10}) ", text, re.MULTILINE)
    return int(found[1]) if found else None


# -- /proc/PID/maps ------------------------------------------------------------------------------------------------

_MAPPING = re.compile(
    rb"[0-9a-f]{1,16}-[0-9a-f]{1,16} ..(x|-). [0-9a-f]{1,16} ([0-9a-f]{2,3}):([0-9a-f]{2,5}) ([0-9]{1,20}) +(/.*)",
    re.DOTALL,
)

FileNumbers = tuple[int, int, int]
"""Device major and minor number, and inode: they identify a file, also across processes."""


class MappedFile(NamedTuple):
    """A mapped file. Undecodable bytes of its path are surrogates. `deleted`: the file has no name any more."""

    path: str
    numbers: FileNumbers
    executable: bool
    deleted: bool


def parse_mapped_file(line: bytes) -> MappedFile | None:
    """Parse one line of /proc/PID/maps. The process chooses the path; the kernel escapes line breaks in it."""
    found = _MAPPING.fullmatch(line.rstrip(b"\n"))
    if found is None:
        return None
    executable, major, minor, inode, path = found.groups()
    text = path.decode(errors="surrogateescape")
    return MappedFile(
        path=text.removesuffix(_DELETED),
        numbers=(int(major, 16), int(minor, 16), int(inode)),
        executable=executable == b"x",
        deleted=text.endswith(_DELETED),
    )


_RANGE = re.compile(
    rb"^([0-9a-f]{1,16})-([0-9a-f]{1,16}) (?:(---p) 0{1,16} 00:00 0 *(?:\[anon:[^\n]*\])?"
    rb"|..-. [0-9a-f]{1,16} 00:00 0 *(?:\[heap\]|\[anon:[^\n]*\])?"
    rb"|.{4} [0-9a-f]{1,16} [0-9a-f]{2,3}:[0-9a-f]{2,5} [0-9]{1,20} +/dev/(nvidia)[^\n]*)$",
    re.MULTILINE,
)
_SMALLEST = 1 << 20
"""Smaller ranges are left out: stacks, and the kernel's and the C library's own."""

_MOST_SMALL = 1 << 30  # if those are more bytes in all, the ranges are not complete
MOST_RANGES = 256  # a process has at most so many ranges of each kind: the largest ones
Ranges = tuple[tuple[int, int], ...]


def parse_address_ranges(maps: bytes) -> tuple[Ranges, Ranges, bool]:
    """Return the ranges that are reserved or of a GPU's device, the large anonymous ones, and whether these are all.

    CUDA reserves the range of each allocation and pool without rights (measured, R580). Adjacent ranges are merged.
    """
    found: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for start_text, end_text, reserved, device in _RANGE.findall(maps):
        start, end, ranges = int(start_text, 16), int(end_text, 16), found[bool(reserved or device)]
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((start, end))
    small = sum(end - start for ranges in found.values() for start, end in ranges if end - start < _SMALLEST)
    large = {kind: [each for each in ranges if each[1] - each[0] >= _SMALLEST] for kind, ranges in found.items()}
    kept = {
        kind: tuple(sorted(sorted(ranges, key=lambda each: each[0] - each[1])[:MOST_RANGES]))
        for kind, ranges in large.items()
    }
    complete = small <= _MOST_SMALL and all(len(kept[kind]) == len(ranges) for kind, ranges in large.items())
    return kept[True], kept[False], complete


# -- /proc/PID/stat: its second field, the name, may contain anything, also parentheses ----------------------------

_NUMBER = re.compile(r"[0-9]{1,20}")
_EXITING = 0x4
_SIGNALED = 0x400
"""PF_EXITING and PF_SIGNALED (include/linux/sched.h): the process is ending; a signal ended it."""


def _field(text: str, number: int) -> int | None:
    """Return a field after the name. Fields have the numbers of proc(5)."""
    _, closing, rest = text.rpartition(")")
    fields = rest.split()
    if not closing or len(fields) <= number - 3 or not _NUMBER.fullmatch(fields[number - 3]):
        return None
    return int(fields[number - 3])


SUSPENDED = ("T", "t")  # the states of a process that a signal or a debugger stopped (proc_pid_stat(5))


def process_state(text: str) -> str | None:
    """Return the scheduler state, one letter."""
    _, closing, rest = text.rpartition(") ")
    return rest[0] if closing and rest[:1].isalpha() and rest[1:2] == " " else None


def is_zombie(text: str) -> bool:
    """Return whether the process has ended unreaped. If only its first thread ended, others remain (field 20)."""
    return process_state(text) in ("Z", "X") and (_field(text, 20) or 0) <= 1


def is_exiting(text: str) -> bool:
    """Return whether the process is ending: the kernel closes its files, or has done so, and no code of it runs."""
    return bool((_field(text, 9) or 0) & _EXITING)


def parent_pid(text: str) -> int | None:
    """Return the parent's PID, 0 if the parent is in another PID namespace."""
    return _field(text, 4)


def children_page_faults(text: str) -> int | None:
    """Return the minor page faults of all ended children. Each child adds to it, even one that lives for 1 ms."""
    return _field(text, 11)


def start_ticks(text: str) -> int | None:
    """Return the start time of the process, in clock ticks since boot."""
    return _field(text, 22)


def environment_addresses(text: str) -> tuple[int, int] | None:
    """Return start and end address of the environment; None also if the reader has no permission."""
    start, end = _field(text, 50), _field(text, 51)
    return (start, end) if start and end and start < end else None


def wait_status(text: str) -> int | None:
    """Return how a zombie ended, as from waitpid(2).

    The field is 0 if the reader has no permission. If a signal ended the process (field 9), 0 is not its status.
    """
    status, flags = _field(text, 52), _field(text, 9)
    if status is None or flags is None or not is_zombie(text):
        return None
    return status if status or not flags & _SIGNALED else None


# -- /proc/PID/status: the kernel escapes the name in it, so that no line can be forged -----------------------------


def _status(text: str, key: str, value: str) -> str:
    found = re.search(rf"^{key}:{value}$", text, re.MULTILINE)
    return found[1] if found else ""


def namespace_pids(text: str) -> tuple[int, ...]:
    """Return the PID of the process in each of its PID namespaces: the reader's first, its own last."""
    return tuple(map(int, _status(text, "NSpid", r"((?:\t[0-9]{1,10})+)").split()))


class Capability(IntEnum):
    """Linux capabilities by bit number (linux/capability.h)."""

    DAC_OVERRIDE = 1
    KILL = 5
    SETGID = 6
    SETUID = 7
    SYS_PTRACE = 19
    SYS_ADMIN = 21
    SYSLOG = 34
    PERFMON = 38
    BPF = 39


def effective_capabilities(text: str) -> int:
    """Return the effective capabilities as a bit mask (capabilities(7)); 0 if they are missing."""
    return int(_status(text, "CapEff", r"\t([0-9a-f]{1,32})") or "0", 16)


def real_user(text: str) -> int | None:
    """Return the real UID."""
    found = _status(text, "Uid", r"\t([0-9]{1,10})\t.*")
    return int(found) if found else None


def effective_user(text: str) -> int | None:
    """Return the effective UID."""
    found = _status(text, "Uid", r"\t[0-9]+\t([0-9]{1,10})\t.*")
    return int(found) if found else None


def group_ids(text: str) -> frozenset[int]:
    """Return the effective and the supplementary groups."""
    effective = _status(text, "Gid", r"\t[0-9]+\t([0-9]{1,10})\t.*")
    return frozenset(map(int, (effective + " " + _status(text, "Groups", r"\t((?:[0-9]{1,10} )*)")).split()))


# -- /proc/net -----------------------------------------------------------------------------------------------------


_ON_NETWORK = re.compile(
    r"(fuse\.)?(9p|afs|beegfs|ceph|cifs|gfs2|gluster|gpfs|juicefs|lustre|mfs|mmfs|moosefs|nfs|ocfs2|orangefs|panfs|pvfs2"
    r"|smb|sshfs|virtiofs|wekafs)"
)


def is_on_network(file_system: str | None) -> bool:
    """Return whether several nodes can mount a file system of this type."""
    return _ON_NETWORK.match(file_system or "") is not None


def mount_type(mounts: str, descriptor: str) -> str | None:
    """Return the type of the file system in /proc/PID/mountinfo that has a file of /proc/self/fdinfo.

    It is None for the root: a diskless node has that on NFS, and it is still only this node's.
    """
    number = _status(descriptor, "mnt_id", r"\t([0-9]{1,10})")
    found = re.search(rf"^{number or '-'} \S+ \S+ \S+ (?!/ )\S+ .* - (\S+) ", mounts, re.MULTILINE)
    return None if found is None else found[1]


_ACCEPTS_CONNECTIONS = "00010000"  # SO_ACCEPTCON


def boot_time(text: str) -> float | None:
    """Return when the machine booted (`btime` of /proc/stat), in seconds since the epoch."""
    found = re.search(r"^btime (\d+)$", text, re.MULTILINE)
    return None if found is None else float(found[1])


def listening_unix_sockets(text: str) -> Iterator[str]:
    """Yield the paths of the listening sockets of /proc/net/unix. The path of an abstract socket begins with @.

    A line is `Num: RefCount Protocol Flags Type St Inode Path`. A path may contain anything, also line breaks: the user
    who binds it can add a line, but cannot remove one.
    """
    for line in text.split("\n"):
        fields = line.split(maxsplit=7) if _ACCEPTS_CONNECTIONS in line else ()
        if len(fields) == 8 and fields[3] == _ACCEPTS_CONNECTIONS:
            yield fields[7]


def _tcp_address(host: str, port: int) -> str:
    """Return an address as /proc/net/tcp has it, in words of the machine's byte order."""
    packed = ip_address(host).packed
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(packed) // 4}I", packed)) + f":{port:04X}"


_IPV4_MAPPED = _tcp_address("::ffff:0.0.0.0", 0)[:24]


def tcp_user(lines: Iterable[str], local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """Return the UID that made the socket with these ends, given /proc/net/tcp or tcp6; None if no process has it.

    A line is `sl local_address rem_address st queues timer retrnsmt uid timeout inode`. A socket that no process has
    any more has the inode 0, and the UID 0, too. IPv4 can be mapped into IPv6.
    """
    ends = [_tcp_address(*each).removeprefix(_IPV4_MAPPED) for each in (local, remote)]
    for line in lines:
        fields = line.split() if ends[0] in line else []
        if [each.removeprefix(_IPV4_MAPPED) for each in fields[1:3]] == ends and fields[9] != "0":
            return int(fields[7])
    return None
