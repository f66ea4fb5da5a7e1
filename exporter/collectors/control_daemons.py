"""Control daemons among the running processes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from exporter.collectors.pipe_dir import STDOUT, Directory, Identity, Root
from exporter.collectors.proc import Proc
from exporter.model.observation import DaemonProcess, ProcessReading
from exporter.model.settings import DEFAULT_PIPE_DIRECTORY, LOG_DIRECTORY, PIPE_DIRECTORY, VISIBLE_DEVICES
from exporter.parse.cgroup import parse_cgroup
from exporter.parse.proc import MPS_PROGRAM_PREFIX, MpsProgram, mps_program

PROTOCOL_VERSION = "CUDA_MPS_PROTOCOL_VERSION"

DEFAULT_PROTOCOL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlDaemon:
    """A control daemon that runs.

    `own_pid` is its PID in its own namespace, `depth` how many namespaces it is in. `environment` has MPS' variables
    and nothing else; it is None where it may not be read, and so is `stdout`.
    """

    facts: ProcessReading
    arguments: tuple[str, ...]
    environment: Mapping[str, str] | None
    stdout: str | None
    own_pid: int
    depth: int

    @property
    def pid(self) -> int:
        """Its PID here."""
        return self.facts.pid

    @property
    def identity(self) -> tuple[int, int]:
        """PID and start time: no other process ever has both."""
        return self.facts.pid, self.facts.start_ticks

    @property
    def foreground(self) -> bool:
        """Whether it writes its logs to stdout."""
        return "-f" in self.arguments

    @property
    def stdout_in_file(self) -> bool | None:
        """Whether its stdout is a file of the name by which such a log is followed; where that is, the place tells."""
        return None if self.stdout is None else self.stdout.endswith(f"/{STDOUT}")

    @property
    def is_service(self) -> bool:
        """Whether it was started to serve, and not to carry a command to one that does."""
        return self.foreground or "-d" in self.arguments

    @property
    def protocol(self) -> int | None:
        """MPS' own protocol: the environment outweighs the arguments (R615's documentation), if it can be read."""
        if self.environment is None:
            return None
        said = self.environment.get(PROTOCOL_VERSION) or _option(self.arguments, "-p", "--protocol") or ""
        return int(said) if said.isascii() and said.isdecimal() and len(said) < 4 else DEFAULT_PROTOCOL

    def told(self, daemon: str) -> DaemonProcess:
        """What is to be told of it, under the daemon's name."""
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
            foreground=self.foreground,
            stdout_in_file=self.stdout_in_file,
            unit=parse_cgroup(self.facts.cgroup or "").unit,
        )


class ControlDaemons:
    """The control daemons in /proc."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._met: dict[int, tuple[int, ControlDaemon | None]] = {}
        """Who has a name of MPS: start time, and whether it is a daemon."""

    def all(self) -> list[ControlDaemon]:
        """Those that serve, the eldest first."""
        return [each for each in self._programs() if each.is_service]

    def sessions(self) -> list[ControlDaemon]:
        """Those that carry commands to one that serves, the eldest first."""
        return [each for each in self._programs() if not each.is_service]

    def _programs(self) -> list[ControlDaemon]:
        """All that run NVIDIA's program, the eldest first. Of all other processes only the name is read."""
        named = [pid for pid in self._proc.pids() if self._proc.name(pid) == MPS_PROGRAM_PREFIX]
        self._met = {pid: self._met[pid] for pid in named if pid in self._met}
        return sorted(filter(None, map(self._meet, named)), key=lambda each: (each.facts.started, each.pid))

    def at(self, pid: int) -> ControlDaemon | None:
        """The control daemon with this PID; None where it is something else."""
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

    def pipe_of(self, program: ControlDaemon) -> Identity | None:
        """Return the pipe directory that a program's environment names; None if it cannot be read or reached."""
        if program.environment is None:
            return None
        path = Path(program.environment.get(PIPE_DIRECTORY) or DEFAULT_PIPE_DIRECTORY)
        return Directory(path, Root(self._proc, *program.identity)).identity() if path.is_absolute() else None

    def _meet(self, pid: int) -> ControlDaemon | None:
        start_ticks = self._proc.start_ticks(pid)
        if start_ticks is None:
            return None
        met = self._met.get(pid)
        if met is None or met[0] != start_ticks:
            # In the midst of an exec there are no arguments yet, and no environment.
            if not self._proc.arguments(pid):
                return None
            met = self._met[pid] = start_ticks, self.at(pid)
        return met[1]


def _option(arguments: tuple[str, ...], *names: str) -> str | None:
    """The value of an option, as in `-p 3` and `--protocol=3`."""
    for word, following in zip(arguments, (*arguments[1:], ""), strict=True):
        if word in names:
            return following
        name, equals, value = word.partition("=")
        if equals and name in names:
            return value
    return None
