"""Discovery of control daemons: running processes, known directories, and those that the node declares."""

import contextlib
import itertools
import json
import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors import pipe_dir
from exporter.collectors.daemon_processes import ControlDaemon, ControlDaemons, has_bound, may_run, socket_owner
from exporter.collectors.pipe_dir import DaemonLocation, Directory, Identity, Root
from exporter.collectors.proc import Presence, Proc
from exporter.collectors.thread import BoundedCalls, Reading
from exporter.model.daemon import FORGOTTEN_SECONDS, NamedBy
from exporter.model.observation import DaemonFound
from exporter.model.reason import Reason, ReasonCode, joined, of_error
from exporter.model.settings import DEFAULT_LOG_DIRECTORY, DEFAULT_PIPE_DIRECTORY, LOG_DIRECTORY, PIPE_DIRECTORY
from exporter.model.values import frozen
from exporter.parse.cgroup import is_claim_directory, parse_cgroup
from exporter.parse.proc import boot_time

# -- Daemons that the node declares: by NVIDIA's device plugin or DRA driver for Kubernetes, or by GKE -----------------
# A declared daemon must run: if it is down, an alert fires. No access to the Kubernetes API is needed.

MOST_DECLARED = 64

STARTED = ".started"
"""NVIDIA's device plugin creates this file beside the pipe directory after it started the daemon, and removes it after
it stopped the daemon (cmd/mps-control-daemon/mps of k8s-device-plugin, 0.15 to 0.20). If the daemon had died before,
the plugin cannot stop it and leaves the file."""

READY = ".ready"
"""The plugin creates this file in its root directory after it started all daemons, and removes it before it stops them.
If it cannot start one, it tries again every 30 s, without the file (startDaemons and stopDaemons in main.go)."""

PLUGIN_STATUS = "Name:\tmps-control-dae\n", "\nUid:\t0\t"
"""What /proc/PID/status of the plugin begins with, and contains."""

STARTUP_LOG = Path("log") / "startup.log"
"""The pod of NVIDIA's DRA driver removes this file when it starts, and creates it after it started the daemon. The
directory of a claim is older, and ends with the claim (mps-control-daemon.tmpl.yaml and sharing.go, 0.4 and 0.5)."""

_MAX_CONFIG = 1 << 16

Declared = Mapping[str, tuple[NamedBy, DaemonLocation]]


class Declarations:
    """What the node declares now. Files of other users than root and the exporter's declare nothing."""

    def __init__(
        self, matches: Callable[[], Iterable[DaemonLocation]], *, proc: Proc, stat_file: Path, gke_config: Path
    ) -> None:
        """`matches` returns possible pipe directories. `stat_file` is /proc/stat; `gke_config` that of GKE's plugin."""
        self._matches = matches
        self._gke_config = gke_config
        self._proc = proc
        self._booted_at = 0.0
        with contextlib.suppress(OSError):
            self._booted_at = boot_time(_text(stat_file) or "") or 0.0
        self._declared: Declared = {}
        self._is_plugin_found = cache(self._find_plugin)  # one search of /proc for each reading

    def read(self) -> tuple[Declared, Declared]:
        """Return the declared daemons by name, and those that are no longer declared. Raises OSError."""
        self._is_plugin_found.cache_clear()
        found = {location.name: (by, location) for by, location in itertools.islice(self._found(), MOST_DECLARED)}
        # A search of patterns skips what it cannot read.
        missing = {name: declared for name, declared in self._declared.items() if name not in found}
        found |= {name: declared for name, declared in missing.items() if self._still_declared(*declared)}
        withdrawn = {name: declared for name, declared in missing.items() if name not in found}
        self._declared = found
        return found, withdrawn

    def _found(self) -> Iterator[tuple[NamedBy, DaemonLocation]]:
        for location in self._matches():
            pipe = location.pipe.path
            if pipe.name == "pipe" and self._does_plugin_run(pipe):
                yield NamedBy.DEVICE_PLUGIN, location
            elif is_claim_directory(str(pipe)):
                # A new container of the pod removes the file. If it then fails, the daemon must still run.
                declared = location.name in self._declared
                if declared or (_time_of(pipe.parent / STARTUP_LOG) or -1.0) >= self._booted_at:
                    yield NamedBy.DRA, location
        # GKE's device plugin that shares GPUs with MPS does not start without a daemon (pkg/gpu/nvidia/manager.go of
        # container-engine-accelerators).
        configuration: object = None
        with contextlib.suppress(ValueError, RecursionError):
            configuration = json.loads(_text(self._gke_config) or "{}")
        match configuration:
            case {"GPUSharingConfig": {"GPUSharingStrategy": "mps"}}:
                pipe = Path(DEFAULT_PIPE_DIRECTORY)
                yield NamedBy.GKE, pipe_dir.on_host(str(pipe), pipe, Path(DEFAULT_LOG_DIRECTORY))

    def _still_declared(self, by: NamedBy, location: DaemonLocation) -> bool:
        pipe = location.pipe.path
        if by is NamedBy.DEVICE_PLUGIN:
            return self._does_plugin_run(pipe)
        try:
            return by is NamedBy.DRA and stat.S_ISDIR(pipe.lstat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _does_plugin_run(self, pipe: Path) -> bool:
        """Return whether the plugin runs the daemon of a directory `ROOT/[VENDOR/]RESOURCE/pipe`. Raises OSError."""
        if _time_of(pipe.with_name(STARTED)) is None:
            return False
        ready = any(_time_of(root / READY) is not None for root in pipe.parents[1:3])
        return ready or self._is_plugin_found()

    def _find_plugin(self) -> bool:
        """Return whether the plugin runs. Raises OSError if that is not certain."""
        begin, user = PLUGIN_STATUS
        statuses = (self._proc.certain_text(pid, "status") for pid in self._proc.pids())
        return any(status.startswith(begin) and user in status for status in statuses)


def _time_of(path: Path) -> float | None:
    """Return when a regular file of root or the exporter's user was written; None if there is none. Raises OSError."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_mtime if stat.S_ISREG(found.st_mode) and found.st_uid in (0, os.geteuid()) else None


def _text(path: Path) -> str | None:
    try:
        with path.open(errors="replace") as file:
            return file.read(_MAX_CONFIG)
    except (FileNotFoundError, NotADirectoryError):
        return None


# -- Discovery ---------------------------------------------------------------------------------------------------------

MOST_OF_ONE_PATTERN = 256
LONGEST_NAME = 110
"""With `@` and a container after it, a name is at most as long as a label may be (128).

The path of a daemon's socket has at most 107 bytes (unix(7))."""

LONGEST_PATH = 256


def is_nameable(path: str) -> bool:
    """Return whether a path can be a daemon's name."""
    return len(path) <= LONGEST_NAME and is_path(path)


def is_path(path: str) -> bool:
    """Return whether a path can be opened and shown."""
    return path.startswith("/") and len(path) <= LONGEST_PATH and path.isprintable()


def _matches(patterns: Sequence[str]) -> Iterator[DaemonLocation]:
    for pattern in patterns:
        paths = Path("/").glob(pattern.lstrip("/"))
        for path in sorted(itertools.islice(paths, MOST_OF_ONE_PATTERN)):
            if is_nameable(str(path)):
                # The likely log directory until the daemon's environment is read (as in the Kubernetes device plugin).
                logs = path.with_name("log") if path.name == "pipe" else Path(DEFAULT_LOG_DIRECTORY)
                yield pipe_dir.on_host(str(path), path, logs)


MOST_DAEMONS = 64  # how many daemons of ordinary users and of containers are followed

MOST_OF_A_USER = 16
"""How many of these are followed for one owner: a user with all subordinate UIDs, a container or a pod."""

MOST_OF_THE_HOST = 64
"""How many more are followed if root started them on the host. Any user can be root in a container."""

MOST_NAMED = 3  # how many owners a report names
MOST_EXAMINED = 256  # how many daemons of one owner have their directory examined

FIRST_SUBORDINATE_UID, SUBORDINATE_UIDS = 100_000, 65_536
"""What a user has if nothing else is configured (SUB_UID_MIN and SUB_UID_COUNT of login.defs(5))."""

INIT_PID = 1

_CONTAINER = re.compile(r"([0-9a-f]{12})[0-9a-f]{52}")


@frozen
class Candidate:
    """A location with a daemon that is followed if there is room.

    `owner` is who started it, and `group` who may be the same as other owners. Times are on the monotonic clock. An
    `expected` daemon always has room. Daemons of the `host` are those that root started outside of containers.
    """

    location: DaemonLocation
    owner: str
    group: str | None = None
    found_at: float
    seen_at: float
    expected: bool = False
    host: bool = False


def admit(candidates: Iterable[Candidate]) -> frozenset[str]:
    """Return the names of the daemons that have room.

    The first daemon of each group of owners comes before the second one of any, and so on. In a group, the same holds
    for its owners. The daemons of one owner are in the order in which they were found. So a user who starts more
    daemons displaces only daemons of the same user, also with several UIDs.
    """
    candidates = sorted(candidates, key=lambda candidate: candidate.found_at)
    expected = [candidate.location.name for candidate in candidates if candidate.expected]
    host = [candidate.location.name for candidate in candidates if candidate.host and not candidate.expected]
    others = [candidate for candidate in candidates if not candidate.expected and not candidate.host]
    by_owner = _ranked(others, lambda candidate: candidate.owner)
    fair = [candidate for rank, candidate in by_owner if rank < MOST_OF_A_USER]
    by_group = _ranked(fair, lambda candidate: candidate.group or candidate.owner)
    shared = [candidate.location.name for _, candidate in by_group]
    return frozenset((*expected, *host[:MOST_OF_THE_HOST], *shared[:MOST_DAEMONS]))


def _ranked(candidates: Iterable[Candidate], key: Callable[[Candidate], str]) -> list[tuple[int, Candidate]]:
    """Return each candidate with its place among those of the same key, the first ones first."""
    counts: dict[str, Iterator[int]] = defaultdict(itertools.count)
    ranked = [(next(counts[key(candidate)]), candidate) for candidate in candidates]
    return sorted(ranked, key=lambda pair: pair[0])


def too_many(refused: Iterable[Candidate]) -> Reason | None:
    """Return who started too many daemons. The text changes with the owners, not with each daemon."""
    owners = sorted({candidate.owner for candidate in refused})
    if not owners:
        return None
    named = ", ".join(owners[:MOST_NAMED]) + (", ..." if len(owners) > MOST_NAMED else "")
    return Reason(ReasonCode.TOO_MANY_DAEMONS, detail=named, limits=(MOST_OF_A_USER, MOST_DAEMONS))


class Discovery:
    """Finds the locations of daemons, and follows those of named ones."""

    def __init__(
        self, *, patterns: Sequence[str], proc: Path, clock: Clock, gke_config: Path = Path("/nowhere")
    ) -> None:
        """`patterns` are absolute globs of pipe directories."""
        self._patterns = patterns
        self._proc = Proc(proc, clock)
        self._daemons = ControlDaemons(self._proc)
        self._clock = clock
        self.named: Mapping[str, DaemonLocation] = {}
        """The locations that have names already. It is replaced as a whole."""
        self._found: dict[str, Candidate] = {}
        self._examined: set[tuple[int, int]] = set()
        self._reported: Mapping[str, DaemonLocation] = {}
        self._calls = BoundedCalls()
        self._matching: tuple[DaemonLocation, ...] = ()
        self._declarations = Declarations(
            lambda: _matches(patterns), proc=self._proc, stat_file=proc / "stat", gke_config=gke_config
        )
        self.locations: Mapping[str, DaemonLocation] = {}
        """By daemon name. It is replaced as a whole, so any thread may read it."""

    def collect(self) -> Reading:
        """Return the locations that are new or changed, and those that the node declares."""
        now = self._clock.monotonic()
        self._found = {name: candidate for name, candidate in self._found.items() if self._is_current(candidate, now)}
        try:
            daemons = self._daemons.all()
        except OSError as error:
            return Reading(problem=of_error("/proc", error))
        running, problems = self._running(daemons, now)
        candidates = self._found | {name: candidate for name, (candidate, _) in running.items()}
        admitted = admit(candidates.values())
        self._found = {name: candidate for name, candidate in candidates.items() if name in admitted}
        for name in running.keys() & admitted:
            candidate, daemon = running[name]
            self._found[name] = replace(candidate, location=self._with_process(candidate.location, daemon))
        problems.append(too_many(candidate for name, (candidate, _) in running.items() if name not in admitted))
        self._examined = {daemon.identity for daemon in daemons}
        self.locations = {**self.named, **{name: candidate.location for name, candidate in self._found.items()}}
        # The reducer may have forgotten the old daemon of a location.
        before, self._reported = self._reported, self.locations
        found = [
            _observation(location, self._clock.now())
            for name, location in self.locations.items()
            if name not in before or _key(before[name]) != _key(location)
        ]
        try:
            found += self._calls.call("declared", self._declared, ())
        except OSError as error:
            problems.append(of_error(error.filename, error))
        if self._calls.hanging:
            problems.append(Reason(ReasonCode.DIRECTORY_HANGS))
        return Reading(tuple(found), joined(problems))

    def _is_current(self, found: Candidate, now: float) -> bool:
        """Return whether a daemon ran there recently, or may run there now, and no other directory has its name."""
        named, process = self.named.get(found.location.name, found.location), found.location.process
        unknown = process is not None and self._proc.presence(*process) is Presence.UNKNOWN
        recent = unknown or now - found.seen_at <= FORGOTTEN_SECONDS
        return recent and named.pipe.path == found.location.pipe.path

    def _running(
        self, daemons: Sequence[ControlDaemon], now: float
    ) -> tuple[dict[str, tuple[Candidate, ControlDaemon]], list[Reason | None]]:
        """Return the daemons with a known location, root's first, and why others have none."""
        known = self._known_directories()
        problems: list[Reason | None] = []
        running: dict[str, tuple[Candidate, ControlDaemon]] = {}
        counts: Counter[str] = Counter()
        subordinate = _subordinate_uids(Path("/etc/subuid"))
        for daemon in sorted(daemons, key=lambda daemon: daemon.facts.uid != 0):
            owner, group = _owner(daemon, self._proc.user_namespace_owner(daemon.pid), subordinate)
            counts[owner] += 1
            if counts[owner] > MOST_EXAMINED:
                continue
            try:
                location = self._calls.call(
                    daemon.identity, partial(self._location_of, daemon, known, daemons), None, owner=owner
                )
            except OSError as error:
                problems.append(of_error(f"pipe directory of process {daemon.pid}", error))
                continue
            if location is not None:
                before = self._found.get(location.name)
                mounts = self._proc.namespace(daemon.pid, "mnt")
                host = self._proc.namespace(INIT_PID, "mnt") or self._proc.namespace(os.getpid(), "mnt")
                # Root started it outside of containers.
                of_host = daemon.facts.uid == 0 and daemon.depth == 1 and mounts is not None and mounts == host
                candidate = Candidate(
                    location=location,
                    owner=owner,
                    group=group,
                    found_at=now if before is None else before.found_at,
                    seen_at=now,
                    expected=location.name in self.named,
                    host=of_host,
                )
                running.setdefault(location.name, (candidate, daemon))
            elif daemon.environment is None:
                problems.append(Reason(ReasonCode.PROCESS_NOT_READABLE, pid=daemon.pid))
            elif not pipe_dir.can_open_below_roots():
                problems.append(Reason(ReasonCode.NOT_SUPPORTED, subject="openat2(2)", pid=daemon.pid))
        return running, problems

    def _declared(self) -> tuple[DaemonFound, ...]:
        """Return the daemons that the node no longer declares, then all that it declares."""
        declared, withdrawn = self._declarations.read()
        at = self._clock.now()
        return tuple(
            replace(_observation(location, at), expected=expected, by=by)
            for expected, daemons in ((False, withdrawn), (True, declared))
            for by, location in daemons.values()
        )

    def _known_directories(self) -> Mapping[Identity, DaemonLocation]:
        """Return the named locations, those found on this host before, and matches of a pattern; the first wins."""
        before = (candidate.location for candidate in self._found.values() if candidate.location.pipe.root is None)
        self._matching = self._calls.call("matches", self._matches, self._matching)
        known: dict[Identity, DaemonLocation] = {}
        for location in (*self.named.values(), *before, *self._matching):
            identity = self._calls.call(str(location.pipe), location.pipe.identity, None)
            if identity is not None:
                known.setdefault(identity, location)
        return known

    def _matches(self) -> tuple[DaemonLocation, ...]:
        """Return the directories with a control socket. Any user can create links in /tmp."""
        matching: list[DaemonLocation] = []
        for location in _matches(self._patterns):
            path = location.pipe.path
            with contextlib.suppress(OSError):
                if not path.is_symlink() and (path / pipe_dir.CONTROL_SOCKET).is_socket():
                    matching.append(location)
        return tuple(matching)

    def _location_of(
        self, daemon: ControlDaemon, known: Mapping[Identity, DaemonLocation], daemons: Sequence[ControlDaemon]
    ) -> DaemonLocation | None:
        """Return where a daemon is; None if that cannot be read, or is the directory of another daemon."""
        if daemon.environment is None:
            return self._by_pid_file(daemon, known.values(), daemons)
        path = daemon.environment.get(PIPE_DIRECTORY) or DEFAULT_PIPE_DIRECTORY
        logs = daemon.environment.get(LOG_DIRECTORY) or DEFAULT_LOG_DIRECTORY
        if not is_nameable(path) or not is_path(logs):
            return None
        root = Root(self._proc, *daemon.identity)
        pipe = Directory(Path(path), root)
        try:
            files = pipe.files()
        except OSError:
            if pipe_dir.can_open_below_roots():
                raise
            return self._by_pid_file(daemon, known.values(), daemons)
        identity = None
        if files is None or pipe_dir.PRIVILEGED_SOCKET not in files.owners:
            is_its_own = has_bound(self._proc, daemon.pid, path)  # It was removed, with or without the directory.
        else:
            is_its_own, identity = socket_owner(files, [daemon]) is not None, files.identity
        # For a moment, the process that starts a daemon in the background (`-d`) looks like the daemon.
        confirmed = daemon.identity in self._examined or (files is not None and files.pid == daemon.own_pid)
        if not confirmed or not is_its_own:
            return self._by_pid_file(daemon, known.values(), daemons) if files is None else None
        # The log directory is not opened here: it may hang, and this thread finds the daemons of all users.
        mounts = self._proc.namespace(root.pid, "mnt")
        same_root = Directory(Path("/"), root).identity() == Directory(Path("/")).identity()
        same_paths = same_root and mounts is not None and mounts == self._proc.namespace(os.getpid(), "mnt")
        log = Directory(Path(logs), None if same_paths else root)
        of_path = (location for location in self.named.values() if same_paths and location.pipe.path == pipe.path)
        location = next(of_path, None) if identity is None else known.get(identity)
        if location is not None and identity is None and not may_run(location, daemon.facts.uid):
            return None  # Any user can listen at this path, in another mount namespace.
        if location is not None:
            return location if location.name in self.named else replace(location, log=log)
        if same_paths if identity is None else Directory(pipe.path).identity() == identity:
            return DaemonLocation(name=str(pipe.path), pipe=Directory(pipe.path), log=log)
        # Equal paths are distinguished by what outlives the daemon: its container, or its mount namespace.
        container = _CONTAINER.fullmatch(parse_cgroup(daemon.facts.cgroup or "").container or "")
        place = container[1] if container else self._proc.namespace(daemon.pid, "mnt") or daemon.pid
        return DaemonLocation(name=f"{pipe.path}@{place}", pipe=pipe, log=log)

    def _by_pid_file(
        self, daemon: ControlDaemon, locations: Iterable[DaemonLocation], daemons: Sequence[ControlDaemon]
    ) -> DaemonLocation | None:
        """Return the only location with a pid file that names a daemon with an unreadable environment, and no other."""
        same_pid = [other for other in daemons if other.own_pid == daemon.own_pid]
        matching: list[DaemonLocation] = []
        for location in locations:
            files: pipe_dir.PipeFiles | None = self._calls.call(
                ("files", str(location.pipe)), location.pipe.files, None
            )
            if files is not None and files.pid == daemon.own_pid and socket_owner(files, same_pid) == daemon:
                matching.append(location)
        return matching[0] if len(matching) == 1 else None

    def _with_process(self, location: DaemonLocation, daemon: ControlDaemon) -> DaemonLocation:
        """Return the location with its daemon. A PID namespace that it had before keeps what it remembers."""
        namespace = self.locations.get(location.name, location).namespace
        if daemon.depth < 2:
            namespace = None
        elif namespace is None or not namespace.contains(daemon.pid):
            namespace = pipe_dir.PidNamespace(self._proc, daemon.pid, self._clock)
        return replace(location, process=daemon.identity, namespace=namespace)


def _owner(
    daemon: ControlDaemon, namespace_owner: int | None, subordinate: Mapping[range, str]
) -> tuple[str, str | None]:
    """Return whose share a daemon uses, and the group of UIDs that may be one user's.

    A user chooses among many UIDs in a container or a user namespace, and elsewhere with a setuid program made there.
    """
    facts = daemon.facts
    cgroup = parse_cgroup(facts.cgroup or "")
    if cgroup.pod_uid or cgroup.container:
        return f"pod {cgroup.pod_uid}" if cgroup.pod_uid else f"container {cgroup.container}", None
    uid = namespace_owner or facts.uid
    user = next((user for uids, user in subordinate.items() if uid in uids), None)
    if user is not None:
        return f"subordinate UIDs of {user}", None
    # Names are unknown in a container. So users without a name compete as a group, but have their own shares.
    if uid is None or uid < FIRST_SUBORDINATE_UID or (uid == facts.uid and facts.user != str(uid)):
        return f"UID {uid}", None
    return f"UID {uid}", f"block {(uid - FIRST_SUBORDINATE_UID) // SUBORDINATE_UIDS} of subordinate UIDs"


def _subordinate_uids(path: Path) -> Mapping[range, str]:
    try:
        lines = [line.split(":") for line in path.read_text(errors="replace").splitlines()]
    except OSError:
        return {}
    users: dict[range, str] = {}
    for line in lines:
        match line:
            case [user, start, count] if all(word.isdecimal() and len(word) < 11 for word in (start, count)):
                users[range(int(start), int(start) + int(count))] = user
    return users


def _key(location: DaemonLocation) -> tuple[tuple[int, int] | None, Path, Path]:
    return location.process, location.pipe.path, location.log.path


def _observation(location: DaemonLocation, at: float) -> DaemonFound:
    pipe_directory, log_directory = str(location.pipe.path), str(location.log.path)
    return DaemonFound(
        at=at, daemon=location.name, pipe_directory=pipe_directory, log_directory=log_directory, by=NamedBy.DISCOVERED
    )
