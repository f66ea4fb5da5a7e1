"""Checks of pipe directories and logs."""

from collections.abc import Iterator

from exporter.config.options import LONGEST_SOCKET_PATH
from exporter.doctor.facts import Area, Facts
from exporter.doctor.finding import Occurrence, Severity, check
from exporter.doctor.formatting import (
    DROP_INS,
    RESTART_EXPORTER,
    UNITS,
    as_user,
    config_line,
    daemon_label,
    error_text,
    process_label,
    quoted,
    shown,
)
from exporter.model.settings import LOG_DIRECTORY, PIPE_DIRECTORY
from exporter.parse.printable import is_service_name
from exporter.report.problem import FindingCode
from exporter.report.problems import PROBLEMS, Situation

LARGE_BYTES = 256 << 20

_SOCKET = "control_privileged"
_WRITABLE_BY_OTHERS = 0o022
_OPEN_TO_OTHERS = 0o066
_OTHER_SERVERS_LOG_NOTHING = (
    "Without -multiuser-server, the servers of other users than the daemon's then log almost nothing (measured, R580). "
    "Their clients are known from the daemon's lists and NVML alone."
)
_COPY_TRUNCATE = PROBLEMS[FindingCode.LOG_GROWING].remedy
_INSTALL_LOGROTATE = f"install -Dm 644 {UNITS}/nvidia-cuda-mps.logrotate /etc/logrotate.d/nvidia-cuda-mps"


@check(
    Severity.ERROR,
    Area.PROCESSES,
    fix="Choose a shorter directory. For example, set CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps for daemon and clients.",
)
def socket_path_too_long(facts: Facts) -> Iterator[Occurrence]:
    """The path of a socket is longer than 107 bytes. No daemon can run there, and MPS reports no error."""
    users = {daemon.pipe_directory: shown(daemon.name) for daemon in facts.node.daemons.values()}
    for process in facts.processes.values():
        if process.variable(PIPE_DIRECTORY):
            users.setdefault(process.pipe_directory, process_label(process))
    for path, user in users.items():
        length = len(f"{path}/{_SOCKET}".encode(errors="surrogateescape"))
        if length > LONGEST_SOCKET_PATH:
            yield Occurrence((user,), detail=f"{_SOCKET} in {shown(path)} would have {length} bytes.")


@check(Severity.ERROR, Area.DAEMONS, fix="End all daemons but the one in the pid file. Let a single unit start it.")
def two_daemons(facts: Facts) -> Iterator[Occurrence]:
    """Several control daemons run in one pipe directory. Clients reach the last one, the others only occupy GPUs."""
    for name in dict.fromkeys(each.name for each in facts.daemons):
        running = facts.daemons_of(name)
        if len(running) > 1:
            yield Occurrence(tuple(map(daemon_label, running)), commands=("pgrep -a -f nvidia-cuda-mps-control",))


@check(
    Severity.ERROR,
    Area.DIRECTORIES,
    Area.DAEMONS,
    fix="Let other users enter the directory, but not write to it. For a unit, set RuntimeDirectoryMode=0755.",
)
def directory_closed(facts: Facts) -> Iterator[Occurrence]:
    """Other users' servers cannot open a daemon's sockets, and exit. Their clients get error 805."""
    for name, directory in facts.directories.items():
        as_root = any(each.process.uid in (0, None) for each in facts.daemons_of(name))
        if directory.closed is not None and as_root:
            yield Occurrence(
                (shown(name),),
                detail=f"Only the owner can enter {shown(directory.closed)}.",
                commands=(f"chmod o+x {quoted(directory.closed)}",),
            )


@check(Severity.WARNING, Area.DIRECTORIES, fix="Let only the daemon's user write to it.")
def directory_writable(facts: Facts) -> Iterator[Occurrence]:
    """Other users can replace a daemon's sockets. They can receive what clients send."""
    for name, directory in facts.directories.items():
        if directory.writable:
            yield Occurrence(
                (shown(name),),
                detail=f"They can write to {shown(directory.path)}.",
                commands=(f"chmod go-w {quoted(directory.path)}",),
            )


@check(FindingCode.PID_FILE_WRONG, Area.DIRECTORIES, Area.DAEMONS, doc="docs/rights.md")
def pid_file_wrong(facts: Facts) -> Iterator[Occurrence]:
    """A pid file names another process than the running daemon."""
    for name, directory in facts.directories.items():
        running = facts.daemons_of(name)
        if len(running) == 1 and not directory.problem and directory.pid != running[0].own_pid:
            yield Occurrence(
                (shown(directory.pid_file),), commands=(f"echo {running[0].own_pid} > {quoted(directory.pid_file)}",)
            )


@check(
    Severity.ADVICE,
    Area.DIRECTORIES,
    fix="Restrict it after each start of the daemon (ExecStartPost=), if users are not trusted.",
    doc="docs/rights.md",
)
def pid_file_open(facts: Facts) -> Iterator[Occurrence]:
    """Any user can write the pid file. The daemon creates it so. With a wrong PID, no command reaches the daemon."""
    for name, directory in facts.directories.items():
        mode = directory.pid_file_mode
        if mode is not None and mode & _WRITABLE_BY_OTHERS and facts.daemons_of(name):
            yield Occurrence(
                (shown(directory.pid_file),),
                detail=f"Its mode is {mode:04o}. The exporter ignores it if it already knows the daemon.",
                commands=(as_user(_user(facts, name), f"chmod go-w {quoted(directory.pid_file)}"),),
            )


@check(
    Severity.WARNING,
    Area.DIRECTORIES,
    Area.DAEMONS,
    fix="Restrict the fifo to the daemon's user. All clients and servers still work. The daemon creates a new fifo at "
    "each start, so install the drop-in too.",
    doc="docs/security.md",
)
def log_fifo_open(facts: Facts) -> Iterator[Occurrence]:
    """Any user can change and block a daemon's logs. The daemon creates their fifo with write access for all users."""
    for name, directory in facts.directories.items():
        mode = directory.log_fifo_mode
        running = facts.daemons_of(name)
        if mode is not None and mode & _OPEN_TO_OTHERS and directory.closed is None and running:
            shared = all(each.for_all_users for each in running)
            yield Occurrence(
                (shown(directory.log_fifo),),
                detail=f"Its mode is {mode:04o}.",
                fix="" if shared else _OTHER_SERVERS_LOG_NOTHING,
                commands=(
                    as_user(_user(facts, name), f"chmod 0600 {quoted(directory.log_fifo)}"),
                    *_install_drop_in(facts, name),
                ),
            )


def _user(facts: Facts, name: str) -> int | None:
    return next((each.process.uid for each in facts.daemons_of(name)), None)


def _install_drop_in(facts: Facts, name: str) -> tuple[str, ...]:
    """Return what restricts the fifo after each start, if a system service runs the daemon."""
    daemon = facts.node.daemons.get(name)
    unit = None if daemon is None else daemon.runtime.unit or daemon.declared.unit
    if unit is None or not is_service_name(unit) or unit.startswith("user@"):
        return ()
    source = f"{UNITS}/nvidia-cuda-mps.service.d/restrict-log.conf"
    return f"install -Dm 644 -t {quoted(f'/etc/systemd/system/{unit}.d')} {source}", "systemctl daemon-reload"


@check(FindingCode.LOG_NOT_FOLLOWED, Area.LOGS, Area.DAEMONS, doc="docs/rights.md")
def log_not_followed(facts: Facts) -> Iterator[Occurrence]:
    """The exporter cannot read a running daemon's log."""
    for daemon, each in facts.running():
        exporter, shown_log = facts.exporter, shown(f"{daemon.log_directory}/stdout.log")
        if daemon.runtime.log_is_lost:
            yield Occurrence(
                (daemon_label(each),),
                detail=f"Its log goes to its standard output, not to {shown_log}.",
                fix=Situation.LOG_TO_STDOUT.remedy,
            )
        elif daemon.runtime.journal is not None and exporter.uid != 0 and exporter.journal_group not in exporter.groups:
            yield Occurrence(
                (daemon_label(each),),
                detail="Its log is in the journal.",
                fix=f"Install the drop-in `journal.conf`. Or let the unit append to {shown_log}.",
                commands=(f"{DROP_INS}/journal.conf", RESTART_EXPORTER),
            )
        for log in facts.logs.get(daemon.name, ()):
            if log.problem is not None:
                yield Occurrence(
                    (shown(log.path),),
                    detail=error_text(log.problem),
                    fix="Let it enter the log directory (mode 0755), and check `log_directory` in the configuration.",
                    commands=(f"ls -ld {quoted(log.path.rpartition('/')[0])} {quoted(log.path)}",),
                )


@check(
    Severity.WARNING,
    Area.DAEMONS,
    fix="Write the daemon's log directory into the configuration.",
    doc="docs/configuration.md",
)
def log_directory_differs(facts: Facts) -> Iterator[Occurrence]:
    """The configuration names a wrong log directory. If the daemon dies, its last log lines are not found."""
    for configured in facts.config.daemons:
        for each in facts.daemons_of(configured.name):
            actual = each.process.variable(LOG_DIRECTORY)
            if actual is None or (each.logs is not None and each.logs == facts.configured_logs.get(configured.name)):
                continue  # In a container, the same directory has another path.
            if actual.rstrip("/") != str(configured.log_directory):
                named = shown(str(configured.log_directory))
                yield Occurrence(
                    (shown(configured.name),),
                    detail=f"The configuration names {named}, the daemon uses {shown(actual)}.",
                    commands=(config_line("log_directory", actual),),
                )


@check(Severity.ADVICE, Area.LOGS, Area.ROTATION, fix=_COPY_TRUNCATE, doc="docs/systemd.md")
def log_not_rotated(facts: Facts) -> Iterator[Occurrence]:
    """A log is large, is not rotated, or is rotated by renaming it. Each command to the daemon adds five lines."""
    rotated = {rotation.path for rotation in facts.rotations}
    for rotation in facts.rotations:
        if not rotation.truncates:
            yield Occurrence(
                (f"{shown(rotation.file)}: {shown(rotation.path)}",),
                detail="Logrotate is configured to rename it.",
                commands=(_INSTALL_LOGROTATE,),
                severity=Severity.WARNING,
            )
    for name, log in ((name, log) for name, logs in facts.logs.items() for log in logs):
        if log.renamed is not None and facts.daemons_of(name):
            yield Occurrence(
                (shown(log.path),),
                detail=f"The daemon writes to {shown(log.renamed)} until it is restarted. If that is compressed or "
                "removed, lines are lost.",
                commands=(_INSTALL_LOGROTATE,),
                severity=Severity.WARNING,
            )
        large = log.size >= LARGE_BYTES
        in_container = log.path.startswith("/proc/")
        if log.problem is None and (large or not (in_container or log.path in rotated)):
            mebibytes = f"{log.size >> 20} MiB" if log.size >> 20 else "less than 1 MiB"
            state = "a file of logrotate names it" if log.path in rotated else "it is not rotated"
            truncate = (f"truncate -s 0 {quoted(log.path)}",) if large else ()
            yield Occurrence(
                (shown(log.path),),
                detail=f"Its size is {mebibytes}, and {state}.",
                commands=(_INSTALL_LOGROTATE, *truncate),
                severity=Severity.WARNING if large else None,
            )
