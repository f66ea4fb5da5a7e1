"""Facts that the checks read: gathered once. A workload may have chosen any of them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from exporter.config.settings import Config
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.settings import DEFAULT_PIPE_DIRECTORY, PIPE_DIRECTORY


class Capability(IntEnum):
    """Each by its number, which is its bit."""

    DAC_OVERRIDE = 1
    KILL = 5
    SETGID = 6
    SETUID = 7
    SYS_PTRACE = 19
    SYS_ADMIN = 21
    SYSLOG = 34
    PERFMON = 38
    BPF = 39


def names(capabilities: Iterable[Capability]) -> str:
    """As they are written in units: `CAP_KILL, CAP_SETUID`."""
    return ", ".join(f"CAP_{each.name}" for each in capabilities)


Identity = tuple[int, int]
"""Device and inode: one directory, however it is reached."""

INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of the node's own one (Linux, include/linux/proc_ns.h)."""

TEMPORARY = ("/tmp/", "/var/tmp/")  # noqa: S108 (where a unit may have a directory of its own)


class Area(StrEnum):
    """What can be looked at, or be hidden."""

    CONFIGURATION = "configuration"
    PROGRAMS = "programs"
    GPUS = "GPUs"
    DAEMONS = "daemons"
    PROCESSES = "CUDA processes"
    DIRECTORIES = "pipe directories"
    LOGS = "logs"
    ROTATION = "logrotate's configuration"
    UNITS = "systemd units"
    PORTS = "ports"
    RIGHTS = "rights"
    DOORS = "counting of launches"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """What could not be looked at, or not in full, and why; `mend` says what would show it.

    It is `told` where another finding says what is the matter.
    """

    area: Area
    why: str
    mend: str = ""
    commands: tuple[str, ...] = ()
    told: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """NVIDIA's programs, where the exporter finds them; `version` is that of the control program, as in 13000.

    `problem` says why it could not be asked for it.
    """

    control: str | None = None
    server: str | None = None
    version: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """A process that uses CUDA, or a control daemon.

    `variables` are those of MPS and CUDA, None where they may not be read. `pipe` is the directory that it takes for
    its daemon's, from where it stands, and `shared_memory` its /dev/shm. `pid_namespaces` has its own first, then those
    around it.
    """

    pid: int
    uid: int | None = None
    user: str | None = None
    command: str | None = None
    unit: str | None = None
    container: str | None = None
    variables: Mapping[str, str] | None = None
    pipe: Identity | None = None
    shared_memory: Identity | None = None
    pid_namespaces: tuple[int, ...] = ()

    @property
    def pipe_directory(self) -> str:
        """Where it looks for its daemon."""
        return (self.variables or {}).get(PIPE_DIRECTORY) or DEFAULT_PIPE_DIRECTORY


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonFacts:
    """A control daemon that runs, and what the node calls it.

    `own_pid` is its PID in its own namespace, `logs` the directory of its logs, from where it stands. `replaced` says
    that its program's file is another by now; `open_files` is how many it and its servers may have.
    """

    name: str
    process: ProcessFacts
    own_pid: int
    arguments: tuple[str, ...] = ()
    replaced: bool = False
    open_files: int | None = None
    logs: Identity | None = None

    @property
    def for_all_users(self) -> bool:
        """Whether one server of it serves everybody (`-multiuser-server`)."""
        return bool({"-M", "-multiuser-server", "--multiuser-server"} & set(self.arguments))


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryFacts:
    """A daemon's pipe directory, as the daemon sees it.

    `problem` says why it could not be looked at. `closed` is the first directory on the way that other users cannot
    pass, `writable` whether others may replace what is in it. `pid` is what the pid file says, `pid_file_mode` None
    where there is none. `log_fifo_mode` is that of the fifo by which servers write logs, None where there is none.
    """

    path: str
    problem: str | None = None
    closed: str | None = None
    writable: bool = False
    pid: int | None = None
    pid_file_mode: int | None = None
    log_fifo_mode: int | None = None

    @property
    def pid_file(self) -> str:
        """Where the daemon says who it is."""
        return f"{self.path}/nvidia-cuda-mps-control.pid"

    @property
    def log_fifo(self) -> str:
        """The path of the fifo by which servers write logs."""
        return f"{self.path}/log"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """A log of a daemon's. `renamed` is the file to which the daemon writes instead, since that was this one once."""

    path: str
    size: int = 0
    renamed: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """What logrotate is told of a log: by which file, and whether it truncates the log in its place."""

    path: str
    file: str
    truncates: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFacts:
    """A systemd unit; `private_tmp` says that its /tmp is another than everybody's."""

    name: str
    private_tmp: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterRights:
    """Whose rights count: those of the service, where it runs (`is_service`), else of whoever looks.

    `unanswering` says why a service that is there could not be asked who it is. `kernel_log` is why the kernel's log
    cannot be read.
    """

    pid: int
    uid: int
    groups: frozenset[int] = frozenset()
    capabilities: int = 0
    is_service: bool = False
    unanswering: str | None = None
    journal_group: int | None = None
    kernel_log: str | None = None
    state_directory: str = ""
    state_problem: str | None = None
    pid_namespaces: tuple[int, ...] = ()

    @property
    def called(self) -> str:
        """Who it is, in a few words."""
        return f"the service (PID {self.pid})" if self.is_service else "whoever runs this"

    def lacks(self, *wanted: Capability) -> tuple[Capability, ...]:
        """Those of these capabilities that it has not."""
        return tuple(each for each in wanted if not self.capabilities >> each & 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorsFacts:
    """Whether launches can be counted, where that is wanted.

    `tried` says whether the kernel was, and `refused` why it does not take the programs. `libraries` are the libcudas
    that would be watched, `problems` what keeps others from it.
    """

    tried: bool = True
    refused: str | None = None
    libraries: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who listens already where the exporter is to."""

    address: str
    uid: int
    is_service: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that was looked at. By daemon's name: `directories`, `logs`, `configured_logs`, `waiting`.

    `configured_logs` are the directories in which the configuration has their logs, as far as these are there.
    `processes` are those that use CUDA, or wait to. `waiting` are the clients that were put off, as the log has it.
    `units` are those that are loaded, None where systemd does not tell. Whoever looks is `apart` in a PID namespace
    that is not the node's. `doors` is None where nobody wants launches counted.
    """

    config: Config
    node: Node = field(default_factory=Node)
    config_problem: str | None = None
    web_problem: str | None = None
    programs: Programs = field(default_factory=Programs)
    kernel_module: str | None = None
    daemons: tuple[DaemonFacts, ...] = ()
    processes: Mapping[int, ProcessFacts] = field(default_factory=dict)
    directories: Mapping[str, DirectoryFacts] = field(default_factory=dict)
    logs: Mapping[str, tuple[LogFacts, ...]] = field(default_factory=dict)
    configured_logs: Mapping[str, Identity] = field(default_factory=dict)
    rotations: tuple[Rotation, ...] = ()
    waiting: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    units: Mapping[str, UnitFacts] | None = None
    watcher: ExporterRights
    holders: tuple[Holder, ...] = ()
    doors: DoorsFacts | None = None
    apart: bool = False
    unseen: tuple[Unseen, ...] = ()

    def daemons_of(self, name: str) -> tuple[DaemonFacts, ...]:
        """The control daemons that run in one directory: one, where all is well."""
        return tuple(each for each in self.daemons if each.name == name)

    def hidden(self, name: str) -> bool:
        """Whether a daemon may run that is not to be seen from here: a pid file names one of another namespace."""
        directory = self.directories.get(name)
        return self.apart and not self.daemons_of(name) and directory is not None and directory.pid is not None

    def running(self) -> Iterator[tuple[Daemon, DaemonFacts]]:
        """Each daemon that runs, as the node knows it and as it is as a process."""
        for each in self.daemons:
            if each.name in self.node.daemons:
                yield self.node.daemons[each.name], each
