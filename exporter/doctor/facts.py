"""The facts that the checks read, and what a check is. A workload may have chosen any text in the facts."""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from enum import StrEnum
from inspect import cleandoc
from itertools import chain
from typing import Any

from exporter.config.settings import Config
from exporter.model.daemon import Daemon
from exporter.model.node import CollectorName, Node
from exporter.model.observation import ProcessReading
from exporter.model.reason import Reason
from exporter.model.settings import DEFAULT_PIPE_DIRECTORY, PIPE_DIRECTORY
from exporter.model.values import frozen, frozen_positional
from exporter.parse.printable import LONGEST_PROBLEM, printable
from exporter.parse.proc import Capability
from exporter.report.document_parts import Severity
from exporter.report.finding import Finding
from exporter.report.problems import Definition, Problem
from exporter.report.text import process_text

Identity = tuple[int, int]
"""Device and inode: they identify a directory, whatever path leads there."""

TEMPORARY = ("/tmp/", "/var/tmp/")  # noqa: S108 (directories that PrivateTmp= replaces)


class Area(StrEnum):
    """What `doctor` examines."""

    PROGRAMS = "programs"
    GPUS = "GPUs"
    DAEMONS = "daemons"
    PROCESSES = "CUDA processes"
    DIRECTORIES = "pipe directories"
    LOGS = "logs"
    UNITS = "systemd units"
    RIGHTS = "rights of the service"
    LAUNCHES = "counting of launches"


@frozen
class NotExamined:
    """An area that could not be examined, or not in full. It is `reported` if another finding names the cause."""

    area: Area
    reason: str
    fix: str = ""
    commands: tuple[str, ...] = ()
    reported: bool = False


@frozen
class Programs:
    """Paths of NVIDIA's programs. `version` is the control program's (13000), or `problem` why it is unknown."""

    control: str | None = None
    server: str | None = None
    version: str | None = None
    problem: str | None = None


@frozen
class ProcessFacts(ProcessReading):
    """A process that uses CUDA, or a control daemon. Its `environment` has the variables of MPS and CUDA.

    `pipe` is the pipe directory that the process uses, in its mount namespace, `logs` its log directory and
    `shared_memory` its /dev/shm. `pid_namespaces` begins with the innermost.
    """

    unit: str | None = None
    container: str | None = None
    pipe: Identity | None = None
    shared_memory: Identity | None = None
    logs: Identity | None = None
    pid_namespaces: tuple[int, ...] = ()

    def variable(self, name: str) -> str | None:
        """Return a variable of the environment; None if it is not set, or the environment cannot be read."""
        return (self.environment or {}).get(name)

    @property
    def pipe_directory(self) -> str:
        """The path of the pipe directory that the process uses."""
        return self.variable(PIPE_DIRECTORY) or DEFAULT_PIPE_DIRECTORY


@frozen
class DaemonFacts:
    """A running control daemon, by the name that it has on the node.

    `own_pid` is its PID in its own namespace. If it is `outdated`, the file of its program was replaced. The limit
    `open_files` is that of the daemon and its servers. `written` are the logs that the daemon has open.
    """

    name: str
    process: ProcessFacts
    own_pid: int
    arguments: tuple[str, ...] = ()
    outdated: bool = False
    open_files: int | None = None
    written: tuple[str, ...] = ()


@frozen
class DirectoryFacts:
    """A daemon's pipe directory, in the daemon's mount namespace.

    `problem` is why it could not be read. `closed` is the first directory of the path that other users cannot enter.
    Users can replace files in one that is `writable`. `pid` is the content of the pid file. A mode is None if the pid
    file, or the fifo through which servers write logs, does not exist.
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
        """The path of the daemon's pid file."""
        return f"{self.path}/nvidia-cuda-mps-control.pid"

    @property
    def log_fifo(self) -> str:
        """The path of the fifo through which servers write logs."""
        return f"{self.path}/log"


@frozen
class ExporterProcess:
    """The process with the rights that count: the service if it runs (`is_service`), else this command.

    `unanswering` is why a running service could not be identified. `reads_journal` is whether its user may read the
    journal, and `kernel_log` why the kernel log cannot be read.
    """

    pid: int
    uid: int
    capabilities: int = 0
    is_service: bool = False
    unanswering: str | None = None
    reads_journal: bool = True
    kernel_log: str | None = None
    state_directory: str = ""
    state_problem: str | None = None
    pid_namespaces: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """What findings call the process."""
        return f"the service (PID {self.pid})" if self.is_service else "this command"

    def lacks(self, *wanted: Capability) -> str:
        """Return those of these capabilities that the process lacks, as `CAP_KILL, CAP_SETUID`."""
        return ", ".join(f"CAP_{each.name}" for each in wanted if not self.capabilities >> each & 1)


@frozen
class LibcudaProbesFacts:
    """Whether kernel launches can be counted.

    `tried` is whether the kernel was tested, and `refused` why it does not load the BPF programs. `libraries` are the
    libcuda files to probe, and `problems` why others cannot be probed.
    """

    tried: bool = True
    refused: str | None = None
    libraries: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@frozen
class Facts:
    """All facts. The keys of `directories` are daemon names.

    `processes` use CUDA or wait to. `private_tmp` has the loaded units, and is None without systemd. If this command is
    `apart`, it is not in the host's PID namespace. `libcuda_probes` is None if launches are not counted.
    """

    config: Config
    node: Node = field(default_factory=Node)
    config_problem: str | None = None
    web_problem: str | None = None
    programs: Programs = field(default_factory=Programs)
    daemons: tuple[DaemonFacts, ...] = ()
    configured_logs: Mapping[str, Identity | None] = field(default_factory=dict)
    processes: Mapping[int, ProcessFacts] = field(default_factory=dict)
    directories: Mapping[str, DirectoryFacts] = field(default_factory=dict)
    private_tmp: Mapping[str, bool] | None = None
    exporter: ExporterProcess
    libcuda_probes: LibcudaProbesFacts | None = None
    apart: bool = False
    not_examined: tuple[NotExamined, ...] = ()

    def daemons_of(self, name: str) -> tuple[DaemonFacts, ...]:
        """Return the control daemons that run in one directory; normally there is one."""
        return tuple(each for each in self.daemons if each.name == name)

    def hidden(self, name: str) -> bool:
        """Return whether the daemon may run in a PID namespace that this command cannot see: it has a pid file."""
        has_pid_file = name in self.directories and self.directories[name].pid is not None
        return self.apart and has_pid_file and not self.daemons_of(name)

    def running(self) -> Iterator[tuple[Daemon, DaemonFacts]]:
        """Yield each running daemon of the node with the facts of its process."""
        for each in self.daemons:
            if each.name in self.node.daemons:
                yield self.node.daemons[each.name], each

    def clients_of(self, daemon: Daemon) -> Iterator[ProcessFacts]:
        """Yield the known processes that are connected to a daemon, or wait to."""
        pids = (*daemon.clients, *daemon.connections.queued)
        return (self.processes[pid] for pid in pids if pid in self.processes)


def cuda_processes(node: Node) -> Iterator[int]:
    """Yield the PIDs that use a GPU or MPS, except those of MPS itself."""
    listed = (each.pid for gpu in node.gpus.values() for each in gpu.reading.compute_processes or ())
    bypassing = chain(*(gpu.bypassing_processes for gpu in node.gpus.values()))
    clients = chain(*((*daemon.connections.queued, *daemon.clients) for daemon in node.daemons.values()))
    servers = set(chain(*(daemon.servers for daemon in node.daemons.values())))
    return (pid for pid in dict.fromkeys((*bypassing, *clients, *listed)) if pid > 0 and pid not in servers)


Find = Callable[[Facts], Iterator[Finding]]


@frozen_positional
class Check:
    """A function that finds one kind of mistake, and the mistake's entry in the catalogue.

    If one of the areas in `needs` was not fully examined, it is unknown whether the mistake is absent.
    """

    code: str
    definition: Definition
    find: Find
    needs: tuple[Area, ...]

    def finding(self, *facts: str, **others: Any) -> Finding:
        """Return the mistake with the processes, paths or GPUs that have it, and other fields of `Finding`."""
        return Finding(self, facts=facts, **others)


def check(defined_by: Severity | Problem, *needs: Area, page: str | None = None) -> Callable[[Find], Check]:
    """Make a check of a function that finds a problem of the catalogue, or a mistake that its docstring defines.

    The first sentence of that docstring is the summary, and the last paragraph the remedy. Between them is the meaning.
    """

    def made(find: Find) -> Check:
        if isinstance(defined_by, Problem):
            return Check(defined_by.code, defined_by.definition, find, needs)
        problem, _, remedy = (" ".join(each.split()) for each in cleandoc(find.__doc__ or "").rpartition("\n\n"))
        summary, meaning = re.split(r"(?<=[.]) ", problem, maxsplit=1)
        definition = Definition(
            label=find.__name__.replace("_", " "),
            summary=summary.rstrip("."),
            meaning=meaning,
            remedy=remedy,
            severity=defined_by,
            runbook=page,
        )
        return Check(find.__name__, definition, find, needs)

    return made


AS_ROOT = ("sudo cuda-mps-exporter doctor",)
ATTRIBUTION_AS_ROOT = ("sudo cuda-mps-exporter doctor --attribution=bpf",)
"""The service has the option from its unit, but a command in a shell does not."""
RESTART_EXPORTER = "systemctl daemon-reload && systemctl restart cuda-mps-exporter"

UNITS = "/opt/cuda-mps-exporter/share/cuda-mps-exporter/systemd"
"""Where the guide's installation has units and drop-ins; the operator may have no clone of the repository."""

DROP_INS = f"install -Dm 644 -t /etc/systemd/system/cuda-mps-exporter.service.d {UNITS}/cuda-mps-exporter.service.d"


def process_label(process: ProcessFacts) -> str:
    """Return a process as `PID 5120 (python3 of carol)`."""
    user = process.user or ("" if process.uid is None else f"UID {process.uid}")
    return process_text(process.pid, process.command, user)


def daemon_label(daemon: DaemonFacts) -> str:
    """Return a running daemon as `/run/nvidia-mps: PID 441 (nvidia-cuda-mps-control of root)`."""
    return f"{shown(daemon.name)}: {process_label(daemon.process)}"


def nvml_problem(facts: Facts) -> Reason | None:
    """Return why NVML does not work, if so."""
    source = facts.node.sources.get(CollectorName.NVML)
    return None if source is None else source.last.problem


def shown(text: str) -> str:
    """Return the printable form of a text from the node, such as a path or an error."""
    return printable(text, LONGEST_PROBLEM)


def quoted(text: str) -> str:
    """Return such a text as one word of a shell command."""
    return shlex.quote(shown(text))


def config_line(key: str, text: str) -> str:
    """Return a line of the configuration file."""
    return f"{key} = {json.dumps(shown(text), ensure_ascii=False)}"


def without_private_tmp(unit: str) -> str:
    """Return the command that gives a unit the /tmp of the host."""
    return f"systemctl edit {quoted(unit)}  # [Service] PrivateTmp=no"
