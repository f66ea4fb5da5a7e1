"""Checks of pipe directories and logs."""

from collections.abc import Iterator

from exporter.config.options import LONGEST_SOCKET_PATH
from exporter.doctor.facts import Area, Facts
from exporter.doctor.finding import Check, Found, Severity, found
from exporter.doctor.words import UNITS, as_user, daemon_text, keyed, quoted, shown, start_commands, who
from exporter.model.settings import LOG_DIRECTORY, PIPE_DIRECTORY
from exporter.parse.unit_name import is_service_name
from exporter.report.problem import FindingCode

_SOCKET = "control_privileged"
_WRITABLE_BY_OTHERS = 0o022
_OPEN_TO_OTHERS = 0o066
_OTHER_SERVERS_LOG_NOTHING = (
    " Without -multiuser-server, the servers of other users than the daemon's then log almost nothing, so that their"
    " clients are known by the daemon's lists and NVML alone (measured, R580)."
)


def socket_path_too_long(facts: Facts) -> Iterator[Found]:
    """A socket's path is over 107 bytes: no daemon can run there."""
    named = {daemon.pipe_directory: shown(daemon.name) for daemon in facts.node.daemons.values()}
    for process in facts.processes.values():
        if (process.variables or {}).get(PIPE_DIRECTORY):
            named.setdefault(process.pipe_directory, who(process))
    for path, whose in named.items():
        bytes_long = len(f"{path}/{_SOCKET}".encode(errors="surrogateescape"))
        if bytes_long > LONGEST_SOCKET_PATH:
            yield Found(
                severity=Severity.ERROR,
                what=f"{_SOCKET} would have a path of {bytes_long} bytes in {shown(path)}, and a unix socket's has at "
                f"most {LONGEST_SOCKET_PATH}: no daemon can run there, and it says nothing of it",
                where=(whose,),
                mend="Choose a shorter directory, for the daemon and its clients: CUDA_MPS_PIPE_DIRECTORY="
                "/run/nvidia-mps/NAME, say",
            )


def directory_closed(facts: Facts) -> Iterator[Found]:
    """Other users cannot reach a daemon's sockets."""
    for name, directory in facts.directories.items():
        root_daemon = any(each.process.uid in (0, None) for each in facts.daemons_of(name))
        if directory.closed is not None and root_daemon:
            yield Found(
                severity=Severity.ERROR,
                what=f"{shown(directory.closed)} lets only its owner pass: other users' processes find no daemon, and "
                "silently bypass MPS",
                where=(shown(name),),
                mend="Let others pass (not write); in the daemon's unit, RuntimeDirectoryMode=0755",
                commands=(f"chmod o+x {quoted(directory.closed)}",),
            )


def directory_writable(facts: Facts) -> Iterator[Found]:
    """Others may replace what is in a pipe directory."""
    for name, directory in facts.directories.items():
        if directory.writable:
            yield Found(
                severity=Severity.WARNING,
                what=f"other users may write to {shown(directory.path)}: they can put sockets of their own in place of "
                "the daemon's, and be handed what clients send",
                where=(shown(name),),
                mend="Leave it to the daemon's user",
                commands=(f"chmod go-w {quoted(directory.path)}",),
            )


def two_daemons(facts: Facts) -> Iterator[Found]:
    """Several control daemons run in one pipe directory."""
    for name in dict.fromkeys(each.name for each in facts.daemons):
        running = facts.daemons_of(name)
        if len(running) > 1:
            yield Found(
                severity=Severity.ERROR,
                what=f"{len(running)} control daemons run in one pipe directory: clients reach the last one, the "
                "others keep their servers and GPUs",
                where=tuple(daemon_text(each) for each in running),
                mend="Keep the one that the pid file names, and end the others; have one unit start it, no script "
                "beside it",
                commands=("pgrep -a -f nvidia-cuda-mps-control",),
            )


def stale_pid_file(facts: Facts) -> Iterator[Found]:
    """A pid file was left behind by a daemon that was killed."""
    for name, directory in facts.directories.items():
        daemon = facts.node.daemons.get(name)
        left = directory.pid_file_mode is not None and not facts.daemons_of(name) and not facts.hidden(name)
        if left and daemon is not None and daemon.ended:
            yield Found(
                severity=Severity.WARNING,
                what="a pid file is there, and no daemon: it was killed, and its clients with it; new CUDA processes "
                "bypass MPS silently",
                where=(shown(directory.pid_file),),
                mend="Start the daemon again; nothing need be removed before",
                commands=start_commands(facts, daemon),
            )


def pid_file_spoilt(facts: Facts) -> Iterator[Found]:
    """A pid file names another process than the daemon that runs: NVIDIA's program finds no daemon."""
    for name, directory in facts.directories.items():
        running = facts.daemons_of(name)
        if len(running) == 1 and not directory.problem and directory.pid != running[0].own_pid:
            yield found(
                FindingCode.PID_FILE_WRONG,
                where=(shown(directory.pid_file),),
                commands=(f"echo {running[0].own_pid} > {quoted(directory.pid_file)}",),
            )


def pid_file_open(facts: Facts) -> Iterator[Found]:
    """Any user may write the pid file, as the daemon makes it."""
    for name, directory in facts.directories.items():
        mode = directory.pid_file_mode
        if mode is not None and mode & _WRITABLE_BY_OTHERS and facts.daemons_of(name):
            yield Found(
                severity=Severity.ADVICE,
                what=f"any user may write the pid file (mode {mode:04o}; the daemon makes it so), and with another PID "
                "in it nvidia-cuda-mps-control finds no daemon. The exporter does not believe it against a daemon "
                "that it knows",
                where=(shown(directory.pid_file),),
                mend="Where users are not to be trusted, after each start of the daemon (ExecStartPost=)",
                commands=(as_user(_owner(facts, name), f"chmod go-w {quoted(directory.pid_file)}"),),
            )


def log_fifo_open(facts: Facts) -> Iterator[Found]:
    """Any user may write to the fifo of a daemon's logs, as the daemon makes it."""
    for name, directory in facts.directories.items():
        mode = directory.log_fifo_mode
        running = facts.daemons_of(name)
        if mode is None or not mode & _OPEN_TO_OTHERS or directory.closed is not None or not running:
            continue
        shared = all(each.for_all_users for each in running)
        lost = "" if shared else _OTHER_SERVERS_LOG_NOTHING
        yield Found(
            severity=Severity.WARNING,
            what=f"any user may open the fifo of the logs (mode {mode:04o}; the daemon makes it so): a user can write"
            " any line into control.log and server.log, take lines away, and stop both logs until the daemon is"
            " restarted",
            where=(shown(directory.log_fifo),),
            mend="Restrict it to the daemon's user: all clients and servers still work."
            f"{lost} The daemon makes a new fifo at each start, so install the drop-in too",
            commands=(
                as_user(_owner(facts, name), f"chmod 0600 {quoted(directory.log_fifo)}"),
                *_restricting_drop_in(facts, name),
            ),
        )


def _owner(facts: Facts, name: str) -> int | None:
    return next((each.process.uid for each in facts.daemons_of(name)), None)


def _restricting_drop_in(facts: Facts, name: str) -> tuple[str, ...]:
    """What restricts the fifo after each start, where a system service runs the daemon."""
    daemon = facts.node.daemons.get(name)
    unit = None if daemon is None else daemon.runtime.unit or daemon.declared.unit
    if unit is None or not is_service_name(unit) or unit.startswith("user@"):
        return ()
    source = f"{UNITS}/nvidia-cuda-mps.service.d/restrict-log.conf"
    return f"install -Dm 644 -t {quoted(f'/etc/systemd/system/{unit}.d')} {source}", "systemctl daemon-reload"


CHECKS = (
    Check(
        socket_path_too_long,
        fine="each socket's path is short enough",
        mend="choose a shorter directory",
        needs=(Area.PROCESSES,),
    ),
    Check(
        two_daemons,
        fine="each pipe directory has one daemon",
        mend="keep the one that the pid file names",
        needs=(Area.DAEMONS,),
    ),
    Check(
        directory_closed, fine="other users reach the daemons' sockets", mend="`chmod o+x`", needs=(Area.DIRECTORIES,)
    ),
    Check(
        directory_writable,
        fine="nobody else may write to a pipe directory",
        mend="`chmod go-w`",
        needs=(Area.DIRECTORIES,),
    ),
    Check(stale_pid_file, fine="no pid file was left behind", mend="start the daemon again", needs=(Area.DIRECTORIES,)),
    Check(
        pid_file_spoilt,
        fine="pid files name their daemons",
        code=FindingCode.PID_FILE_WRONG,
        needs=(Area.DIRECTORIES,),
        doc="docs/rights.md",
    ),
    Check(
        pid_file_open,
        fine="pid files are their owners' alone",
        mend="`chmod go-w`, after each start",
        needs=(Area.DIRECTORIES,),
        doc="docs/rights.md",
    ),
    Check(
        log_fifo_open,
        fine="only a daemon's user can write to the fifo of its logs",
        mend="`chmod 0600`, and the drop-in `restrict-log.conf`",
        needs=(Area.DIRECTORIES, Area.DAEMONS),
        doc="docs/security.md",
    ),
)


LARGE_BYTES = 256 << 20

_MEBIBYTE = 1 << 20
_INSTALL = f"install -Dm 644 {UNITS}/nvidia-cuda-mps.logrotate /etc/logrotate.d/nvidia-cuda-mps"


def log_unreadable(facts: Facts) -> Iterator[Found]:
    """A running daemon's log cannot be read: short faults and refusals are missed."""
    for daemon, _ in facts.running():
        for log in facts.logs.get(daemon.name, ()):
            if log.problem is not None:
                yield found(
                    FindingCode.LOG_NOT_FOLLOWED,
                    detail=f"The error is: {shown(log.problem)}.",
                    where=(shown(log.path),),
                    commands=(f"ls -ld {quoted(log.path.rpartition('/')[0])} {quoted(log.path)}",),
                )


def log_directory_differs(facts: Facts) -> Iterator[Found]:
    """The configuration names another log directory than the daemon has."""
    for configured in facts.config.daemons:
        for each in facts.daemons_of(configured.name):
            actual = (each.process.variables or {}).get(LOG_DIRECTORY)
            if actual is None or (each.logs is not None and each.logs == facts.configured_logs.get(configured.name)):
                continue  # In a container, the same directory has another path.
            if actual.rstrip("/") != str(configured.log_directory):
                yield Found(
                    severity=Severity.WARNING,
                    what=f"the daemon's logs are in {shown(actual)}, and the configuration has them in "
                    f"{shown(str(configured.log_directory))}: while the daemon is down, its last words are not found",
                    where=(shown(configured.name),),
                    mend="Write the daemon's own directory into the configuration",
                    commands=(keyed("log_directory", actual),),
                )


def log_renamed(facts: Facts) -> Iterator[Found]:
    """A log was rotated by renaming it: the daemon writes on into the renamed file."""
    for name, logs in facts.logs.items():
        for log in logs:
            if log.renamed is not None and facts.daemons_of(name):
                yield Found(
                    severity=Severity.WARNING,
                    what=f"the daemon writes into {shown(log.renamed)}: its log was rotated by renaming it, which MPS "
                    "does not follow; once that file is compressed or removed, what it writes is lost",
                    where=(shown(log.path),),
                    mend="Have it copied and truncated instead (copytruncate); the present log ends with the daemon's "
                    "next start",
                    commands=(_INSTALL,),
                )


def log_rotated_by_rename(facts: Facts) -> Iterator[Found]:
    """Logrotate is told to rename a log, which MPS does not follow."""
    for rotation in facts.rotations:
        if not rotation.truncates:
            yield Found(
                severity=Severity.WARNING,
                what=f"logrotate is to rotate {shown(rotation.path)} by renaming it: MPS never opens its logs anew, "
                "and would write on into the renamed file",
                where=(shown(rotation.file),),
                mend="Add copytruncate there",
                commands=(_INSTALL,),
            )


def log_not_rotated(facts: Facts) -> Iterator[Found]:
    """Nothing rotates a log, or it has grown large all the same."""
    rotated = {rotation.path for rotation in facts.rotations}
    for logs in facts.logs.values():
        for log in logs:
            large = log.size >= LARGE_BYTES
            elsewhere = log.path.startswith("/proc/")
            if log.problem is None and (large or not (elsewhere or log.path in rotated)):
                kept = "logrotate is told of it all the same" if log.path in rotated else "nothing rotates it"
                size = f"{log.size // _MEBIBYTE} MiB" if log.size >= _MEBIBYTE else "less than 1 MiB"
                yield Found(
                    severity=Severity.WARNING if large else Severity.ADVICE,
                    what=f"a log is {size} by now, and {kept}; every command to the daemon adds five lines",
                    where=(shown(log.path),),
                    mend="Have logrotate copy and truncate it (copytruncate)",
                    commands=(_INSTALL, f"truncate -s 0 {quoted(log.path)}") if large else (_INSTALL,),
                )


LOGS_CHECKS = (
    Check(
        log_unreadable,
        fine="daemons' logs can be read",
        code=FindingCode.LOG_NOT_FOLLOWED,
        needs=(Area.LOGS,),
        doc="docs/rights.md",
    ),
    Check(
        log_directory_differs,
        fine="logs are where the configuration has them",
        mend="`log_directory`",
        needs=(Area.DAEMONS,),
        doc="docs/configuration.md",
    ),
    Check(
        log_renamed,
        fine="daemons write into their logs",
        mend="`copytruncate`",
        needs=(Area.LOGS,),
        doc="docs/systemd.md",
    ),
    Check(
        log_rotated_by_rename,
        fine="logrotate does not rename logs",
        mend="`copytruncate`",
        needs=(Area.ROTATION,),
        doc="docs/systemd.md",
    ),
    Check(
        log_not_rotated,
        fine="logs are rotated",
        mend="`systemd/nvidia-cuda-mps.logrotate`",
        needs=(Area.LOGS, Area.ROTATION),
        doc="docs/systemd.md",
    ),
)
