"""The process of each daemon: among the running processes, and from its pid file. The users who may run it."""

import contextlib
import errno
import os
import re
import stat
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from exporter.clock import Clock
from exporter.collectors import pipe_dir
from exporter.collectors.pipe_dir import DaemonLocation, Directory, Identity, PipeFiles, Root
from exporter.collectors.proc import Presence, Proc
from exporter.collectors.thread import BoundedCalls
from exporter.collectors.workload_processes import MOST_PROCESSES, WorkloadProcesses
from exporter.model.dialect import MULTI_USER, PROTOCOL_2, STATIC_PARTITIONING, dialect_of
from exporter.model.identity import identity_of
from exporter.model.observation import DaemonProcess, DirectoryReading, ProcessReading
from exporter.model.reason import Reason, ReasonCode, of_error
from exporter.model.settings import (
    DEFAULT_PIPE_DIRECTORY,
    DEVICE_ORDER,
    LOG_DIRECTORY,
    PIPE_DIRECTORY,
    PROTOCOL_VERSION,
    VISIBLE_DEVICES,
)
from exporter.model.values import frozen, made_of
from exporter.parse.cgroup import parse_cgroup
from exporter.parse.proc import MpsProgram, is_mps_name, is_on_network, listening_unix_sockets, mps_program

# -- Control daemons among the running processes -----------------------------------------------------------------------

_MAX_OPTIONS = 16

_PROTOCOL_OPTION = re.compile(r"\0(?:-p|--protocol)[\0=]([^\0]*)")

_OPTIONS = STATIC_PARTITIONING | MULTI_USER
_OPTIONS_WITH_VALUE = frozenset(("-a", "--apply"))
"""The options of R580 to R615 that determine how a daemon works (NVIDIA's MPS guide), besides the protocol."""


@frozen
class ControlDaemon:
    """A process that runs the control program.

    `own_pid` is its PID in its own PID namespace, `depth` the number of its PID namespaces. `environment` has only the
    variables of MPS. It is None if it cannot be read, and so is `stdout`, a path.
    """

    facts: ProcessReading
    arguments: tuple[str, ...]
    environment: Mapping[str, str] | None
    stdout: str | None
    own_pid: int
    depth: int

    @property
    def pid(self) -> int:
        """Its PID in this PID namespace."""
        return self.facts.pid

    @property
    def identity(self) -> tuple[int, int]:
        """PID and start time, which no other process ever has."""
        return self.facts.pid, self.facts.start_ticks

    @property
    def is_service(self) -> bool:
        """Whether it runs as a daemon, and does not send commands to one."""
        return "-f" in self.arguments or "-d" in self.arguments

    @property
    def protocol(self) -> int | None:
        """MPS's own protocol. The environment overrides the arguments (documentation of R615), if it can be read."""
        if self.environment is None:
            return None
        option = _PROTOCOL_OPTION.search("\0".join(self.arguments))
        value = self.environment.get(PROTOCOL_VERSION) or ("" if option is None else option[1])
        return int(value) if value.isascii() and value.isdecimal() and len(value) < 4 else PROTOCOL_2.number

    @property
    def options(self) -> tuple[str, ...]:
        """The options that another daemon in its place needs too."""
        found: list[str] = []
        for number, word in enumerate(self.arguments[1:], start=1):
            if word in _OPTIONS or word.partition("=")[0] in _OPTIONS_WITH_VALUE:
                found += self.arguments[number : number + 1 + (word in _OPTIONS_WITH_VALUE)]
        return tuple(found[:_MAX_OPTIONS])

    def observation(self, daemon: str) -> DaemonProcess:
        """Return it as the process of the daemon with this name."""
        variables = self.environment or {}
        return made_of(
            DaemonProcess,
            self.facts,
            self,
            daemon=daemon,
            environment={name: variables[name] for name in (VISIBLE_DEVICES, DEVICE_ORDER) if name in variables},
            foreground="-f" in self.arguments,
            stdout_in_file=None if self.stdout is None else self.stdout.endswith(f"/{pipe_dir.STDOUT}"),
            stdout_in_journal=None if self.stdout is None else self.stdout.startswith("socket:"),
            unit=parse_cgroup(self.facts.cgroup or "").unit,
        )


class ControlDaemons:
    """The control daemons in /proc."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._known: dict[int, tuple[int, ControlDaemon | None]] = {}
        """By PID, each process with a name of MPS: its start time, and the control program if it runs that."""
        self._others: dict[int, str] = {}  # The names of the other processes by PID.

    def all(self) -> list[ControlDaemon]:
        """Return the readable daemons, oldest first. Of other processes, read only names. Raises OSError."""
        pids = self._proc.pids()
        named = [pid for pid in pids if self._is_named(pid)]
        self._known = {pid: self._known[pid] for pid in named if pid in self._known}
        self._others = {pid: self._others[pid] for pid in pids if pid in self._others}
        daemons = [program for pid in named if (program := self._cached(pid)) is not None and program.is_service]
        return sorted(daemons, key=lambda daemon: (daemon.facts.started, daemon.pid))

    def _is_named(self, pid: int) -> bool:
        """Return whether a process runs a program of MPS, by its file or argument 0. A script has only the name."""
        name = self._proc.name(pid)
        if name is None or self._others.get(pid) == name:
            return False
        arguments, program = self._proc.arguments(pid), self._proc.program(pid)
        if mps_program(program, *arguments[:1]) is not None:
            return True
        # During an exec, only the arguments are missing. A script may then run the program of its own name.
        if (arguments or program is None) and not is_mps_name(name):
            self._others[pid] = name
        return False

    def at(self, pid: int) -> ControlDaemon | None:
        """Return the control program with this PID; None if it is another program or no process. Raises OSError."""
        facts, arguments = self._proc.facts(pid), self._proc.arguments(pid)
        if facts is None or mps_program(facts.executable, *arguments[:1]) is not MpsProgram.CONTROL:
            return None
        pids = self._proc.namespaced_pids(pid) or (pid,)
        return ControlDaemon(
            facts=facts,
            arguments=arguments,
            environment=self._proc.variables(
                pid, (VISIBLE_DEVICES, DEVICE_ORDER, PIPE_DIRECTORY, LOG_DIRECTORY, PROTOCOL_VERSION)
            ),
            stdout=self._proc.stdout(pid),
            own_pid=pids[-1],
            depth=len(pids),
        )

    def is_server(self, pid: int) -> bool:
        """Return whether a process runs the server program. Raises OSError if it cannot be read."""
        facts = self._proc.facts(pid)
        return facts is not None and mps_program(facts.executable, facts.command) is MpsProgram.SERVER

    def pipe_of(self, program: ControlDaemon) -> Identity | None:
        """Return the pipe directory that a program's environment names; None if it cannot be read or reached."""
        if program.environment is None:
            return None
        path = Path(program.environment.get(PIPE_DIRECTORY) or DEFAULT_PIPE_DIRECTORY)
        return Directory(path, Root(self._proc, *program.identity)).identity() if path.is_absolute() else None

    def _cached(self, pid: int) -> ControlDaemon | None:
        start_ticks = self._proc.start_ticks(pid)
        if start_ticks is None:
            return None
        ticks, known = self._known.get(pid, (None, None))
        known = known if ticks == start_ticks else None
        # An environment may be unreadable for a moment only, as without a free descriptor.
        # During an exec, a process has no arguments and no environment.
        unread = ticks != start_ticks or (known is not None and known.environment is None)
        if unread and self._proc.arguments(pid):
            with contextlib.suppress(OSError):
                known = self.at(pid)
                self._known[pid] = start_ticks, known
        return known


# -- Users who may run a daemon ----------------------------------------------------------------------------------------

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_SOCKETS = (pipe_dir.CONTROL_SOCKET, pipe_dir.PRIVILEGED_SOCKET)


def may_run(location: DaemonLocation, uid: int | None) -> bool:
    """Return whether a daemon of this user is the expected one. If none is expected, any user may run one there."""
    if not location.expected or uid is None or uid in (0, os.geteuid(), location.owner):
        return True
    return location.pipe.root is None and _is_given_to(location.pipe.path, uid)


def foreign_listener(location: DaemonLocation) -> int | None:
    """Return the owner of a control socket there who may not run the daemon."""
    owners = (location.pipe.owner(name) for name in _SOCKETS) if location.expected else ()
    return next((uid for uid in owners if not may_run(location, uid)), None)


def foreign_user(location: DaemonLocation) -> int | None:
    """Return the owner of the pipe directory or of a control socket who may not run the daemon. Raises OSError."""
    return _foreign_owner(location, location.pipe.files()) if location.expected else None


def _foreign_owner(location: DaemonLocation, files: PipeFiles | None) -> int | None:
    owners = () if files is None else (files.owners.get(name) for name in (".", *_SOCKETS))
    return next((uid for uid in owners if not may_run(location, uid)), None)


def _is_given_to(path: Path, uid: int) -> bool:
    """Return whether only root and this user can create or replace what is at this path. Raises OSError."""
    try:
        for above in {*path.parents, *Path(os.path.realpath(path)).parents}:
            file = above.lstat()
            # A link has no mode of its own.
            writable_by_others = not stat.S_ISLNK(file.st_mode) and file.st_mode & _WRITABLE_BY_OTHERS
            if file.st_uid not in (0, uid) or writable_by_others:
                return False
    except FileNotFoundError:
        return False
    return True


REPEAT_SECONDS = 10.0
"""How often a running daemon is reported again. A reading can be lost if its collector then fails."""

DIRECTORY_SECONDS = 1.0
"""How long the directory of a running daemon is waited for. If it hangs, the end of the daemon is still observed."""

MAX_SERVERS = 64  # servers of one daemon that are reported

MAX_WORKLOAD_PROCESSES = 2 * MOST_PROCESSES
"""Processes of one daemon's job or pod that are reported: the present ones, and as many earlier ones."""


class Identities:
    """The device and inode of each pipe directory, as they were last read. Several threads may use it."""

    def __init__(self) -> None:
        self.order: tuple[str, ...] = ()  # the daemons in the order in which they have precedence
        self._by_daemon: dict[str, Identity] = {}
        self._lock = threading.Lock()

    def first(self, daemon: str, identity: Identity | None) -> str:
        """Set the identity of a daemon's directory. Return the daemon with precedence among those in this directory."""
        with self._lock:
            self._by_daemon.pop(daemon, None)
            if identity is None:
                return daemon
            self._by_daemon[daemon] = identity
            names = dict.fromkeys((*self.order, *self._by_daemon))
            return next(name for name in names if self._by_daemon.get(name) == identity)


class PidFile:
    """The process of the control daemon in one location."""

    def __init__(
        self, proc: Proc, clock: Clock, identities: Identities | None = None, workloads: WorkloadProcesses | None = None
    ) -> None:
        self.found: DaemonProcess | None = None  # the daemon at the last call that could examine it
        self.repeats = False  # whether that call returned what was known
        self.problem: Reason | None = None
        """Why the daemon cannot be examined, or is not followed because another one has its directory."""
        self._proc = proc
        self._workloads = workloads or WorkloadProcesses(proc, clock)
        self._daemons = ControlDaemons(proc)
        self._clock = clock
        self._identities = identities or Identities()
        self._repeat_due = 0.0
        self._directory_read: tuple[object, DirectoryReading | None] = None, None
        self._calls = BoundedCalls(DIRECTORY_SECONDS)

    def changed(self, location: DaemonLocation) -> tuple[DaemonProcess, ...]:
        """Return the daemon if it changed or ended, a running one every REPEAT_SECONDS; nothing if unreadable."""
        repeat = self._clock.monotonic() >= self._repeat_due
        if repeat:
            self._repeat_due = self._clock.monotonic() + REPEAT_SECONDS
        try:
            before, now = self.found, self._examine(location)
        except OSError as error:
            self.problem = of_error(location.pipe, error)
            return ()
        self.problem = Reason(ReasonCode.DIRECTORY_HANGS) if self._calls.hanging else None
        if now.same_as is not None:
            self.problem = Reason(ReasonCode.DIRECTORY_SHARED, subject=now.daemon, detail=now.same_as)
        running_again = repeat and now.pid is not None
        if before is not None and not running_again and _key(before) == _key(now):
            return ()
        entered_by = None
        if now.pid is not None:
            entered_by = self._calls.call("closed", lambda: (location.pipe.closed() or (None, None))[1], now.entered_by)
        now = replace(now, job_source=self._workloads.job_source(now.cgroup, now.pid), entered_by=entered_by)
        if not location.expected:
            # Add the processes of its job or pod, and those that ended since the last search or could not be read.
            earlier = () if before is None or identity_of(before) != identity_of(now) else before.peers
            peers = dict.fromkeys((*self._workloads.of(now), *earlier))
            now = replace(now, peers=tuple(islice(peers, MAX_WORKLOAD_PROCESSES)))
        self.repeats = before is not None and replace(before, at=now.at) == now
        self.found = now
        return (now,)

    def _examine(self, location: DaemonLocation) -> DaemonProcess:
        """Return the daemon of a location. Raises OSError if it cannot be known."""
        before = self.found
        if before is not None and before.pid is not None and self._runs(before.pid, before.start_ticks):
            pid, directory = before.pid, before.directory
            with contextlib.suppress(OSError):
                directory = self._calls.call(
                    "directory", lambda: self._directory(location, location.pipe.files(), pid), directory
                )
            return self._with_servers(replace(before, at=self._clock.now(), directory=directory))
        files = location.pipe.files()
        # If a directory has several names, the first one has the daemon.
        missing = DaemonProcess(at=self._clock.now(), daemon=location.name, pid=None, hidden=self._proc.is_apart)
        first = self._identities.first(location.name, None if files is None else files.identity)
        if first != location.name:
            return replace(missing, same_as=first)
        daemon = self._daemon_of(location, files)
        if daemon is not None and may_run(location, daemon.facts.uid):
            directory = self._directory(location, files, daemon.pid)
            return self._with_servers(replace(daemon.observation(location.name), directory=directory))
        foreign_owner = _foreign_owner(location, files) if daemon is None else daemon.facts.uid
        if foreign_owner is not None:
            # The pid file of another user's daemon proves nothing about the expected one.
            return replace(missing, foreign_owner=foreign_owner)
        pid_file_left, quit_traces = exit_traces(location.pipe, files)
        directory = self._directory(location, files, None) if pid_file_left else None
        if directory is not None and not is_on_network(directory.file_system):
            directory = None  # On a local disk, the daemon that ended left the pid file.
        return replace(missing, pid_file_left=pid_file_left, quit_traces=quit_traces, directory=directory)

    def _directory(self, location: DaemonLocation, files: PipeFiles | None, pid: int | None) -> DirectoryReading | None:
        """Return what the directory shows of a daemon; None if its PID file names this process. Connects seldom."""
        if files is None or pipe_dir.CONTROL_SOCKET not in files.owners:
            return DirectoryReading(exists=False)
        if pid is not None and files.pid == next(reversed(self._proc.namespaced_pids(pid)), pid):
            return None
        key = files, pid, self._repeat_due
        if key != self._directory_read[0]:
            listening, listener = pipe_dir.listener(location.pipe)
            others = [each for each in (listener, files.pid) if each and each != pid and self._daemons.at(each)]
            if listener == 0 or (others and listener not in (*others, pid)):
                listening = None  # A daemon that is not visible, or that the PID file names, may listen.
            reading = DirectoryReading(
                exists=True,
                pid=files.pid,
                listening=listening,
                other=listener if listener in others else None,
                file_system=location.pipe.file_system(),
            )
            self._directory_read = key, reading
        return self._directory_read[1]

    def _runs(self, pid: int, start_ticks: int | None) -> bool:
        """Return whether this process runs. Raises OSError if it cannot be known."""
        presence = self._proc.presence(pid, start_ticks)
        if presence is Presence.UNKNOWN:
            raise OSError(errno.EIO, f"process {pid} cannot be read")
        return presence is Presence.RUNNING

    def _with_servers(self, daemon: DaemonProcess) -> DaemonProcess:
        if daemon.pid is None or not (dialect_of(daemon.protocol).servers_by_user or daemon.directory):
            return replace(daemon, servers=None)
        children = self._proc.children(daemon.pid)
        if children is None:
            return replace(daemon, servers=None)
        return replace(daemon, servers=tuple(islice(filter(self._daemons.is_server, children), MAX_SERVERS)))

    def _daemon_of(self, location: DaemonLocation, files: PipeFiles | None) -> ControlDaemon | None:
        """Return the daemon that the pid file names, else the one that discovery found and that still runs."""
        pid = None if files is None else files.pid
        if pid is not None and location.namespace is not None:
            location.namespace.update([pid])
            pid = location.namespace.outer([pid]).get(pid)
        daemon = None if pid is None else self._daemons.at(pid)
        # Every user can write the PID of another daemon of the same user into the file.
        if files is not None and daemon is not None and socket_owner(files, [daemon]) is not None:
            in_directory = self._daemons.pipe_of(daemon) in (None, files.identity)
            if daemon.own_pid == files.pid and in_directory:
                return daemon
        if location.process is None or not self._runs(*location.process):
            return None
        running = self._daemons.at(location.process[0])
        if files is None or pipe_dir.PRIVILEGED_SOCKET not in files.owners:
            return running  # The directory or its sockets were removed.
        return None if running is None else socket_owner(files, [running])


def _key(daemon: DaemonProcess) -> tuple[object, ...]:
    """Return what makes a daemon's process a different one, and its servers."""
    exit_traces = daemon.pid_file_left, daemon.quit_traces, daemon.directory
    return daemon.pid, daemon.start_ticks, *exit_traces, daemon.foreign_owner, daemon.same_as, daemon.servers


def has_bound(proc: Proc, daemon: int, path: str) -> bool:
    """Return whether a process in a daemon's network namespace listens on the control socket of this directory."""
    table = listening_unix_sockets(proc.unix_sockets(daemon) or "")
    return any(os.path.normpath(each) == os.path.normpath(f"{path}/{pipe_dir.CONTROL_SOCKET}") for each in table)


def socket_owner(files: PipeFiles, daemons: Iterable[ControlDaemon]) -> ControlDaemon | None:
    """Return the daemon whose user owns the socket in a pipe directory; None if there is not exactly one."""
    owner = files.owners.get(pipe_dir.PRIVILEGED_SOCKET)
    found = [daemon for daemon in daemons if owner is not None and daemon.facts.uid == owner]
    return found[0] if len(found) == 1 else None


def exit_traces(pipe: Directory, files: PipeFiles | None) -> tuple[bool | None, bool | None]:
    """Return whether there is a pid file, and whether the directory looks as after a quit; None if unknown.

    A quit removes the pid file and the fifo, and leaves the sockets (measured, R580). A missing directory proves
    nothing: systemd removes a unit's RuntimeDirectory after a crash too. Neither does the root of an ended process.
    """
    if files is None:
        return (False, False) if pipe.root is None else (None, None)
    left = pipe_dir.PID_FILE in files.owners
    return left, pipe_dir.PRIVILEGED_SOCKET in files.owners and not left and pipe_dir.FIFO not in files.owners
