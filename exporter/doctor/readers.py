"""Readers of processes, programs, units, sockets and rights. A reader never raises: it returns the problem."""

import contextlib
import grp
import mmap
import os
import re
import shutil
import socket
import stat
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from exporter.clock import Clock
from exporter.collectors.control_client import ControlClient
from exporter.collectors.daemon_processes import ControlDaemon, ControlDaemons
from exporter.collectors.kernel_log import MAX_RECORDS, KernelLog, last_records
from exporter.collectors.pipe_dir import Directory, Root, on_host
from exporter.collectors.proc import Proc
from exporter.collectors.thread import BoundedCalls
from exporter.collectors.units import Systemctl
from exporter.config.settings import Config
from exporter.doctor.directory_readers import read_namespaces
from exporter.doctor.facts import (
    Area,
    DaemonFacts,
    ExporterProcess,
    Identity,
    LibcudaProbesFacts,
    Listener,
    ProcessFacts,
    Programs,
)
from exporter.libcuda_probes.libraries import CUDA_MACHINES, Libraries
from exporter.libcuda_probes.loader import BpfError, Kernel
from exporter.libcuda_probes.probes import PROBE_POINTS, LibcudaProbes
from exporter.libcuda_probes.seccomp_check import check_seccomp
from exporter.model.node import Node
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
from exporter.parse.kernel_log import parse_bus_id, parse_kernel_record, parse_xid
from exporter.parse.printable import is_service_name
from exporter.parse.proc import (
    Capability,
    effective_capabilities,
    effective_user,
    group_ids,
    max_open_files,
    tcp_listeners,
)
from exporter.parse.xid_catalogue import exonerates
from exporter.report.problem_text import problem_text
from exporter.state.xids import KERNEL
from exporter.status_client import NAME

Value = TypeVar("Value")

READ_SECONDS = 15.0
"""Long enough to read all processes, on a busy machine."""
TOTAL_SECONDS = 28.0

_MAX_SOCKET_BYTES = 1 << 22
_VARIABLES = (PIPE_DIRECTORY, LOG_DIRECTORY, VISIBLE_DEVICES, ACTIVE_THREAD_PERCENTAGE, PINNED_MEMORY_LIMIT)
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 (only compared, not written to)
_DELETED = " (deleted)"
_MAX_NAMESPACES = 8
_SERVER = "nvidia-cuda-mps-server"
_VERSION = re.compile(r"binary version: ([0-9]{1,10})")
_PROPERTIES = ("Id", "LoadState", "PrivateTmp")
_MAX_UNITS = 64
_CREDENTIALS = struct.Struct("3i")
_CONNECT_SECONDS = 2.0
_JOURNAL_GROUP = "systemd-journal"


class TimeLimit:
    """Stops to wait for a reading after some seconds, and remembers the areas in which one hung or was not tried."""

    def __init__(self, clock: Clock, seconds: float = READ_SECONDS, total: float = TOTAL_SECONDS) -> None:
        """No reading takes longer than `seconds`, and none begins after `total` seconds."""
        self._clock = clock
        self._seconds = seconds
        self._ends = clock.monotonic() + total
        self.hung: list[Area] = []
        self.not_tried: list[Area] = []

    def read(self, area: Area, read: Callable[[], Value]) -> Value | None:
        """Return what is read; None if a reading of the area hangs or was not tried. Raises what the reading raises."""
        left = self._ends - self._clock.monotonic()
        if area in (*self.hung, *self.not_tried):
            return None
        if left <= 0:
            self.not_tried.append(area)
            return None
        results: list[Value] = []
        BoundedCalls(min(self._seconds, left)).call(area, lambda: results.append(read()), None)
        if not results:
            self.hung.append(area)
        return results[0] if results else None


def read_libcuda_probes(pids: Iterable[int], proc: Proc, clock: Clock) -> LibcudaProbesFacts:
    """Return the facts about the kernel and the libraries of these processes. Only root can test the kernel."""
    machine = CUDA_MACHINES.get(os.uname().machine)
    tried = os.geteuid() == 0 or machine is None
    refused = kernel_refusal() if tried else None
    if machine is None:
        return LibcudaProbesFacts(refused=refused)
    libraries = Libraries(proc, clock, machine)
    try:
        found = libraries.find(pids)
    finally:
        libraries.close()
    paths = tuple(each.path for each in found.libraries)
    return LibcudaProbesFacts(tried=tried, refused=refused, libraries=paths, problems=found.problems)


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


def read_listeners(config: Config, exporter: ExporterProcess, proc: Proc) -> tuple[tuple[Listener, ...], str | None]:
    """Return the processes that listen on the exporter's addresses, and why they are unknown."""
    # With a systemd socket, systemd listens for the service.
    wanted = [] if config.systemd_socket else [each for each in config.listen if each[1]]
    if not wanted:
        return (), None
    tables = _socket_tables(config.constants.procfs)
    if tables is None:
        return (), "the table of sockets (/proc/net/tcp) cannot be read"
    sockets = [each for table in tables for each in tcp_listeners(table)]
    links = (path for path in proc.open_files(exporter.pid) if path.startswith("socket:["))
    own = {int(path[8:-1]) for path in links if path[8:-1].isdecimal()}
    listeners: list[Listener] = []
    for host, port in wanted:
        found = next((each for each in sockets if each.conflicts_with(host, port)), None)
        if found is not None:
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            # If the sockets of the service cannot be read, its user decides.
            is_own = found.inode in own if own else found.uid == exporter.uid
            listeners.append(Listener(address=address, uid=found.uid, is_service=exporter.is_service and is_own))
    if listeners and exporter.unanswering is not None:
        return (), "a service seems to run, and cannot be asked whether it listens there"
    return tuple(listeners), None


def _socket_tables(proc: Path) -> tuple[str, ...] | None:
    """Return the tables of TCP sockets of this process's network namespace; None if they cannot be read."""
    tables: list[str] = []
    for name in ("tcp", "tcp6"):
        try:
            with (proc / "self" / "net" / name).open("rb") as file:
                tables.append(file.read(_MAX_SOCKET_BYTES).decode(errors="replace"))
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return tuple(tables) or None


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
        shared_memory=_identity(_SHARED_MEMORY, root),
        pid_namespaces=pid_namespaces(pid, proc),
    )


def read_daemons(names: Mapping[Identity, str], pids: Mapping[int, str], proc: Proc) -> tuple[DaemonFacts, ...]:
    """Return the control daemons that run in these pipe directories or have these PIDs, with their names."""
    found: list[DaemonFacts] = []
    for daemon in ControlDaemons(proc).all():
        process = read_process(daemon.facts, proc)
        name = pids.get(daemon.pid) or (None if process.pipe is None else names.get(process.pipe))
        if name is not None:
            found.append(_daemon(name, daemon, process, proc))
    return tuple(found)


def _daemon(name: str, daemon: ControlDaemon, process: ProcessFacts, proc: Proc) -> DaemonFacts:
    logs, root = process.variable(LOG_DIRECTORY), Root(proc, daemon.pid, daemon.facts.start_ticks)
    return DaemonFacts(
        name=name,
        process=process,
        own_pid=daemon.own_pid,
        arguments=daemon.arguments,
        outdated=(proc.program(daemon.pid) or "").endswith(_DELETED),
        open_files=max_open_files(proc.text(daemon.pid, "limits") or ""),
        logs=None if logs is None else _identity(logs, root),
        namespaces=read_namespaces(process.pipe_directory, root),
    )


def pid_namespaces(pid: int, proc: Proc) -> tuple[int, ...]:
    """Return the inodes of a process's PID namespace and of its ancestors, as far as they are visible."""
    found: list[int] = []
    for above in range(min(len(proc.namespaced_pids(pid)), _MAX_NAMESPACES)):
        namespace = proc.pid_namespace(pid, above)
        if namespace is None:
            break
        found.append(namespace)
    return tuple(found)


def _identity(path: str, root: Root) -> Identity | None:
    return Directory(Path(path), root).identity() if path.startswith("/") and "\0" not in path else None


def read_programs(config: Config, path: str, clock: Clock) -> Programs:
    """Return the programs in this PATH. The query of the version does not reach a daemon."""
    control = shutil.which(config.constants.control_executable, path=path)
    if control is None:
        return Programs()
    server = shutil.which(_SERVER, path=os.pathsep.join((str(Path(control).parent), path)))
    nowhere = on_host("", Path("/"), Path("/"))
    client = ControlClient(
        nowhere, executable=control, deadline=config.constants.control_deadline, clock=clock, path=path
    )
    reply = client.send(VERSION_FLAG)
    if reply.exit_code == 0:
        found = _VERSION.search(reply.stdout)
        return Programs(control=control, server=server, version=None if found is None else found[1])
    problem = reply.stderr.strip() or ("no answer" if reply.exit_code is None else f"exit code {reply.exit_code}")
    return Programs(control=control, server=server, problem=problem)


def read_units(names: Iterable[str], systemctl: Systemctl) -> tuple[Mapping[str, bool] | None, Problem | None]:
    """Return which of these services are loaded, and whether their /tmp is private, or why that is unknown.

    Without systemd, there is no problem.
    """
    wanted = [name for name in dict.fromkeys(names) if is_service_name(name)][:_MAX_UNITS]
    reply = systemctl.show(_PROPERTIES, *wanted)
    if reply.text is None:
        return None, reply.problem
    blocks = reply.text.split("\n\n")
    values = [dict(line.split("=", 1) for line in block.split("\n") if "=" in line) for block in blocks]
    loaded = [each for each in values if each.get("LoadState") == "loaded" and "Id" in each]
    # Since systemd 257, the value may also be `disconnected`.
    return {each["Id"]: each.get("PrivateTmp", "") not in ("", "no") for each in loaded}, None


def read_exporter(config: Config, proc: Proc, clock: Clock) -> ExporterProcess:
    """Return the service's process and its rights; those of this process if no service runs."""
    pid, problem = _service(config.runtime_directory)
    status = None if pid is None else proc.status(pid)
    is_service = status is not None
    if pid is None or status is None:
        pid, status = os.getpid(), proc.status(os.getpid()) or ""
    found = effective_user(status)
    uid = os.geteuid() if found is None else found
    groups = group_ids(status)
    capabilities = effective_capabilities(status)
    return ExporterProcess(
        pid=pid,
        uid=uid,
        groups=groups,
        capabilities=capabilities,
        is_service=is_service,
        unanswering=problem,
        journal_group=_group(_JOURNAL_GROUP),
        kernel_log=_service_kernel_log(capabilities) if is_service and uid != 0 else _kernel_log(config, clock),
        state_directory=str(config.state_directory),
        state_problem=_state_problem(config.state_directory, uid, groups, is_service=is_service),
        pid_namespaces=pid_namespaces(pid, proc),
    )


def _service(runtime_directory: Path) -> tuple[int | None, str | None]:
    """Return the PID that listens on the service's socket (SO_PEERCRED, unix(7)), or why it cannot be asked."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(_CONNECT_SECONDS)
        try:
            connection.connect(str(runtime_directory / NAME))
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except PermissionError as error:
            return None, error.strerror
        except OSError:
            return None, None
    pid, _, _ = _CREDENTIALS.unpack(credentials)
    return int(pid) or None, None


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


def read_xids(
    node: Node, kernel_log: Path, read: Callable[[Path, int], Iterable[str]] = last_records
) -> Mapping[str, int]:
    """Return the last Xid of each GPU, by UUID, that the kernel still stores and that no program causes."""
    addresses = {parse_bus_id(gpu.reading.pci_bus_id or ""): uuid for uuid, gpu in node.gpus.items()}
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for record in filter(None, map(parse_kernel_record, read(kernel_log, MAX_RECORDS))):
            xid = parse_xid(record.message)
            if xid is not None and xid.bus_id in addresses and exonerates(xid.number):
                found[addresses[xid.bus_id]] = xid.number
    return found


def _service_kernel_log(capabilities: int) -> str | None:
    return None if capabilities >> Capability.SYSLOG & 1 else "it lacks CAP_SYSLOG"


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
