"""Read the facts once, with time limits, and record what could not be examined."""

import contextlib
import grp
import mmap
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from exporter.clock import Clock
from exporter.collectors.control_client import ControlClient
from exporter.collectors.daemon_processes import ControlDaemons
from exporter.collectors.kernel_log import KernelLog
from exporter.collectors.pipe_dir import FIFO, PID_FILE, Directory, Root, on_host
from exporter.collectors.proc import Proc
from exporter.collectors.systemd import Systemctl
from exporter.collectors.thread import BoundedCalls
from exporter.config.settings import Attribution, Config
from exporter.doctor.daemons import EXPORTER
from exporter.doctor.facts import (
    AS_ROOT,
    ATTRIBUTION_AS_ROOT,
    Area,
    DaemonFacts,
    DirectoryFacts,
    ExporterProcess,
    Facts,
    Identity,
    LibcudaProbesFacts,
    NotExamined,
    ProcessFacts,
    Programs,
    cuda_processes,
)
from exporter.errors import ConfigError
from exporter.model import settings
from exporter.model.daemon import Daemon
from exporter.model.node import CollectorName, Node
from exporter.model.observation import ProcessReading
from exporter.model.reason import Reason
from exporter.parse.cgroup import parse_cgroup
from exporter.parse.control_reply import VERSION_FLAG
from exporter.parse.proc import Capability, effective_capabilities, effective_user, group_ids, max_open_files
from exporter.parse.units import is_service_name
from exporter.report.node_findings import lost_gpus
from exporter.report.reasons import reason_text, source_text
from exporter.report.text import listed
from exporter.state.devices import serves_gpu, serving_daemons
from exporter.status_client import NAME, peer_of, unix_socket

Value = TypeVar("Value")

READ_SECONDS = 15.0
"""Long enough to read all processes, on a busy machine."""
TOTAL_SECONDS = 28.0

HUNG = "it did not answer in time: a process is stuck in the driver, or a file server does not respond"
NOT_TRIED = "other readings took too long"

_VARIABLES = (
    settings.PIPE_DIRECTORY,
    settings.LOG_DIRECTORY,
    settings.VISIBLE_DEVICES,
    settings.ACTIVE_THREAD_PERCENTAGE,
    settings.PINNED_MEMORY_LIMIT,
)
_MAX_NAMESPACES = 8
_VERSION = re.compile(r"binary version: ([0-9]{1,10})")
_PROPERTIES = ("Id", "LoadState", "PrivateTmp")
_MAX_UNITS = 64
_CONNECT_SECONDS = 2.0


class TimeLimit:
    """Stops to wait for a reading after some seconds. `problems` are why areas were not read: HUNG or NOT_TRIED."""

    def __init__(self, clock: Clock, seconds: float = READ_SECONDS, total: float = TOTAL_SECONDS) -> None:
        """No reading takes longer than `seconds`, and none begins after `total` seconds."""
        self._clock = clock
        self._seconds = seconds
        self._ends = clock.monotonic() + total
        self.problems: dict[Area, str] = {}

    def read(self, area: Area, read: Callable[[], Value]) -> Value | None:
        """Return what is read; None if a reading of the area hangs or was not tried. Raises what the reading raises."""
        left = self._ends - self._clock.monotonic()
        if left <= 0:
            self.problems.setdefault(area, NOT_TRIED)
        if area in self.problems:
            return None
        results: list[Value] = []
        BoundedCalls(min(self._seconds, left)).call(area, lambda: results.append(read()), None)
        if not results:
            self.problems[area] = HUNG
        return results[0] if results else None


# -- processes -----------------------------------------------------------------------------------------------------


def read_processes(pids: Iterable[int], proc: Proc) -> Mapping[int, ProcessFacts]:
    """Return the facts of those of these processes that exist and can be read."""
    read: dict[int, ProcessFacts] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            reading = proc.facts(pid)
            if reading is not None:
                read[pid] = read_process(reading, proc)
    return read


def read_process(reading: ProcessReading, proc: Proc) -> ProcessFacts:
    """Return the facts of a process. Of its environment, only the variables of MPS and CUDA are used."""
    pid, root = reading.pid, Root(proc, reading.pid, reading.start_ticks)
    variables = proc.variables(pid, _VARIABLES)
    owner = parse_cgroup(reading.cgroup or "")
    pipe = (variables or {}).get(settings.PIPE_DIRECTORY) or settings.DEFAULT_PIPE_DIRECTORY
    known = {each.name: getattr(reading, each.name) for each in fields(reading)}
    return ProcessFacts(
        **known | {"environment": variables},
        unit=owner.own_unit,
        container=owner.container or owner.pod_uid,
        pipe=None if variables is None else _identity(pipe, root),
        shared_memory=_identity("/dev/shm", root),  # noqa: S108 (only compared, not written to)
        logs=_identity((variables or {}).get(settings.LOG_DIRECTORY) or "", root),
        pid_namespaces=pid_namespaces(pid, proc),
    )


def read_daemons(names: Mapping[Identity | None, str], pids: Mapping[int, str], proc: Proc) -> tuple[DaemonFacts, ...]:
    """Return the control daemons that run in these pipe directories or have these PIDs, with their names."""
    daemons: list[DaemonFacts] = []
    for daemon in ControlDaemons(proc).all():
        process = read_process(daemon.facts, proc)
        name = pids.get(daemon.pid) or (None if process.pipe is None else names.get(process.pipe))
        if name is not None:
            facts = DaemonFacts(
                name=name,
                process=process,
                own_pid=daemon.own_pid,
                arguments=daemon.arguments,
                outdated=(proc.program(daemon.pid) or "").endswith(" (deleted)"),
                open_files=max_open_files(proc.text(daemon.pid, "limits") or ""),
                written=tuple(path for path in proc.open_files(daemon.pid) if ".log" in path),
            )
            daemons.append(facts)
    return tuple(daemons)


def pid_namespaces(pid: int, proc: Proc) -> tuple[int, ...]:
    """Return the inodes of a process's PID namespace and of its ancestors, as far as they are visible."""
    namespaces: list[int] = []
    for above in range(min(len(proc.namespaced_pids(pid)), _MAX_NAMESPACES)):
        namespace = proc.pid_namespace(pid, above)
        if namespace is None:
            break
        namespaces.append(namespace)
    return tuple(namespaces)


def _identity(path: str, root: Root | None = None) -> Identity | None:
    return Directory(Path(path), root).identity() if path.startswith("/") and "\0" not in path else None


# -- pipe directories ----------------------------------------------------------------------------------------------


def read_directory(daemon: Daemon, running: DaemonFacts | None, proc: Proc) -> DirectoryFacts:
    """Return the daemon's pipe directory as the running daemon sees it, else by its path in this mount namespace."""
    directories, problem = [Directory(Path(daemon.pipe_directory))], None
    ticks = None if running is None else proc.start_ticks(running.process.pid)
    if running is not None and running.process.environment is not None and ticks is not None:
        root = Root(proc, running.process.pid, ticks)
        directories.insert(0, Directory(Path(running.process.pipe_directory), root))
    for directory in directories:
        try:
            return _directory_facts(directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            problem = f"{directory.path}: {error.strerror}"
    return DirectoryFacts(path=daemon.pipe_directory, problem=problem)


def _directory_facts(directory: Directory) -> DirectoryFacts:
    files: dict[str, int] = {}
    with directory.opened() as descriptor:
        mode = os.fstat(descriptor).st_mode
        for name, is_kind in ((PID_FILE, stat.S_ISREG), (FIFO, stat.S_ISFIFO)):
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
                files |= {name: stat.S_IMODE(found)} if is_kind(found) else {}
    pipe_files, closed = directory.files(), directory.closed()
    return DirectoryFacts(
        path=_path_here(directory),
        closed=closed and _path_here(closed[0]),
        writable=bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX,
        pid=None if pipe_files is None else pipe_files.pid,
        pid_file_mode=files.get(PID_FILE),
        log_fifo_mode=files.get(FIFO),
    )


def _path_here(directory: Directory) -> str:
    """Return a path of the directory in this mount namespace; it may lead through the root of a process."""
    here = Directory(directory.path)
    return str(here) if here.identity() == directory.identity() else str(directory)


# -- programs and units --------------------------------------------------------------------------------------------


def read_programs(config: Config, path: str, clock: Clock) -> Programs:
    """Return the programs in this PATH. The query of the version does not reach a daemon."""
    control = shutil.which(config.constants.control_executable, path=path)
    if control is None:
        return Programs()
    server = shutil.which("nvidia-cuda-mps-server", path=os.pathsep.join((str(Path(control).parent), path)))
    nowhere = on_host("", Path("/"), Path("/"))
    client = ControlClient(
        nowhere, executable=control, deadline=config.constants.control_deadline, clock=clock, path=path
    )
    reply = client.send(VERSION_FLAG)
    version = _VERSION.search(reply.stdout)
    if reply.exit_code == 0:
        return Programs(control=control, server=server, version=version and version[1])
    problem = reply.stderr.strip() or ("no answer" if reply.exit_code is None else f"exit code {reply.exit_code}")
    return Programs(control=control, server=server, problem=problem)


def read_units(names: Iterable[str], systemctl: Systemctl) -> tuple[Mapping[str, bool] | None, Reason | None]:
    """Return which of these services are loaded, and whether their /tmp is private, or why that is unknown.

    Without systemd, there is no problem.
    """
    wanted = [name for name in dict.fromkeys(names) if name == EXPORTER or is_service_name(name)][:_MAX_UNITS]
    reply = systemctl.show(_PROPERTIES, *wanted)
    if not isinstance(reply, str):
        return None, reply
    blocks = reply.split("\n\n")
    values = [dict(line.split("=", 1) for line in block.split("\n") if "=" in line) for block in blocks]
    loaded = [unit for unit in values if unit.get("LoadState") == "loaded" and "Id" in unit]
    # Since systemd 257, the value may also be `disconnected`.
    return {unit["Id"]: unit.get("PrivateTmp", "") not in ("", "no") for unit in loaded}, None


# -- the exporter --------------------------------------------------------------------------------------------------


def read_exporter(config: Config, proc: Proc, clock: Clock) -> ExporterProcess:
    """Return the service's process and its rights; those of this process if no service runs."""
    pid, problem = _service(config.runtime_directory)
    status = None if pid is None else proc.status(pid)
    is_service = status is not None
    if pid is None or status is None:
        pid, status = os.getpid(), proc.status(os.getpid()) or ""
    user = effective_user(status)
    uid, groups = os.geteuid() if user is None else user, group_ids(status)
    capabilities = effective_capabilities(status)
    if is_service and uid != 0:
        kernel_log = None if capabilities >> Capability.SYSLOG & 1 else "it lacks CAP_SYSLOG"
    else:
        with contextlib.closing(KernelLog(config.constants.kmsg, clock)) as log:
            unread = log.open()
            kernel_log = None if unread is None else reason_text(unread, CollectorName.KERNEL)
    reads_journal = uid == 0
    with contextlib.suppress(KeyError):
        reads_journal |= grp.getgrnam("systemd-journal").gr_gid in groups
    return ExporterProcess(
        pid=pid,
        uid=uid,
        capabilities=capabilities,
        is_service=is_service,
        unanswering=problem,
        reads_journal=reads_journal,
        kernel_log=kernel_log,
        state_directory=str(config.state_directory),
        state_problem=_state_problem(config.state_directory, uid, groups, is_service=is_service),
        pid_namespaces=pid_namespaces(pid, proc),
    )


def _service(runtime_directory: Path) -> tuple[int | None, str | None]:
    """Return the PID that listens on the service's socket, or why it cannot be asked."""
    with unix_socket() as connection:
        connection.settimeout(_CONNECT_SECONDS)
        try:
            connection.connect(str(runtime_directory / NAME))
            return peer_of(connection)[0] or None, None
        except PermissionError as error:
            return None, error.strerror
        except OSError:
            return None, None


def _state_problem(directory: Path, uid: int, groups: frozenset[int], *, is_service: bool) -> str | None:
    """Return why the user cannot write to the state directory. It may be missing: the unit creates it."""
    try:
        found = directory.stat()
    except FileNotFoundError:
        return "it does not exist" if is_service and uid != 0 else None
    except OSError as error:
        return error.strerror
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a directory"
    if uid == 0 or (not is_service and os.access(directory, os.W_OK)):
        return None
    write = stat.S_IWUSR if found.st_uid == uid else stat.S_IWGRP if found.st_gid in groups else stat.S_IWOTH
    mode = stat.S_IMODE(found.st_mode)
    return None if found.st_mode & write else f"it belongs to UID {found.st_uid} and has mode {mode:04o}"


# -- the kernel ----------------------------------------------------------------------------------------------------


def read_libcuda_probes(pids: Iterable[int], proc: Proc, clock: Clock) -> LibcudaProbesFacts:
    """Return the facts about the kernel and the libraries of these processes. Only root can test the kernel."""
    from exporter.libcuda_probes.libraries import CUDA_MACHINES, Libraries

    machine = CUDA_MACHINES.get(os.uname().machine)
    tried = os.geteuid() == 0 or machine is None
    refused = kernel_refusal() if tried else None
    if machine is None:
        return LibcudaProbesFacts(refused=refused)
    with contextlib.closing(Libraries(proc, clock, machine)) as libraries:
        found = libraries.find(pids)
    paths = tuple(library.path for library in found.libraries)
    return LibcudaProbesFacts(tried=tried, refused=refused, libraries=paths, problems=found.problems)


def kernel_refusal() -> str | None:
    """Return why the kernel refuses the programs; None if it accepts them."""
    from exporter.libcuda_probes.loader import BpfError, Kernel
    from exporter.libcuda_probes.probes import PROBE_POINTS, LibcudaProbes
    from exporter.libcuda_probes.seccomp_check import check_seccomp

    file = os.memfd_create("probe-test")
    try:
        os.truncate(file, mmap.PAGESIZE)
        with contextlib.closing(LibcudaProbes(Kernel(), boot_ns=lambda: 0, sms=1)) as probes:
            probes.attach(f"/proc/self/fd/{file}", {PROBE_POINTS[0].name: 0})
            check_seccomp(probes, os.uname().machine)
    except BpfError as error:
        return str(error)
    finally:
        os.close(file)
    return None


MAX_PROCESSES = 512
"""How many CUDA processes are examined."""

_LIST_HUNG = ("ps -eo pid,stat,wchan:32,comm | awk '$2 ~ /D/'",)


def gather(
    config: Config, path: str, clock: Clock, *, collect: Callable[[Config], Node], config_problem: str | None
) -> Facts:
    """Return all facts. `path` is the PATH of programs. `config_problem` is why the configuration is unusable."""
    proc, limit = Proc(config.constants.procfs, clock), TimeLimit(clock)
    web_problem = None
    try:
        if config.web_config_file is not None:
            from exporter.web.web_config import WebSecurity

            WebSecurity(config.web_config_file)
    except ConfigError as error:
        web_problem = str(error)
    programs = read_programs(config, path, clock)
    node = collect(config)
    known = node.daemons.values()
    by_identity = limit.read(Area.DIRECTORIES, lambda: {_identity(each.pipe_directory): each.name for each in known})
    processes_of_daemons = ((daemon.runtime.process, daemon.name) for daemon in known)
    by_pid = {process.pid: name for process, name in processes_of_daemons if process and process.pid}
    daemons = limit.read(Area.DAEMONS, lambda: read_daemons(by_identity or {}, by_pid, proc)) or ()
    first = {daemon.name: daemon for daemon in reversed(daemons)}
    pids = tuple(islice(cuda_processes(node), MAX_PROCESSES))
    processes = limit.read(Area.PROCESSES, lambda: read_processes(pids, proc)) or {}
    every = [(daemon, first.get(daemon.name)) for daemon in known if daemon.has_directory]
    directories = limit.read(Area.DIRECTORIES, lambda: {d.name: read_directory(d, run, proc) for d, run in every}) or {}
    of_daemons = chain.from_iterable((daemon.declared.unit, daemon.runtime.unit) for daemon in known)
    units = filter(None, (EXPORTER, *of_daemons, *(process.unit for process in processes.values())))
    private_tmp, unit_problem = read_units(units, Systemctl(clock, path=path))
    probes = None
    if config.attribution is Attribution.BPF:
        servers = chain(*(daemon.servers for daemon in known))
        probes = limit.read(Area.LAUNCHES, lambda: read_libcuda_probes((*pids, *servers), proc, clock))
    logs = {each.name: str(each.log_directory) for each in config.daemons}
    facts = Facts(
        config=config,
        node=node,
        config_problem=config_problem,
        web_problem=web_problem,
        programs=programs,
        daemons=daemons,
        configured_logs=limit.read(Area.DIRECTORIES, lambda: {name: _identity(logs[name]) for name in logs}) or {},
        processes=processes,
        directories=directories,
        private_tmp=private_tmp,
        exporter=read_exporter(config, proc, clock),
        libcuda_probes=probes,
        apart=proc.is_apart,
    )
    lacking = [*not_examined(facts)]
    for area, reason in limit.problems.items():
        fix, commands = ("Find the process that hangs.", _LIST_HUNG) if reason == HUNG else ("", ())
        lacking.append(NotExamined(area=area, reason=reason, fix=fix, commands=commands))
    if unit_problem is not None:
        lacking.append(_needs_root(Area.UNITS, reason_text(unit_problem, "units")))
    return replace(facts, not_examined=tuple(lacking))


def not_examined(facts: Facts) -> Iterator[NotExamined]:
    """Yield what these facts lack."""
    node, programs, probes = facts.node, facts.programs, facts.libcuda_probes
    if programs.control is None or programs.problem is not None:
        reason = "daemons cannot be queried without nvidia-cuda-mps-control"
        yield NotExamined(area=Area.PROGRAMS, reason=reason, reported=True)
    if any(lost_gpus(node)) or any(gpu.reading.problem is not None for gpu in node.gpus.values()):
        yield NotExamined(area=Area.GPUS, reason="NVML returns an error for a GPU", reported=True)
    elif not node.gpus and (
        CollectorName.NVML not in node.sources or node.sources[CollectorName.NVML].last.problem is not None
    ):
        yield NotExamined(area=Area.GPUS, reason="NVML does not work", reported=True)
    for daemon, _ in facts.running():
        reported = daemon.runtime.log_is_lost or bool(daemon.log.failing)
        if reported or not daemon.log.problems:
            reason = f"that of {daemon.name} was not read"
            yield NotExamined(area=Area.LOGS, reason=reason, commands=AS_ROOT, reported=reported)
    unread = "; ".join(directory.problem for directory in facts.directories.values() if directory.problem)
    if unread:
        yield _needs_root(Area.DIRECTORIES, unread)
    for name, area in ((CollectorName.DISCOVERY, Area.DAEMONS), ("units", Area.UNITS)):
        source = node.sources.get(name)
        if source is not None and source.last.problem is not None:
            yield _needs_root(area, source_text(name, source))
    if facts.exporter.unanswering is not None:
        reason = f"{facts.config.runtime_directory} cannot be opened ({facts.exporter.unanswering})"
        yield _needs_root(Area.RIGHTS, f"{reason}, so the report has the rights of this command")
    if probes is not None and not probes.tried:
        yield NotExamined(area=Area.LAUNCHES, reason="only root can test the kernel", commands=ATTRIBUTION_AS_ROOT)
    of_daemons = [each.process for each in facts.daemons]
    for area, processes in ((Area.DAEMONS, of_daemons), (Area.PROCESSES, facts.processes.values())):
        without = [process for process in processes if process.environment is None]
        # If the root of a process can be opened, its environment can be read.
        overwritten = [str(process.pid) for process in without if process.shared_memory is not None]
        unreadable = [str(process.pid) for process in without if process.shared_memory is None]
        if unreadable:
            yield _needs_root(area, f"the environment of PID {listed(unreadable, 5)} cannot be read")
        if overwritten:
            reason = f"PID {listed(overwritten, 5)} has overwritten its environment, as with a process title"
            yield NotExamined(area=area, reason=reason, fix="See where the process is started.")
    unknown = [gpu.reading for gpu in node.gpus.values() if not gpu.bypassing_known and not gpu.reading.mig_mode]
    unseen = [each for each in node.daemons.values() if each.is_reported(node.at) and not each.runtime.seen_on]
    if any(any(serving_daemons(node, reading)) for reading in unknown):
        reason = "bypassing processes are unknown while a daemon does not list its servers"
        yield NotExamined(area=Area.PROCESSES, reason=reason, reported=True)
    elif any(serves_gpu(node, daemon, reading) is None for daemon in unseen for reading in unknown):
        reason = "the GPUs of a daemon, and so processes that bypass it, are unknown until its first client connects"
        yield NotExamined(area=Area.PROCESSES, reason=reason)
    if sum(1 for _ in cuda_processes(node)) > MAX_PROCESSES:
        reason = f"there are more than {MAX_PROCESSES} CUDA processes"
        yield NotExamined(
            area=Area.PROCESSES, reason=reason, fix="The findings are valid for those that were examined."
        )


def _needs_root(area: Area, reason: str) -> NotExamined:
    return NotExamined(area=area, reason=reason, commands=AS_ROOT)
