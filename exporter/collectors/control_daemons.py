"""Control daemons among the running processes."""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from exporter.collectors.pipe_dir import STDOUT, Directory, Identity, Root
from exporter.collectors.proc import Proc
from exporter.model.daemon import MULTI_USER, STATIC_PARTITIONING
from exporter.model.observation import DaemonProcess, ProcessReading
from exporter.model.settings import (
    DEFAULT_PIPE_DIRECTORY,
    DEFAULT_PROTOCOL,
    LOG_DIRECTORY,
    PIPE_DIRECTORY,
    PROTOCOL_VERSION,
    VISIBLE_DEVICES,
)
from exporter.parse.cgroup import parse_cgroup
from exporter.parse.proc import MPS_PROGRAM_PREFIX, MpsProgram, mps_program

_MAX_OPTIONS = 16

_PROTOCOL_OPTION = re.compile(r"\0(?:-p|--protocol)[\0=]([^\0]*)")

_OPTIONS = STATIC_PARTITIONING | MULTI_USER
_OPTIONS_WITH_VALUE = frozenset(("-a", "--apply"))
"""The options of R580 to R615 that determine how a daemon works (NVIDIA's MPS guide), besides the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
        return int(value) if value.isascii() and value.isdecimal() and len(value) < 4 else DEFAULT_PROTOCOL

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
        visible = (self.environment or {}).get(VISIBLE_DEVICES)
        return DaemonProcess(
            at=self.facts.at,
            daemon=daemon,
            pid=self.facts.pid,
            start_ticks=self.facts.start_ticks,
            started=self.facts.started,
            uid=self.facts.uid,
            environment={} if visible is None else {VISIBLE_DEVICES: visible},
            protocol=self.protocol,
            options=self.options,
            foreground="-f" in self.arguments,
            stdout_in_file=None if self.stdout is None else self.stdout.endswith(f"/{STDOUT}"),
            stdout_in_journal=None if self.stdout is None else self.stdout.startswith("socket:"),
            unit=parse_cgroup(self.facts.cgroup or "").unit,
            user=self.facts.user,
            cgroup=self.facts.cgroup,
        )


class ControlDaemons:
    """The control daemons in /proc."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._known: dict[int, tuple[int, ControlDaemon | None]] = {}
        """By PID, each process with a name of MPS: its start time, and the control program if it runs that."""

    def all(self) -> list[ControlDaemon]:
        """Return the daemons, oldest first."""
        return [each for each in self._programs() if each.is_service]

    def sessions(self) -> list[ControlDaemon]:
        """Return the control programs that send commands to a daemon, oldest first."""
        return [each for each in self._programs() if not each.is_service]

    def _programs(self) -> list[ControlDaemon]:
        """Return the readable processes that run the control program, oldest first. Raises OSError.

        Of other processes it reads only names.
        """
        named = [pid for pid in self._proc.pids() if self._proc.name(pid) == MPS_PROGRAM_PREFIX]
        self._known = {pid: self._known[pid] for pid in named if pid in self._known}
        return sorted(filter(None, map(self._cached, named)), key=lambda each: (each.facts.started, each.pid))

    def at(self, pid: int) -> ControlDaemon | None:
        """Return the control program with this PID; None if it is another program or no process. Raises OSError."""
        facts = self._proc.facts(pid)
        if facts is None or mps_program(facts.executable, facts.command) is not MpsProgram.CONTROL:
            return None
        pids = self._proc.namespaced_pids(pid) or (pid,)
        return ControlDaemon(
            facts=facts,
            arguments=self._proc.arguments(pid),
            environment=self._proc.variables(pid, (VISIBLE_DEVICES, PIPE_DIRECTORY, LOG_DIRECTORY, PROTOCOL_VERSION)),
            stdout=self._proc.stdout(pid),
            own_pid=pids[-1],
            depth=len(pids),
        )

    def is_server(self, pid: int) -> bool:
        """Return whether a process runs the server program. Raises OSError if it cannot be read."""
        name = self._proc.name(pid)
        if name is not None and name != MPS_PROGRAM_PREFIX:
            return False
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
