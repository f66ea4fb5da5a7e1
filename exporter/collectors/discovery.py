"""Discovery of control daemons: running processes, units, known directories."""

import itertools
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors.control_daemons import ControlDaemon, ControlDaemons
from exporter.collectors.pid_files import owned, pid_in
from exporter.collectors.pid_namespace import PidNamespace
from exporter.collectors.pipe_dir import DaemonLocation, Directory, Identity, Root, on_host, others_can_be_reached
from exporter.collectors.proc import Proc
from exporter.collectors.thread import Reading
from exporter.model.daemon import FORGOTTEN_SECONDS, NamedBy
from exporter.model.observation import DaemonFound
from exporter.model.problem import Problem, ProblemCode, joined
from exporter.model.settings import DEFAULT_LOG_DIRECTORY, DEFAULT_PIPE_DIRECTORY, LOG_DIRECTORY, PIPE_DIRECTORY
from exporter.parse.cgroup import parse_cgroup

MOST_OF_ONE_PATTERN = 256
MOST_DECLARED = 64
STARTED = ".started"
LONGEST_NAME = 110
"""With the `@` and the container after it, a name is no longer than a label is shown (128).

No daemon's socket has a path of more than 107 bytes (unix(7))."""

LONGEST_PATH = 256


def named_by(patterns: Sequence[str]) -> Iterator[DaemonLocation]:
    """The directories with a control socket that these absolute globs name. /tmp is everybody's: links are not."""
    return (_location(path) for path in _matches(patterns) if _is_pipe_directory(path))


def declared_by_device_plugin(patterns: Sequence[str]) -> Sequence[DaemonLocation]:
    """Return the places in which NVIDIA's device plugin for Kubernetes has started a daemon and has not stopped it.

    The plugin makes the file `.started` beside the pipe directory of a resource after it started the daemon, and
    removes it after it stopped the daemon (cmd/mps-control-daemon/mps of k8s-device-plugin, 0.15 and later). Only root
    and the exporter's own user can declare a daemon so.
    """
    declared = (_location(path) for path in _matches(patterns) if path.name == "pipe" and _is_started(path.parent))
    return tuple(itertools.islice(declared, MOST_DECLARED))


def _matches(patterns: Sequence[str]) -> Iterator[Path]:
    for pattern in patterns:
        paths = Path("/").glob(pattern.lstrip("/"))
        for path in sorted(itertools.islice(paths, MOST_OF_ONE_PATTERN)):
            if is_nameable(str(path)):
                yield path


def _location(path: Path) -> DaemonLocation:
    return on_host(str(path), path, _log_directory_beside(path))


def is_nameable(path: str) -> bool:
    """Whether a path can be a daemon's name."""
    return len(path) <= LONGEST_NAME and is_path(path)


def is_path(path: str) -> bool:
    """Whether a path can be opened and shown."""
    return path.startswith("/") and len(path) <= LONGEST_PATH and path.isprintable()


def _is_pipe_directory(path: Path) -> bool:
    try:
        return not path.is_symlink() and (path / "control").is_socket()
    except OSError:
        return False


def _is_started(resource: Path) -> bool:
    try:
        found = (resource / STARTED).lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid in (0, os.geteuid())


def _log_directory_beside(pipe: Path) -> Path:
    """Where the logs are likely to be, until a daemon's own word is known (as in the Kubernetes device plugin)."""
    return pipe.with_name("log") if pipe.name == "pipe" else Path(DEFAULT_LOG_DIRECTORY)


MOST_DAEMONS = 64
"""How many daemons of ordinary users and of containers are found in all."""

MOST_OF_A_USER = 16
"""How many of them are found for one user, or for one container or pod in which they run as root."""

MOST_OF_THE_HOST = 64
"""How many more, where root started them on the host; anybody may be root in a container."""

MOST_NAMED = 3
"""How many owners a report names."""

MOST_LOOKED_AT = 256
"""Of how many daemons of one user or container the directory is looked at."""

INIT_PID = 1

_CONTAINER = re.compile(r"(?<![0-9a-f])([0-9a-f]{12})[0-9a-f]{52}(?![0-9a-f])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A daemon that is found, and is followed if there is room.

    `owner` is who started it. `since` is when it was first found, on the monotonic clock. An `expected` daemon always
    gets room. Daemons of `host` are those that root started outside of containers.
    """

    name: str
    owner: str
    since: float
    expected: bool = False
    host: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How many daemons get room: of one owner, of all owners together, and of the host's root beside these."""

    of_one: int
    of_all: int
    of_host: int

    def admitted(self, candidates: Iterable[Candidate]) -> frozenset[str]:
        """Return the names of the daemons that get room.

        The first daemon of each owner comes before the second one of any, and so on. Of one owner, the daemon that was
        found first comes first. So whoever starts more daemons displaces only daemons of their own.
        """
        candidates = sorted(candidates, key=lambda each: each.since)
        host = [each.name for each in candidates if each.host and not each.expected]
        ranked = sorted(_ranked(candidates), key=lambda each: each[0])
        shared = [name for rank, name in ranked if rank < self.of_one]
        expected = (each.name for each in candidates if each.expected)
        return frozenset((*expected, *host[: self.of_host], *shared[: self.of_all]))

    def problem(self, refused: Iterable[Candidate]) -> Problem | None:
        """Return who started too many daemons. It changes with the owners, not with each daemon."""
        owners = sorted({each.owner for each in refused})
        if not owners:
            return None
        named = ", ".join(owners[:MOST_NAMED]) + (", ..." if len(owners) > MOST_NAMED else "")
        return Problem(code=ProblemCode.TOO_MANY_DAEMONS, detail=named, limits=(self.of_one, self.of_all))


def _ranked(candidates: Iterable[Candidate]) -> Iterator[tuple[int, str]]:
    before: Counter[str] = Counter()
    for each in candidates:
        if not each.expected and not each.host:
            yield before[each.owner], each.name
            before[each.owner] += 1


@dataclass(frozen=True, slots=True)
class _Finding:
    """A place where a daemon was last seen to run at `at`, on the monotonic clock."""

    location: DaemonLocation
    at: float
    candidate: Candidate


class Discovery:
    """Keeps the places of all daemons: those that were given, and those found."""

    def __init__(
        self,
        given: Sequence[DaemonLocation] = (),
        *,
        patterns: Sequence[str],
        anywhere: bool = True,
        proc: Path,
        clock: Clock,
    ) -> None:
        """`patterns` are absolute globs of pipe directories; unless `anywhere`, daemons are found in these alone."""
        self._given = {location.name: location for location in given}
        self._patterns = patterns
        self._anywhere = anywhere
        self._proc = Proc(proc, clock)
        self._daemons = ControlDaemons(self._proc)
        self._clock = clock
        self._found: dict[str, _Finding] = {}
        self._met: set[tuple[int, int]] = set()
        self._told: Mapping[str, DaemonLocation] = {}
        self._declared: Mapping[str, DaemonFound] = {}
        self.locations: Mapping[str, DaemonLocation] = dict(self._given)
        """Where each daemon is, by its name: replaced as a whole, so that any thread may take it."""

    def set_named(self, locations: Sequence[DaemonLocation]) -> None:
        """Say which places have names already, from the next look on."""
        self._given = {location.name: location for location in locations}

    def collect(self) -> Reading:
        """The places that are new, or others than they were."""
        problems: list[Problem | None] = []
        now = self._clock.monotonic()
        self._found = {name: each for name, each in self._found.items() if self._still_stands(each, now)}
        known = self._known_directories()
        daemons = self._daemons.all()
        running: dict[str, tuple[DaemonLocation, ControlDaemon, Candidate]] = {}
        looked_at: Counter[str] = Counter()
        for daemon in sorted(daemons, key=lambda each: each.facts.uid != 0):
            owner = _owner(daemon)
            looked_at[owner] += 1
            if looked_at[owner] > MOST_LOOKED_AT:
                continue
            location = self._place_of(daemon, known, daemons)
            if location is not None:
                running.setdefault(
                    location.name, (location, daemon, self._candidate(location.name, owner, daemon, now))
                )
            elif daemon.environment is None:
                problems.append(Problem(code=ProblemCode.PROCESS_NOT_READABLE, pid=daemon.pid))
            elif not others_can_be_reached():
                problems.append(Problem(code=ProblemCode.NOT_SUPPORTED, subject="openat2(2)", pid=daemon.pid))
        shares = Shares(of_one=MOST_OF_A_USER, of_all=MOST_DAEMONS, of_host=MOST_OF_THE_HOST)
        gone = (each.candidate for name, each in self._found.items() if name not in running)
        admitted = shares.admitted((*gone, *(candidate for _, _, candidate in running.values())))
        self._found = {name: each for name, each in self._found.items() if name in admitted}
        for name, (location, daemon, candidate) in running.items():
            if name in admitted:
                self._found[name] = _Finding(self._settled(location, daemon), now, candidate)
        problems.append(
            shares.problem(candidate for name, (_, _, candidate) in running.items() if name not in admitted)
        )
        self._met = {daemon.identity for daemon in daemons}
        self.locations = {**self._given, **{name: each.location for name, each in self._found.items()}}
        return Reading((*self._news(), *self._declarations()), joined(problems))

    def _still_stands(self, finding: _Finding, now: float) -> bool:
        """Whether it is not too long ago, and the name not given to another directory since."""
        given = self._given.get(finding.location.name, finding.location)
        return now - finding.at <= FORGOTTEN_SECONDS and given.pipe.path == finding.location.pipe.path

    def _candidate(self, name: str, owner: str, daemon: ControlDaemon, now: float) -> Candidate:
        before = self._found.get(name)
        return Candidate(
            name=name,
            owner=owner,
            since=now if before is None else before.candidate.since,
            expected=name in self._given,
            host=self._is_the_hosts(daemon),
        )

    def _is_the_hosts(self, daemon: ControlDaemon) -> bool:
        """Whether root started it, and in no container."""
        if daemon.facts.uid != 0 or daemon.depth != 1:
            return False
        mounts = self._proc.namespace(daemon.pid, "mnt")
        host = self._proc.namespace(INIT_PID, "mnt") or self._proc.namespace(os.getpid(), "mnt")
        return mounts is not None and mounts == host

    def _news(self) -> Iterator[DaemonFound]:
        """Places that are new, or others; and a place's new daemon: the old one may be forgotten by now."""
        before, self._told = self._told, self.locations
        for name, location in self.locations.items():
            known = before.get(name)
            if known is None or known.process != location.process or _told(known) != _told(location):
                yield replace(_told(location), at=self._clock.now())

    def _declarations(self) -> Iterator[DaemonFound]:
        """Yield the daemons that the node's device plugin no longer declares, then all that it declares."""
        declared = {location.name: _told(location) for location in declared_by_device_plugin(self._patterns)}
        withdrawn = {name: found for name, found in self._declared.items() if name not in declared}
        self._declared, now = declared, self._clock.now()
        for expected, found in ((False, withdrawn), (True, declared)):
            yield from (replace(each, at=now, expected=expected, by=NamedBy.DEVICE_PLUGIN) for each in found.values())

    def _known_directories(self) -> Mapping[Identity, DaemonLocation]:
        """Those that were given, that were found on this host before, and that a pattern names, in this order."""
        before = (each.location for each in self._found.values() if each.location.pipe.root is None)
        known: dict[Identity, DaemonLocation] = {}
        for location in (*self._given.values(), *before, *named_by(self._patterns)):
            identity = location.pipe.identity()
            if identity is not None:
                known.setdefault(identity, location)
        return known

    def _place_of(
        self, daemon: ControlDaemon, known: Mapping[Identity, DaemonLocation], daemons: Sequence[ControlDaemon]
    ) -> DaemonLocation | None:
        """Where a daemon is; None where that cannot be seen, or is not its own."""
        if daemon.environment is None:
            return _by_pid_file(daemon, known.values(), daemons)
        path = daemon.environment.get(PIPE_DIRECTORY) or DEFAULT_PIPE_DIRECTORY
        logs = daemon.environment.get(LOG_DIRECTORY) or DEFAULT_LOG_DIRECTORY
        if not is_nameable(path) or not is_path(logs):
            return None
        root = Root(self._proc, *daemon.identity)
        pipe = Directory(Path(path), root)
        identity = pipe.identity()
        if identity is None:
            return _by_pid_file(daemon, known.values(), daemons)
        if not self._is_of(daemon, pipe):
            return None
        # Without a look at the directory: it may hang, and the finder looks for the daemons of everybody.
        log = Directory(Path(logs), None if self._is_ours(root) else root)
        if identity in known:
            location = known[identity]
            return location if location.name in self._given else replace(location, log=log)
        if not self._anywhere:
            return None
        pipe = self._nearest(pipe)
        name = path if pipe.root is None else f"{path}@{self._where(daemon)}"
        return DaemonLocation(name=name, pipe=pipe, log=log)

    def _is_of(self, daemon: ControlDaemon, pipe: Directory) -> bool:
        """Whether it is the daemon of this directory: as its pid file says, or it still is there at the next look.

        Who starts a daemon in the background (`-d`) looks like it, for a moment.
        """
        met = daemon.identity in self._met or pid_in(pipe) == daemon.own_pid
        return met and owned(pipe, [daemon]) is not None

    def _nearest(self, directory: Directory) -> Directory:
        """The same directory by the same path on the host, where that is so."""
        here = Directory(directory.path)
        identity = directory.identity()
        if identity is None:
            return here if directory.root is not None and self._is_ours(directory.root) else directory
        return here if here.identity() == identity else directory

    def _is_ours(self, root: Root) -> bool:
        """Whether every path means the same to that process."""
        mounts = self._proc.namespace(root.pid, "mnt")
        same_root = Directory(Path("/"), root).identity() == Directory(Path("/")).identity()
        return same_root and mounts is not None and mounts == self._proc.namespace(os.getpid(), "mnt")

    def _where(self, daemon: ControlDaemon) -> str:
        """What tells a place from the same path elsewhere, and outlives the daemon: its container, else namespace."""
        container = _CONTAINER.search(daemon.facts.cgroup or "")
        return container[1] if container else str(self._proc.namespace(daemon.pid, "mnt") or daemon.pid)

    def _settled(self, location: DaemonLocation, daemon: ControlDaemon) -> DaemonLocation:
        """The place with its daemon; whose namespace is kept while it is the same, with all that it remembers."""
        before = self.locations.get(location.name, location).namespace
        if daemon.depth < 2:
            namespace = None
        elif before is not None and before.is_of(daemon.pid):
            namespace = before
        else:
            namespace = PidNamespace(self._proc, daemon.pid, self._clock)
        return replace(location, process=daemon.identity, namespace=namespace)


def _by_pid_file(
    daemon: ControlDaemon, locations: Iterable[DaemonLocation], daemons: Sequence[ControlDaemon]
) -> DaemonLocation | None:
    """The one directory whose pid file names a daemon that cannot be looked into, and no other daemon."""
    named = [location for location in locations if pid_in(location.pipe) == daemon.own_pid]
    alike = [each for each in daemons if each.own_pid == daemon.own_pid]
    mine = [location for location in named if owned(location.pipe, alike) == daemon]
    return mine[0] if len(mine) == 1 else None


def _owner(daemon: ControlDaemon) -> str:
    """Whose share a daemon takes. Root in a container is whoever started the container."""
    uid = daemon.facts.uid
    whose = parse_cgroup(daemon.facts.cgroup or "")
    if uid == 0 and (whose.pod_uid or whose.container):
        return f"pod {whose.pod_uid}" if whose.pod_uid else f"container {whose.container}"
    return f"UID {uid}"


def _told(location: DaemonLocation) -> DaemonFound:
    return DaemonFound(
        at=0.0,
        daemon=location.name,
        pipe_directory=str(location.pipe.path),
        log_directory=str(location.log.path),
        by=NamedBy.DISCOVERED,
    )
