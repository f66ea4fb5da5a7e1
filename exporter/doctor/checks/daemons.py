"""Checks of NVIDIA's programs, and of control daemons with their units, pipe directories and logs."""

import re
from collections.abc import Iterator

from exporter.config.options import LONGEST_SOCKET_PATH
from exporter.config.reload import policy_of
from exporter.doctor.facts import TEMPORARY, Area, DaemonFacts, Facts
from exporter.doctor.finding import SEVERITIES, Occurrence, Severity, check
from exporter.doctor.formatting import (
    DROP_INS,
    RESTART_EXPORTER,
    UNITS,
    as_user,
    config_line,
    daemon_label,
    error_text,
    gpu_label,
    nvml_problem,
    process_label,
    quoted,
    shown,
    without_private_tmp,
)
from exporter.model.daemon import Daemon
from exporter.model.problem import ProblemCode
from exporter.model.settings import DEFAULT_LOG_DIRECTORY, DEFAULT_PIPE_DIRECTORY, LOG_DIRECTORY, PIPE_DIRECTORY
from exporter.parse.printable import is_service_name
from exporter.report.findings import FULL_RATIO, findings
from exporter.report.problem import FindingCode
from exporter.report.problems import PROBLEMS, Situation
from exporter.report.remedy import DOCTOR
from exporter.report.text import duration_text, failed_starts_text, mebibytes
from exporter.state.gpus import is_from_volta, serves_gpu
from exporter.state.servers import in_crash_loop

ENOUGH_OPEN_FILES = 16384
"""What NVIDIA recommends for servers with many clients (MPS guide, known issues)."""

EXPORTER = "cuda-mps-exporter.service"

LARGE_BYTES = 256 << 20

_START = (
    f"mkdir -p {DEFAULT_PIPE_DIRECTORY} {DEFAULT_LOG_DIRECTORY} && {PIPE_DIRECTORY}={DEFAULT_PIPE_DIRECTORY}"
    f" {LOG_DIRECTORY}={DEFAULT_LOG_DIRECTORY} nvidia-cuda-mps-control -d"
)

_VERSION = re.compile(r"([0-9]{1,3})([0-9]{2})[0-9]")
_SOCKET = "control_privileged"
_WRITABLE_BY_OTHERS = 0o022
_OPEN_TO_OTHERS = 0o066
_OTHER_SERVERS_LOG_NOTHING = (
    "Without -multiuser-server, the servers of other users than the daemon's then log almost nothing (measured, R580). "
    "Their clients are known from the daemon's lists and NVML alone."
)
_INSTALL_LOGROTATE = f"install -Dm 644 {UNITS}/nvidia-cuda-mps.logrotate /etc/logrotate.d/nvidia-cuda-mps"

_OWN_CHECKS = (
    FindingCode.PID_FILE_WRONG,
    FindingCode.PROCESS_BYPASSING,
    FindingCode.SERVER_CRASH_LOOP,
    FindingCode.LOG_NOT_FOLLOWED,
    FindingCode.GPU_UNREADABLE,
    FindingCode.EXPORTER_CANNOT_COLLECT,
)
"""Problems in `status` that checks explain in more detail."""


@check(
    Severity.WARNING,
    Area.PROGRAMS,
    Area.GPUS,
    Area.DAEMONS,
    Area.DIRECTORIES,
    Area.LOGS,
    fix="Do what `status` recommends.",
)
def reported_by_status(facts: Facts) -> Iterator[Occurrence]:
    """The node has a problem that `status` reports, such as a daemon that does not run or does not answer."""
    programs = facts.programs
    usable = programs.control is not None and programs.problem is None
    for finding in findings(facts.node, facts.node.at, policy_of(facts.config)):
        own_check = finding.code in _OWN_CHECKS and finding.situation is not Situation.LOG_TO_STDOUT
        own_check |= finding.code is FindingCode.DAEMON_NOT_QUERIED and not usable
        if own_check or (finding.daemon is not None and facts.hidden(finding.daemon)):
            continue
        commands = (*finding.commands, *(command for step in finding.steps for command in step.commands))
        yield Occurrence(
            () if finding.daemon is None else (shown(finding.daemon),),
            detail=f"{finding.text}. {finding.definition.meaning}",
            fix=" ".join((finding.remedy, *(step.text for step in finding.steps))),
            commands=tuple(command for command in commands if command != DOCTOR),
            severity=SEVERITIES[finding.severity],
            code=finding.code,
        )


@check(
    Severity.ERROR,
    fix="Install the driver's programs, or add their directory to PATH. In a container, set "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
)
def mps_program_unusable(facts: Facts) -> Iterator[Occurrence]:
    """A program of MPS was not found, or fails."""
    programs = facts.programs
    if programs.control is None:
        yield Occurrence(
            (shown(facts.config.constants.control_executable),),
            detail="The exporter cannot query a daemon.",
            commands=("PATH=$PATH:/opt/nvidia/bin cuda-mps-exporter doctor",),
        )
        return
    if programs.problem is not None:
        yield Occurrence(
            (shown(programs.control),),
            detail=f"The exporter cannot query a daemon. {error_text(programs.problem)}",
            commands=("nvidia-cuda-mps-control -v",),
        )
    if programs.server is None:
        yield Occurrence(
            (shown(programs.control),),
            detail="nvidia-cuda-mps-server is neither in PATH nor in the directory of nvidia-cuda-mps-control. A "
            "daemon that is started here cannot start a server, and its clients get error 805.",
            fix="Ignore this if all daemons run in containers.",
            severity=Severity.WARNING,
        )


@check(
    Severity.WARNING,
    Area.PROGRAMS,
    Area.GPUS,
    fix="Remove the other programs, or put the driver's directory first in PATH.",
)
def version_mismatch(facts: Facts) -> Iterator[Occurrence]:
    """nvidia-cuda-mps-control and the driver have different CUDA versions."""
    found = _VERSION.fullmatch(facts.programs.version or "")
    if found is None:
        return
    program = f"{int(found[1])}.{int(found[2])}"
    drivers = {gpu.reading.cuda_version for gpu in facts.node.gpus.values() if gpu.reading.cuda_version is not None}
    for driver in sorted(drivers - {program}):
        yield Occurrence(
            (shown(facts.programs.control or ""),),
            detail=f"The program has CUDA {program}, the driver {shown(driver)}.",
            commands=("type -a nvidia-cuda-mps-control", "nvidia-smi"),
        )


@check(Severity.WARNING, Area.DAEMONS, fix="Restart the daemon when its clients can end.")
def daemon_outdated(facts: Facts) -> Iterator[Occurrence]:
    """The program file of a running daemon was replaced. Usually, the driver was upgraded. The next server may fail."""
    for _, each in facts.running():
        if each.outdated:
            yield Occurrence((daemon_label(each),))


@check(
    Severity.WARNING,
    Area.DAEMONS,
    fix="Start a daemon. Enable its unit or name it in the configuration: then an alert reports its absence.",
)
def no_daemon(facts: Facts) -> Iterator[Occurrence]:
    """No control daemon runs, and none is expected."""
    known = facts.node.daemons.values()
    if not facts.daemons and not any(daemon.declared.expected or daemon.lifecycle.ever_ran for daemon in known):
        yield Occurrence(commands=("systemctl enable --now nvidia-cuda-mps", _START))


@check(FindingCode.SERVER_CRASH_LOOP, Area.DAEMONS, Area.LOGS, Area.GPUS, Area.DIRECTORIES)
def servers_exit_early(facts: Facts) -> Iterator[Occurrence]:
    """Servers exit before they are ready. Clients get error 805."""
    for daemon, each in facts.running():
        failed = daemon.connections.failed_starts
        if failed.reported and failed.last_exit_at is not None:
            causes = list(_causes_of_early_exits(facts, daemon, each)) or ["None of the usual causes was found"]
            ago = duration_text(max(0.0, facts.node.at - failed.last_exit_at))
            logs = " ".join(quoted(log.path) for log in facts.logs.get(daemon.name, ()) if log.problem is None)
            yield Occurrence(
                (daemon_label(each),),
                detail=f"By its log, {failed_starts_text(failed)}. That was {ago} ago. {'. '.join(causes)}.",
                commands=(*((f"tail -n 30 {logs}",) if logs else ()), "dmesg | grep -i -e NVRM -e Xid"),
                severity=None if in_crash_loop(daemon, facts.node.at) else Severity.WARNING,
            )


def _causes_of_early_exits(facts: Facts, daemon: Daemon, each: DaemonFacts) -> Iterator[str]:
    """Yield what usually prevents a server from starting, if it is so here."""
    directory = facts.directories.get(daemon.name)
    if directory is not None and directory.closed is not None:
        yield f"A user's server cannot enter {shown(directory.closed)}: see directory-closed"
    problem = nvml_problem(facts)
    mismatch = problem is not None and problem.code is ProblemCode.DRIVER_MISMATCH
    if each.outdated or mismatch or any(version_mismatch.find(facts)):
        yield "The driver, its libraries or its programs have different versions"
    in_container = each.process.container is not None or daemon.name != daemon.pipe_directory
    own = {*daemon.clients, *daemon.servers}
    for gpu in facts.node.gpus.values():
        reading = gpu.reading
        if not serves_gpu(facts.node, daemon, reading):
            continue
        label = gpu_label(gpu)
        others = [process.pid for process in reading.compute_processes or () if process.pid not in own]
        used, total = reading.memory_used_bytes, reading.memory_total_bytes
        if reading.problem is not None:
            yield f"{label} has an error, and may need a reset"
        if is_from_volta(reading) is False:
            yield f"{label} is older than Volta" + (", and the daemon is in a container" if in_container else "")
        if reading.compute_mode == "exclusive_process" and others:
            yield f"PID {others[0]} uses {label} without this daemon, and its compute mode is EXCLUSIVE_PROCESS"
        if used is not None and total and used / total > FULL_RATIO:
            yield f"The memory of {label} is full: {mebibytes(max(0, total - used))} are free"


@check(
    Severity.ADVICE,
    Area.DAEMONS,
    Area.UNITS,
    fix="Enable its unit, or name it in the configuration. A job's own daemon needs nothing.",
    doc="docs/configuration.md",
)
def daemon_not_expected(facts: Facts) -> Iterator[Occurrence]:
    """A running daemon is not expected. The configuration and its unit do not declare it. No alert reports its end."""
    for daemon, each in facts.running():
        in_container = daemon.name != daemon.pipe_directory
        if daemon.discovered and not daemon.declared.expected and not in_container:
            yield Occurrence(
                (daemon_label(each),), commands=("[[daemons]]", config_line("pipe_directory", daemon.pipe_directory))
            )


@check(Severity.ADVICE, Area.DAEMONS, fix=f"Set LimitNOFILE={ENOUGH_OPEN_FILES} in the daemon's unit, and restart it.")
def few_open_files(facts: Facts) -> Iterator[Occurrence]:
    """A daemon and its servers may open only few files. A server with many clients fails."""
    for _, each in facts.running():
        if each.open_files is not None and each.open_files < ENOUGH_OPEN_FILES:
            yield Occurrence(
                (daemon_label(each),),
                detail=f"The limit is {each.open_files}. NVIDIA recommends {ENOUGH_OPEN_FILES}.",
                commands=(f"prlimit --nofile={ENOUGH_OPEN_FILES} --pid {each.process.pid}",),
            )


@check(Severity.ERROR, Area.UNITS, fix="Install the unit, or correct its name.", doc="docs/systemd.md")
def unit_not_there(facts: Facts) -> Iterator[Occurrence]:
    """The configuration names an unknown unit. The watchdog cannot restart the daemon."""
    for configured in facts.config.daemons:
        if configured.unit is not None and facts.private_tmp is not None and configured.unit not in facts.private_tmp:
            yield Occurrence(
                (f"{shown(configured.name)}: {shown(configured.unit)}",),
                detail="It is also unknown whether an operator stopped the daemon.",
                commands=("systemctl list-unit-files 'nvidia*'",),
            )


@check(
    Severity.ERROR,
    Area.UNITS,
    fix="Set PrivateTmp=no, or move the daemon to /run. To move it, set CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps for it "
    "and its clients.",
    doc="docs/systemd.md",
)
def unit_private_tmp(facts: Facts) -> Iterator[Occurrence]:
    """A daemon is in /tmp, and its unit or that of the exporter has a private /tmp."""
    private = facts.private_tmp or {}
    in_tmp = [daemon for daemon in facts.node.daemons.values() if daemon.pipe_directory.startswith(TEMPORARY)]
    for daemon in in_tmp:
        unit = daemon.runtime.unit or daemon.declared.unit
        if unit is not None and private.get(unit):
            yield Occurrence(
                (f"{shown(unit)}: {shown(daemon.pipe_directory)}",),
                detail="Other CUDA processes do not find the daemon, and bypass MPS.",
                commands=(without_private_tmp(unit),),
            )
    if in_tmp and private.get(EXPORTER):
        yield Occurrence(
            tuple(shown(daemon.name) for daemon in in_tmp),
            detail="The exporter finds the daemon only while the daemon runs, and only with CAP_SYS_PTRACE.",
            commands=(without_private_tmp(EXPORTER),),
        )


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


@check(
    Severity.WARNING,
    Area.DIRECTORIES,
    Area.DAEMONS,
    fix="Let only the daemon's user write to them. The daemon creates a new pid file at each start (ExecStartPost=).",
    doc="docs/rights.md",
)
def directory_writable(facts: Facts) -> Iterator[Occurrence]:
    """Other users can replace a daemon's sockets, or write its pid file."""
    for name, directory in facts.directories.items():
        if directory.writable:
            yield Occurrence(
                (shown(name),),
                detail=f"They can write to {shown(directory.path)}, and receive what clients send.",
                commands=(f"chmod go-w {quoted(directory.path)}",),
            )
        mode = directory.pid_file_mode
        if mode is not None and mode & _WRITABLE_BY_OTHERS and facts.daemons_of(name):
            yield Occurrence(
                (shown(directory.pid_file),),
                detail=f"The daemon creates its pid file with mode {mode:04o}. If another PID is in it, no command "
                "reaches the daemon. The exporter ignores the file if it already knows the daemon.",
                commands=(as_user(_user(facts, name), f"chmod go-w {quoted(directory.pid_file)}"),),
                severity=Severity.ADVICE,
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


@check(FindingCode.LOG_NOT_FOLLOWED, Area.LOGS, Area.DAEMONS, Area.RIGHTS, doc="docs/rights.md")
def log_not_followed(facts: Facts) -> Iterator[Occurrence]:
    """The exporter cannot read a running daemon's log."""
    for daemon, each in facts.running():
        if daemon.runtime.journal is not None and not facts.exporter.reads_journal:
            yield Occurrence(
                (daemon_label(each),),
                detail="Its log is in the journal.",
                fix="Install the drop-in `journal.conf`. Or let the unit append to stdout.log in the log directory.",
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
            actual, named = each.process.variable(LOG_DIRECTORY), str(configured.log_directory)
            # In a container, the same directory may have another path.
            if actual is not None and actual.rstrip("/") != named and each.process.container is None:
                yield Occurrence(
                    (shown(configured.name),),
                    detail=f"The configuration names {shown(named)}, the daemon uses {shown(actual)}.",
                    commands=(config_line("log_directory", actual),),
                )


@check(Severity.WARNING, Area.LOGS, fix=PROBLEMS[FindingCode.LOG_GROWING].remedy, doc="docs/systemd.md")
def log_not_rotated(facts: Facts) -> Iterator[Occurrence]:
    """A log is large, or was rotated by renaming it. Each command to the daemon adds five lines."""
    for log in (log for logs in facts.logs.values() for log in logs):
        if log.renamed is not None:
            yield Occurrence(
                (shown(log.path),),
                detail=f"The daemon writes to {shown(log.renamed)} until it is restarted. If that is compressed or "
                "removed, lines are lost.",
                commands=(_INSTALL_LOGROTATE,),
            )
        if log.problem is None and log.size >= LARGE_BYTES:
            yield Occurrence(
                (shown(log.path),),
                detail=f"Its size is {log.size >> 20} MiB.",
                commands=(_INSTALL_LOGROTATE, f"truncate -s 0 {quoted(log.path)}"),
            )
