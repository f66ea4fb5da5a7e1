"""Reads the facts. A reader never raises; it reports what it could not read."""

import grp
import mmap
import os
import re
import shutil
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from exporter.clock import Clock
from exporter.collectors.child import Systemctl
from exporter.collectors.control import ControlClient
from exporter.collectors.control_daemons import ControlDaemon, ControlDaemons
from exporter.collectors.kernel_log import KernelLog
from exporter.collectors.pipe_dir import Directory, Root
from exporter.collectors.proc import Proc
from exporter.config.settings import Config
from exporter.doctor.facts import (
    Area,
    Capability,
    DaemonFacts,
    DoorsFacts,
    ExporterRights,
    Holder,
    Identity,
    ProcessFacts,
    Programs,
    UnitFacts,
)
from exporter.libcuda_probes.libraries import Libraries, machine_named
from exporter.libcuda_probes.loader import BpfError, Kernel
from exporter.libcuda_probes.probe_points import PROBE_POINTS
from exporter.libcuda_probes.probes import LibcudaProbes
from exporter.libcuda_probes.seccomp_check import check_seccomp
from exporter.model.observation import ProcessReading
from exporter.model.problem import Problem
from exporter.model.settings import (
    ACTIVE_THREAD_PERCENTAGE,
    DEFAULT_PIPE_DIRECTORY,
    LOG_DIRECTORY,
    PINNED_MEMORY_LIMIT,
    PIPE_DIRECTORY,
    VISIBLE_DEVICES,
)
from exporter.parse.cgroup import parse_cgroup
from exporter.parse.control_reply import VERSION_FLAG
from exporter.parse.proc import (
    TcpListener,
    effective_capabilities,
    effective_user,
    group_ids,
    max_open_files,
    tcp_listeners,
)
from exporter.parse.unit_name import is_service_name
from exporter.report.problem_text import problem_text
from exporter.state.xids import KERNEL
from exporter.status_client import NAME

Value = TypeVar("Value")

PATIENCE_SECONDS = 15.0
"""Enough for all that are looked into, on a busy machine."""


def in_time(seconds: float, read: Callable[[], Value]) -> Value | None:
    """What is read; None where that takes longer. What hangs is left to hang, and keeps nobody from ending."""
    brought: Future[Value] = Future()
    threading.Thread(target=lambda: _bring(read, brought), name="read", daemon=True).start()
    try:
        return brought.result(timeout=seconds)
    except TimeoutError:
        return None


def _bring(read: Callable[[], Value], brought: Future[Value]) -> None:
    """Whatever goes wrong is for who waits: an error is not to look like a hang."""
    try:
        brought.set_result(read())
    except Exception as error:  # noqa: BLE001 (it is raised again, by who waits)
        brought.set_exception(error)


class Patience:
    """Has each reading wait for no more than its time, and knows of which areas one hung."""

    def __init__(self, seconds: float = PATIENCE_SECONDS) -> None:
        self._seconds = seconds
        self.hung: list[Area] = []

    def read(self, area: Area, read: Callable[[], Value]) -> Value | None:
        """What is read; None where that hangs, or one of the same area did before."""
        found = None if area in self.hung else in_time(self._seconds, read)
        if found is None and area not in self.hung:
            self.hung.append(area)
        return found


def read_doors(pids: Iterable[int], proc: Proc, clock: Clock) -> DoorsFacts:
    """Return the facts about the kernel and the libraries of these processes. Only root can test the kernel."""
    machine = machine_named(os.uname().machine)
    tried = os.geteuid() == 0 or machine is None
    refused = kernel_refusal() if tried else None
    if machine is None:
        return DoorsFacts(refused=refused)
    libraries = Libraries(proc, clock, machine)
    try:
        found = libraries.find(pids)
    finally:
        libraries.close()
    paths = tuple(each.path for each in found.libraries)
    return DoorsFacts(tried=tried, refused=refused, libraries=paths, problems=found.problems)


def kernel_refusal() -> str | None:
    """Return why the kernel refuses the programs; None if it accepts them."""
    file = os.memfd_create("probe-test")
    try:
        os.truncate(file, mmap.PAGESIZE)
        probes = LibcudaProbes(Kernel(), boot_ns=lambda: 0, sms=1)
        try:
            probes.attach(f"/proc/self/fd/{file}", {PROBE_POINTS[0].name: 0})
            check_seccomp(probes, os.uname().machine)
        finally:
            probes.close()
    except BpfError as error:
        return str(error)
    finally:
        os.close(file)
    return None


_MOST_SOCKET_BYTES = 1 << 22


def read_holders(config: Config, watcher: ExporterRights, proc: Proc) -> tuple[tuple[Holder, ...], str | None]:
    """Who holds the addresses, and what kept that from being seen; systemd may hold them for the service."""
    wanted = [] if config.systemd_socket else [each for each in config.listen if each[1]]
    if not wanted:
        return (), None
    tables = _tables(config.constants.procfs)
    if tables is None:
        return (), "the table of sockets (/proc/net/tcp) cannot be read"
    there = [listener for table in tables for listener in tcp_listeners(table)]
    holders = tuple(_holders(wanted, there, watcher, _inodes(watcher, proc)))
    if holders and watcher.unanswering is not None:
        return (), "a service seems to run, and cannot be asked whether it is that which listens there"
    return holders, None


def _tables(proc: Path) -> tuple[str, ...] | None:
    """Return the tables of TCP sockets of this process's network namespace; None if they cannot be read."""
    tables: list[str] = []
    for name in ("tcp", "tcp6"):
        try:
            with (proc / "self" / "net" / name).open("rb") as file:
                tables.append(file.read(_MOST_SOCKET_BYTES).decode(errors="replace"))
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return tuple(tables) or None


def _holders(
    wanted: list[tuple[str, int]], there: list[TcpListener], watcher: ExporterRights, ours: frozenset[int] | None
) -> Iterator[Holder]:
    for host, port in wanted:
        holder = next((each for each in there if each.conflicts_with(host, port)), None)
        if holder is not None:
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            mine = holder.uid == watcher.uid if ours is None else holder.inode in ours
            yield Holder(address=address, uid=holder.uid, is_service=watcher.is_service and mine)


def _inodes(watcher: ExporterRights, proc: Proc) -> frozenset[int] | None:
    """The sockets that the service has; None where that may not be seen, so that its user must do."""
    named = (path for path in proc.open_files(watcher.pid) if path.startswith("socket:["))
    inodes = frozenset(int(path[8:-1]) for path in named if path[8:-1].isdecimal())
    return inodes or None


_VARIABLES = (PIPE_DIRECTORY, LOG_DIRECTORY, VISIBLE_DEVICES, ACTIVE_THREAD_PERCENTAGE, PINNED_MEMORY_LIMIT)
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (where MPS meets its clients, not a place to write)
_DELETED = " (deleted)"
_MOST_NAMESPACES = 8


def read_processes(pids: Iterable[int], proc: Proc) -> Mapping[int, ProcessFacts]:
    """Those of these processes that there are."""
    read = ((pid, proc.facts(pid)) for pid in pids)
    return {pid: read_process(reading, proc) for pid, reading in read if reading is not None}


def read_process(reading: ProcessReading, proc: Proc) -> ProcessFacts:
    """Who a process is, and what it has to do with MPS; nothing else of its environment is kept."""
    pid, root = reading.pid, Root(proc, reading.pid, reading.start_ticks)
    variables = proc.variables(pid, _VARIABLES)
    owner = parse_cgroup(reading.cgroup or "")
    pipe = (variables or {}).get(PIPE_DIRECTORY) or DEFAULT_PIPE_DIRECTORY
    return ProcessFacts(
        pid=pid,
        uid=reading.uid,
        user=reading.user,
        command=reading.command,
        unit=owner.unit,
        container=owner.container or owner.pod_uid,
        variables=variables,
        pipe=None if variables is None else _identity(pipe, root),
        shared_memory=_identity(str(_SHARED_MEMORY), root),
        pid_namespaces=pid_namespaces(pid, proc),
    )


def read_daemons(names: Mapping[Identity, str], pids: Mapping[int, str], proc: Proc) -> tuple[DaemonFacts, ...]:
    """The control daemons that run in these directories, or are known by their PIDs, with what they are called."""
    found: list[DaemonFacts] = []
    for daemon in ControlDaemons(proc).all():
        process = read_process(daemon.facts, proc)
        name = pids.get(daemon.pid) or (None if process.pipe is None else names.get(process.pipe))
        if name is not None:
            found.append(_daemon(name, daemon, process, proc))
    return tuple(found)


def pid_namespaces(pid: int, proc: Proc) -> tuple[int, ...]:
    """The inodes of a process's PID namespace, and of those around it, as far as they may be seen."""
    found: list[int] = []
    for above in range(min(len(proc.namespaced_pids(pid)), _MOST_NAMESPACES)):
        namespace = proc.pid_namespace(pid, above)
        if namespace is None:
            break
        found.append(namespace)
    return tuple(found)


def _daemon(name: str, daemon: ControlDaemon, process: ProcessFacts, proc: Proc) -> DaemonFacts:
    root = Root(proc, daemon.pid, daemon.facts.start_ticks)
    logs = (process.variables or {}).get(LOG_DIRECTORY)
    return DaemonFacts(
        name=name,
        process=process,
        own_pid=daemon.own_pid,
        arguments=daemon.arguments,
        replaced=(proc.program(daemon.pid) or "").endswith(_DELETED),
        open_files=max_open_files(proc.text(daemon.pid, "limits") or ""),
        logs=None if logs is None else _identity(logs, root),
    )


def _identity(path: str, root: Root) -> Identity | None:
    """Which directory a path is, from where a process stands."""
    return Directory(Path(path), root).identity() if path.startswith("/") and "\0" not in path else None


_SERVER = "nvidia-cuda-mps-server"
_SAID = re.compile(r"binary version: ([0-9]{1,10})")


def read_programs(config: Config, path: str, clock: Clock) -> Programs:
    """The programs by the PATH of whoever looks. That for the version does not reach a daemon."""
    control = shutil.which(config.constants.control_executable, path=path)
    if control is None:
        return Programs()
    server = shutil.which(_SERVER, path=os.pathsep.join((str(Path(control).parent), path)))
    client = ControlClient(
        "", Path("/"), executable=control, deadline=config.constants.control_deadline, clock=clock, path=path
    )
    reply = client.ask(VERSION_FLAG)
    if reply.exit_code == 0:
        said = _SAID.search(reply.stdout)
        return Programs(control=control, server=server, version=None if said is None else said[1])
    problem = reply.stderr.strip() or ("no answer" if reply.exit_code is None else f"exit code {reply.exit_code}")
    return Programs(control=control, server=server, problem=problem)


_PROPERTIES = ("Id", "LoadState", "PrivateTmp")
_MOST_UNITS = 64
_NO = ("", "no")


def read_units(names: Iterable[str], systemctl: Systemctl) -> tuple[Mapping[str, UnitFacts] | None, Problem | None]:
    """Those of these services that are loaded, and the problem that kept them from being shown.

    Where systemd does not run nobody tells; that is no problem.
    """
    wanted = [name for name in dict.fromkeys(names) if is_service_name(name)][:_MOST_UNITS]
    shown = systemctl.show(_PROPERTIES, *wanted)
    if shown.text is None:
        return None, shown.problem
    blocks = shown.text.split("\n\n")
    values = [dict(line.split("=", 1) for line in block.split("\n") if "=" in line) for block in blocks]
    loaded = (each for each in values if each.get("LoadState") == "loaded" and "Id" in each)
    # From systemd 257 on there is `disconnected` beside `yes`.
    units = (UnitFacts(name=each["Id"], private_tmp=each.get("PrivateTmp", "") not in _NO) for each in loaded)
    return {unit.name: unit for unit in units}, None


_CREDENTIALS = struct.Struct("3i")
_PATIENCE_SECONDS = 2.0
_JOURNAL_GROUP = "systemd-journal"


@dataclass(frozen=True, slots=True)
class _Service:
    """Who answers at the service's socket; the `problem` where somebody does, and may not be asked."""

    pid: int | None = None
    problem: str | None = None


def read_watcher(config: Config, proc: Proc, clock: Clock) -> ExporterRights:
    """Who watches, and what they may."""
    service = _service(config.runtime_directory)
    status = None if service.pid is None else proc.status(service.pid)
    is_service = status is not None and service.pid is not None
    pid = service.pid if is_service and service.pid is not None else os.getpid()
    told = status if status is not None else proc.status(os.getpid()) or ""
    uid = effective_user(told)
    uid = os.geteuid() if uid is None else uid
    capabilities = effective_capabilities(told)
    member_of = group_ids(told)
    return ExporterRights(
        pid=pid,
        uid=uid,
        groups=member_of,
        capabilities=capabilities,
        is_service=is_service,
        unanswering=service.problem,
        journal_group=_group(_JOURNAL_GROUP),
        kernel_log=_of_service(capabilities) if is_service and uid != 0 else _kernel_log(config, clock),
        state_directory=str(config.state_directory),
        state_problem=_state_problem(config.state_directory, uid, member_of, is_service=is_service),
        pid_namespaces=pid_namespaces(pid, proc),
    )


def _service(runtime_directory: Path) -> _Service:
    """Who listens at the service's socket, by the kernel's word (SO_PEERCRED, unix(7))."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(_PATIENCE_SECONDS)
        try:
            connection.connect(str(runtime_directory / NAME))
            told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except PermissionError as error:
            return _Service(problem=error.strerror)
        except OSError:
            return _Service()
        pid, _, _ = _CREDENTIALS.unpack(told)
        return _Service(pid=int(pid) or None)


def _group(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def _kernel_log(config: Config, clock: Clock) -> str | None:
    log = KernelLog(config.constants.kmsg, clock)
    try:
        problem = log.open()
        return None if problem is None else problem_text(problem, KERNEL)
    finally:
        log.close()


def _of_service(capabilities: int) -> str | None:
    return None if capabilities >> Capability.SYSLOG & 1 else "it lacks CAP_SYSLOG"


def _state_problem(directory: Path, uid: int, member_of: frozenset[int], *, is_service: bool) -> str | None:
    """Why the state directory cannot be written to by that user; the unit makes it, so where none runs, it may lack."""
    try:
        found = directory.stat()
    except FileNotFoundError:
        return "it is not there" if is_service and uid != 0 else None
    except OSError as error:
        return error.strerror
    if not stat.S_ISDIR(found.st_mode):
        return "it is no directory"
    if uid == 0 or (not is_service and os.access(directory, os.W_OK)):
        return None
    mine = stat.S_IWUSR if found.st_uid == uid else stat.S_IWGRP if found.st_gid in member_of else stat.S_IWOTH
    return None if found.st_mode & mine else f"it is UID {found.st_uid}'s, mode {stat.S_IMODE(found.st_mode):04o}"
