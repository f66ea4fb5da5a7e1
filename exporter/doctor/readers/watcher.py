"""Reads whose rights count: those of the service, where one runs, else of whoever looks."""

import grp
import os
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from exporter.clock import Clock
from exporter.config import Config
from exporter.core.xids import KERNEL
from exporter.doctor.capability import Capability
from exporter.doctor.facts import Watcher
from exporter.doctor.readers.processes import pid_namespaces
from exporter.parse.proc import effective_capabilities, effective_user, group_ids
from exporter.service_client import NAME
from exporter.sources.kernel import KernelLog
from exporter.sources.proc import Proc
from exporter.telling.problem_text import problem_text

_CREDENTIALS = struct.Struct("3i")
_PATIENCE_SECONDS = 2.0
_JOURNAL_GROUP = "systemd-journal"


@dataclass(frozen=True, slots=True)
class _Service:
    """Who answers at the service's socket; the `problem` where somebody does, and may not be asked."""

    pid: int | None = None
    problem: str | None = None


def read_watcher(config: Config, proc: Proc, clock: Clock) -> Watcher:
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
    return Watcher(
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
