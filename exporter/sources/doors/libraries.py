"""The libcudas whose doors are to be watched: those that processes have mapped, and the node's own.

Any process can map a file of its own making under that name. So a file is opened, read and attached to in bounds, and
gets probes only where it has the doors; and no user has all the room there is. What is attached to is the file that was
read: it is kept open, and named by its descriptor.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from exporter.clock import Clock
from exporter.parse.elf_symbols import Machine
from exporter.parse.memory_map import FileNumbers
from exporter.parse.printable import LONGEST_PROBLEM, printable
from exporter.sources.doors.library import Library, read_doors
from exporter.sources.doors.library_file import LibraryError, Twin, numbers, open_here, open_of_process, twin
from exporter.sources.doors.mappers import Mapper, Mappers
from exporter.sources.proc import Proc

NODES_OWN = tuple(
    Path(directory) / "libcuda.so.1"
    for directory in (
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/nvidia/lib64",
        "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
        "/run/nvidia/driver/usr/lib64",
        "/home/kubernetes/bin/nvidia/lib64",
    )
)
"""Where distributions have it, or NVIDIA's containers and Google's nodes."""

MOST_LIBRARIES = 32
MOST_OF_A_USER = 8
"""How many files of one user's there may be among them, but for root's."""

KEPT_SECONDS = 60.0
"""How long one is watched that nobody has mapped: the next process may be about to start."""

AGAIN_SECONDS = 60.0
"""When it is looked again for the node's own, and at what could not be used."""

_MOST_REFUSED = 256
_MOST_TOLD = 8
_MOST_TRIED = 3

_REPLACED = "its file was replaced while it ran, by an upgrade perhaps; it is watched from its next start on"


@dataclass(frozen=True, slots=True)
class Found:
    """The libraries, and in words what kept others from being among them."""

    libraries: tuple[Library, ...]
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class _Kept:
    """A library, and its file, which is open; when it was last needed."""

    library: Library
    descriptor: int
    owner: int
    twin: Twin | None
    numbers: FileNumbers
    needed: float


@dataclass(frozen=True, slots=True)
class _Refused:
    why: str
    until: float


class Libraries:
    """Knows the libcudas of a node, from look to look."""

    def __init__(self, proc: Proc, clock: Clock, machine: Machine, nodes_own: Sequence[Path] = NODES_OWN) -> None:
        """`nodes_own` is where the node's own may be."""
        self._proc = proc
        self._clock = clock
        self._machine = machine
        self._paths = nodes_own
        self._mappers = Mappers(proc, clock)
        self._kept: dict[FileNumbers, _Kept] = {}
        self._refused: dict[FileNumbers, _Refused] = {}
        self._own: frozenset[FileNumbers] = frozenset()
        self._own_due = clock.monotonic()

    def look(self, pids: Iterable[int]) -> Found:
        """The libraries now, by the processes that use CUDA, or serve those that do."""
        now = self._clock.monotonic()
        if now >= self._own_due:
            self._own_due = now + AGAIN_SECONDS
            self._own = frozenset(filter(None, [self._meet_own(path, now) for path in self._paths]))
        mapped = self._mappers.look(pids)
        self._refused = {file: each for file, each in self._refused.items() if file in mapped and now < each.until}
        for file, mappers in mapped.items():
            if file not in self._kept and file not in self._refused:
                self._meet(file, mappers, now)
        # What is let go of is so after the rest was opened: a descriptor's number is not another file's in one look.
        self._let_go(mapped, now)
        return Found(tuple(self._told(mapped)), tuple(self._problems(mapped)))

    def close(self) -> None:
        """Let go of all files."""
        for kept in self._each():
            os.close(kept.descriptor)
        self._kept.clear()

    def _meet_own(self, path: Path, now: float) -> FileNumbers | None:
        """One of the node's own, so that whoever starts later is watched from the first launch on."""
        descriptor = open_here(path)
        if descriptor is None:
            return None
        file = numbers(descriptor)
        with contextlib.suppress(LibraryError):
            self._take(descriptor, file, str(path), now)
        return file

    def _meet(self, file: FileNumbers, mappers: Iterable[Mapper], now: float) -> None:
        """One that is mapped: whoever of them lives still helps to open it."""
        why = _REPLACED
        for mapper in [each for each in mappers if not each.file.deleted][:_MOST_TRIED]:
            try:
                self._take(open_of_process(mapper, self._proc), file, mapper.file.path, now)
            except LibraryError as error:
                why = str(error)
            else:
                return
        if len(self._refused) < _MOST_REFUSED:
            self._refused[file] = _Refused(why, now + AGAIN_SECONDS)

    def _take(self, descriptor: int, file: FileNumbers | None, path: str, now: float) -> None:
        """Keep an open file, or close it. Raises LibraryError, where it cannot be used."""
        try:
            kept = self._same(descriptor, file) or self._read(descriptor, file, path, now)
        except BaseException:
            os.close(descriptor)
            raise
        if kept.descriptor != descriptor:
            os.close(descriptor)
        self._kept[file or kept.numbers] = kept

    def _same(self, descriptor: int, file: FileNumbers | None) -> _Kept | None:
        """The file that is kept already, or one that is the same below the overlays that both are of.

        (Had each its probes, what passes there would be counted twice. Told by inode, size and times, since the
        kernel does not tell it: of two overlays above two equal read-only images, only one is watched.)
        """
        mine = twin(descriptor)
        twins = (kept for kept in self._each() if mine is not None and kept.twin == mine)
        return self._kept.get(file, None) if file in self._kept else next(twins, None)

    def _read(self, descriptor: int, file: FileNumbers | None, path: str, now: float) -> _Kept:
        if file is None:
            raise LibraryError("it cannot be mapped")
        owner = os.fstat(descriptor).st_uid
        if len(self._each()) >= MOST_LIBRARIES:
            raise LibraryError(f"{MOST_LIBRARIES} others are watched already")
        if owner != 0 and sum(kept.owner == owner for kept in self._each()) >= MOST_OF_A_USER:
            raise LibraryError(f"{MOST_OF_A_USER} others of UID {owner} are watched already")
        library = Library(
            path_to_open=f"/proc/self/fd/{descriptor}",
            path=printable(path, LONGEST_PROBLEM),
            doors=read_doors(descriptor, self._machine),
        )
        return _Kept(library, descriptor, owner, twin(descriptor), file, now)

    def _each(self) -> list[_Kept]:
        """Each once, by whichever numbers it is known."""
        return [kept for file, kept in self._kept.items() if file == kept.numbers]

    def _let_go(self, mapped: Mapping[FileNumbers, object], now: float) -> None:
        for file, kept in self._kept.items():
            if file in mapped or file in self._own:
                kept.needed = now
        for file, kept in list(self._kept.items()):
            gone = now - kept.needed > KEPT_SECONDS
            # An overlay that is gone leaves its numbers to the next one.
            if gone or (file != kept.numbers and file not in mapped):
                del self._kept[file]
            if gone and file == kept.numbers:
                os.close(kept.descriptor)

    def _told(self, mapped: Mapping[FileNumbers, Sequence[Mapper]]) -> Iterator[Library]:
        pids: dict[FileNumbers, set[int]] = {}
        for file, kept in self._kept.items():
            pids.setdefault(kept.numbers, set()).update(each.pid for each in mapped.get(file, ()))
        for kept in self._each():
            yield replace(kept.library, pids=tuple(sorted(pids[kept.numbers])))

    def _problems(self, mapped: Mapping[FileNumbers, Sequence[Mapper]]) -> Iterator[str]:
        hidden = self._mappers.hidden
        if hidden:
            whose = f"PID {hidden[0]}" + (f" and {len(hidden) - 1} more" if len(hidden) > 1 else "")
            yield f"which libcuda {whose} use may not be seen; it takes CAP_SYS_PTRACE"
        for file, refused in islice(self._refused.items(), _MOST_TOLD):
            mapper = mapped[file][0]
            yield f"{printable(mapper.file.path, LONGEST_PROBLEM)} of PID {mapper.pid} is not watched: {refused.why}"
        if len(self._refused) > _MOST_TOLD:
            yield f"{len(self._refused) - _MOST_TOLD} more libcudas are not watched"
