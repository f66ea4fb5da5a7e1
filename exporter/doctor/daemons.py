"""Checks of NVIDIA's programs, and of control daemons with their units, pipe directories and logs."""

import re
from collections.abc import Iterator
from dataclasses import replace

from exporter.doctor.facts import (
    DROP_INS,
    RESTART_EXPORTER,
    TEMPORARY,
    UNITS,
    Area,
    Facts,
    check,
    config_line,
    daemon_label,
    quoted,
    shown,
    without_private_tmp,
)
from exporter.model.dialect import MULTI_USER
from exporter.model.node import CollectorName
from exporter.model.settings import DEFAULT_LOG_DIRECTORY, DEFAULT_PIPE_DIRECTORY, LOG_DIRECTORY, PIPE_DIRECTORY
from exporter.parse.units import is_service_name
from exporter.policy import policy_of
from exporter.report.client_findings import mps_without_daemon
from exporter.report.daemon_findings import crash_loop
from exporter.report.document_parts import Severity
from exporter.report.finding import Finding
from exporter.report.node_findings import findings
from exporter.report.problems import DaemonProblem, NodeProblem, Situation
from exporter.report.reasons import reason_text
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
_WRITABLE_BY_OTHERS = 0o022
_OPEN_TO_OTHERS = 0o066
_OTHER_SERVERS_LOG_NOTHING = (
    "Without -multiuser-server, the servers of other users than the daemon's then log almost nothing (measured, R580). "
    "Their clients are known from the daemon's lists and NVML alone."
)
_SUFFIXES = (".", "-")
"""What follows a log's name after a rotation: `control.log.1`, `control.log-20261121`."""
_INSTALL_LOGROTATE = f"install -Dm 644 {UNITS}/nvidia-cuda-mps.logrotate /etc/logrotate.d/nvidia-cuda-mps"

_OWN_CHECKS = (
    DaemonProblem.PID_FILE_WRONG,
    NodeProblem.PROCESS_BYPASSING,
    NodeProblem.LOG_NOT_FOLLOWED,
    NodeProblem.NVML_UNUSABLE,
    NodeProblem.EXPORTER_CANNOT_COLLECT,
)
"""Problems in `status` that checks explain in more detail."""


@check(Severity.WARNING, Area.PROGRAMS, Area.GPUS, Area.DAEMONS, Area.DIRECTORIES, Area.LOGS)
def reported_by_status(facts: Facts) -> Iterator[Finding]:
    """The node has a problem that `status` reports. It is in the catalogue.

    Do what `status` recommends.
    """
    usable = facts.programs.control is not None and facts.programs.problem is None
    for finding in findings(facts.node, facts.node.at, policy_of(facts.config)):
        own_check = finding.problem in _OWN_CHECKS and finding.situation is not Situation.LOG_TO_STDOUT
        own_check |= finding.problem is DaemonProblem.DAEMON_NOT_QUERIED and not usable
        if not own_check and (finding.daemon is None or not facts.hidden(finding.daemon)):
            yield finding


@check(Severity.CRITICAL)
def mps_program_unusable(facts: Facts) -> Iterator[Finding]:
    """A program of MPS was not found, or fails. The exporter cannot query a daemon, or a daemon cannot start a server.

    Install the driver's programs, or add their directory to PATH. In a container, set
    NVIDIA_DRIVER_CAPABILITIES=compute,utility.
    """
    programs = facts.programs
    if programs.control is None:
        yield mps_program_unusable.finding(
            details=f"{shown(facts.config.constants.control_executable)} is not in PATH.",
            commands=("PATH=$PATH:/opt/nvidia/bin cuda-mps-exporter doctor",),
        )
        return
    if programs.problem is not None:
        details = f"{shown(programs.control)}: {shown(programs.problem)}"
        yield mps_program_unusable.finding(details=details, commands=("nvidia-cuda-mps-control -v",))
    if programs.server is None:
        yield mps_program_unusable.finding(
            details="nvidia-cuda-mps-server is neither in PATH nor beside nvidia-cuda-mps-control. Clients of a daemon "
            "that is started here get error 805.",
            advice="Ignore this if all daemons run in containers.",
            rated=Severity.WARNING,
        )


@check(Severity.WARNING, Area.PROGRAMS, Area.GPUS)
def version_mismatch(facts: Facts) -> Iterator[Finding]:
    """nvidia-cuda-mps-control and the driver have different CUDA versions. Each driver comes with its own program.

    Remove the other programs, or put the driver's directory first in PATH.
    """
    found = _VERSION.fullmatch(facts.programs.version or "")
    if found is None:
        return
    program = f"{int(found[1])}.{int(found[2])}"
    drivers = {gpu.reading.cuda_version for gpu in facts.node.gpus.values() if gpu.reading.cuda_version is not None}
    for driver in sorted(drivers - {program}):
        yield version_mismatch.finding(
            shown(facts.programs.control or ""),
            details=f"The program has CUDA {program}, the driver {shown(driver)}.",
            commands=("type -a nvidia-cuda-mps-control", "nvidia-smi"),
        )


@check(Severity.WARNING, Area.DAEMONS)
def daemon_outdated(facts: Facts) -> Iterator[Finding]:
    """The program file of a running daemon was replaced. Usually, the driver was upgraded. The next server may fail.

    Restart the daemon when its clients can end.
    """
    for _, each in facts.running():
        if each.outdated:
            yield daemon_outdated.finding(daemon_label(each))


@check(Severity.WARNING, Area.DAEMONS)
def no_daemon(facts: Facts) -> Iterator[Finding]:
    """No control daemon runs, and none is expected. CUDA processes run without MPS.

    Start a daemon. Enable its unit or name it in the configuration: then an alert reports its absence.
    """
    known, search = facts.node.daemons.values(), facts.node.sources.get(CollectorName.DISCOVERY)
    may_run = facts.daemons or (search and search.problems) or any(mps_without_daemon(facts.node, facts.node.at))
    if not may_run and not any(daemon.declared.expected or daemon.lifecycle.ever_ran for daemon in known):
        yield no_daemon.finding(commands=("systemctl enable --now nvidia-cuda-mps", _START))


@check(DaemonProblem.SERVER_CRASH_LOOP, Area.DAEMONS, Area.LOGS, Area.GPUS, Area.DIRECTORIES)
def servers_exited_early(facts: Facts) -> Iterator[Finding]:
    """Servers exited before they were ready, and none has been started since. `status` has a present crash loop."""
    node = facts.node
    for daemon, _ in facts.running():
        if daemon.connections.failed_starts.reported and not in_crash_loop(daemon, node.at):
            yield replace(crash_loop(node, node.at, daemon), rated=Severity.WARNING)


@check(Severity.INFO, Area.DAEMONS, Area.UNITS, page="docs/configuration.md")
def daemon_not_expected(facts: Facts) -> Iterator[Finding]:
    """A running daemon is not expected. The configuration and its unit do not declare it. No alert reports its end.

    Enable its unit, or name it in the configuration. A job's own daemon needs nothing.
    """
    for daemon, each in facts.running():
        if daemon.discovered and not daemon.declared.expected and not daemon.is_apart:
            yield daemon_not_expected.finding(
                daemon_label(each), commands=("[[daemons]]", config_line("pipe_directory", daemon.pipe_directory))
            )


@check(Severity.INFO, Area.DAEMONS)
def few_open_files(facts: Facts) -> Iterator[Finding]:
    """A daemon and its servers may open only few files. A server with many clients fails.

    Set LimitNOFILE=16384 in the daemon's unit, and restart it.
    """
    for _, each in facts.running():
        if each.open_files is not None and each.open_files < ENOUGH_OPEN_FILES:
            yield few_open_files.finding(
                daemon_label(each),
                details=f"The limit is {each.open_files}. NVIDIA recommends {ENOUGH_OPEN_FILES}.",
                commands=(f"prlimit --nofile={ENOUGH_OPEN_FILES} --pid {each.process.pid}",),
            )


@check(Severity.CRITICAL, Area.UNITS)
def unit_not_there(facts: Facts) -> Iterator[Finding]:
    """The configuration names an unknown unit. The watchdog cannot restart the daemon, or detect that it was stopped.

    Install the unit, or correct its name.
    """
    for configured in facts.config.daemons:
        if configured.unit is not None and facts.private_tmp is not None and configured.unit not in facts.private_tmp:
            yield unit_not_there.finding(
                f"{shown(configured.name)}: {shown(configured.unit)}", commands=("systemctl list-unit-files 'nvidia*'",)
            )


@check(Severity.CRITICAL, Area.UNITS)
def unit_private_tmp(facts: Facts) -> Iterator[Finding]:
    """A daemon is in /tmp, and its unit or that of the exporter has a private /tmp. It is not the /tmp of others.

    Set PrivateTmp=no, or move the daemon to /run. To move it, set CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps for it
    and its clients.
    """
    private = facts.private_tmp or {}
    in_tmp = [daemon for daemon in facts.node.daemons.values() if daemon.pipe_directory.startswith(TEMPORARY)]
    for daemon in in_tmp:
        unit = daemon.runtime.unit or daemon.declared.unit
        if unit is not None and private.get(unit):
            yield unit_private_tmp.finding(
                f"{shown(unit)}: {shown(daemon.pipe_directory)}",
                details="Other CUDA processes do not find the daemon, and bypass MPS.",
                commands=(without_private_tmp(unit),) if is_service_name(unit) else (),
            )
    if in_tmp and private.get(EXPORTER):
        yield unit_private_tmp.finding(
            *(shown(daemon.name) for daemon in in_tmp),
            details="The exporter finds the daemon only while the daemon runs, and only with CAP_SYS_PTRACE.",
            commands=(without_private_tmp(EXPORTER),),
        )


@check(Severity.CRITICAL, Area.DAEMONS)
def two_daemons(facts: Facts) -> Iterator[Finding]:
    """Several control daemons run in one pipe directory. Clients reach the last one, the others only occupy GPUs.

    End all daemons but the one in the pid file. Let a single unit start it.
    """
    for name in dict.fromkeys(each.name for each in facts.daemons):
        running = facts.daemons_of(name)
        if len(running) > 1:
            yield two_daemons.finding(*map(daemon_label, running), commands=("pgrep -a -f nvidia-cuda-mps-control",))


@check(Severity.CRITICAL, Area.DIRECTORIES, Area.DAEMONS)
def directory_closed(facts: Facts) -> Iterator[Finding]:
    """Other users' servers cannot open a daemon's sockets, and exit. Their clients get error 805.

    Let other users enter the directory, but not write to it. For a unit, set RuntimeDirectoryMode=0755.
    """
    for name, directory in facts.directories.items():
        as_root = any(each.process.uid in (0, None) for each in facts.daemons_of(name))
        if directory.closed is not None and as_root:
            yield directory_closed.finding(
                shown(name),
                details=f"Only the owner can enter {shown(directory.closed)}.",
                commands=(f"chmod o+x {quoted(directory.closed)}",),
            )


@check(Severity.WARNING, Area.DIRECTORIES, Area.DAEMONS, page="docs/security.md")
def directory_writable(facts: Facts) -> Iterator[Finding]:
    """Other users can write to a daemon's pipe directory or pid file. They can replace its sockets or its PID.

    Let only the daemon's user write to them. The daemon creates a new pid file at each start (ExecStartPost=).
    """
    for name, directory in facts.directories.items():
        if directory.writable:
            yield directory_writable.finding(
                shown(name),
                details=f"They can write to {shown(directory.path)}, and receive what clients send.",
                commands=(f"chmod go-w {quoted(directory.path)}",),
            )
        mode = directory.pid_file_mode
        if mode is not None and mode & _WRITABLE_BY_OTHERS and facts.daemons_of(name):
            yield directory_writable.finding(
                shown(directory.pid_file),
                details=f"The daemon creates its pid file with mode {mode:04o}. If another PID is in it, no command "
                "reaches the daemon. The exporter ignores the file if it already knows the daemon.",
                commands=(_as_owner(facts, name, f"chmod go-w {quoted(directory.pid_file)}"),),
                rated=Severity.INFO,
            )


@check(DaemonProblem.PID_FILE_WRONG, Area.DIRECTORIES, Area.DAEMONS)
def pid_file_wrong(facts: Facts) -> Iterator[Finding]:
    """A pid file names another process than the running daemon."""
    for name, directory in facts.directories.items():
        running = facts.daemons_of(name)
        if len(running) == 1 and not directory.problem and directory.pid != running[0].own_pid:
            yield Finding(
                DaemonProblem.PID_FILE_WRONG,
                daemon=name,
                facts=(shown(directory.pid_file),),
                commands=(
                    f"echo {running[0].own_pid} | {_as_owner(facts, name, f'tee {quoted(directory.pid_file)}')}",
                ),
            )


@check(Severity.WARNING, Area.DIRECTORIES, Area.DAEMONS, page="docs/security.md")
def log_fifo_open(facts: Facts) -> Iterator[Finding]:
    """Any user can change and block a daemon's logs. The daemon creates their fifo with write access for all users.

    Restrict the fifo to the daemon's user. All clients and servers still work. The daemon creates a new fifo at
    each start, so install the drop-in too.
    """
    for name, directory in facts.directories.items():
        mode = directory.log_fifo_mode
        running = facts.daemons_of(name)
        if mode is not None and mode & _OPEN_TO_OTHERS and directory.closed is None and running:
            shared = all(MULTI_USER & set(each.arguments) for each in running)
            yield log_fifo_open.finding(
                shown(directory.log_fifo),
                details=f"The mode of the fifo is {mode:04o}.",
                advice="" if shared else _OTHER_SERVERS_LOG_NOTHING,
                commands=(
                    _as_owner(facts, name, f"chmod 0600 {quoted(directory.log_fifo)}"),
                    *_install_drop_in(facts, name),
                ),
            )


def _as_owner(facts: Facts, name: str, command: str) -> str:
    """Return a command that changes the daemon's own file. As root it would follow a link that the user puts there."""
    uid = next((each.process.uid for each in facts.daemons_of(name)), None)
    return command if uid in (0, None) else f"sudo -u '#{uid}' {command}"


def _install_drop_in(facts: Facts, name: str) -> tuple[str, ...]:
    """Return what restricts the fifo after each start, if a system service runs the daemon."""
    daemon = facts.node.daemons.get(name)
    unit = None if daemon is None else daemon.runtime.unit or daemon.declared.unit
    if unit is None or not is_service_name(unit):
        return ()
    source = f"{UNITS}/nvidia-cuda-mps.service.d/restrict-log.conf"
    return f"install -Dm 644 -t {quoted(f'/etc/systemd/system/{unit}.d')} {source}", "systemctl daemon-reload"


@check(NodeProblem.LOG_NOT_FOLLOWED, Area.LOGS, Area.DAEMONS, Area.RIGHTS)
def log_not_followed(facts: Facts) -> Iterator[Finding]:
    """The exporter cannot read a running daemon's log."""
    for daemon, each in facts.running():
        if daemon.runtime.journal is not None and not facts.exporter.reads_journal:
            yield Finding(
                NodeProblem.LOG_NOT_FOLLOWED,
                daemon=daemon.name,
                values={"problem": "it is in the journal"},
                facts=(daemon_label(each),),
                advice="Install the drop-in `journal.conf`. Or let the unit append to stdout.log in the log directory.",
                commands=(f"{DROP_INS}/journal.conf", RESTART_EXPORTER),
            )
        for problem in daemon.log.failing.values() if not daemon.runtime.log_is_lost else ():
            path = problem.parameters.get("subject") or ""
            yield Finding(
                NodeProblem.LOG_NOT_FOLLOWED,
                daemon=daemon.name,
                values={"problem": reason_text(problem, CollectorName.LOGS)},
                facts=(shown(path) or daemon_label(each),),
                advice="Let it enter the log directory (mode 0755), and check `log_directory` in the configuration.",
                commands=(f"ls -ld {quoted(path.rpartition('/')[0])} {quoted(path)}",) if path.startswith("/") else (),
            )


@check(Severity.WARNING, Area.DAEMONS, page="docs/configuration.md")
def log_directory_differs(facts: Facts) -> Iterator[Finding]:
    """The configuration names a wrong log directory. If the daemon dies, its last log lines are not found.

    Write the daemon's log directory into the configuration.
    """
    for configured in facts.config.daemons:
        for each in facts.daemons_of(configured.name):
            actual, named = each.process.variable(LOG_DIRECTORY), str(configured.log_directory)
            logs = each.process.logs
            if actual is None or (logs is not None and logs == facts.configured_logs.get(configured.name)):
                continue  # The same directory can have several paths.
            if actual.rstrip("/") != named and each.process.container is None:
                yield log_directory_differs.finding(
                    shown(configured.name),
                    details=f"The configuration names {shown(named)}, the daemon uses {shown(actual)}.",
                    commands=(config_line("log_directory", actual),),
                )


@check(Severity.WARNING, Area.LOGS, page=NodeProblem.LOG_GROWING.definition.page)
def log_not_rotated(facts: Facts) -> Iterator[Finding]:
    """A log is large, or was rotated by renaming it. Each command to the daemon adds five lines.

    Set up logrotate with copytruncate: the daemon never opens its log again, and continues to write into a renamed
    file.
    """
    for daemon, each in facts.running():
        root = "" if each.process.container is None else f"/proc/{each.process.pid}/root"
        for file, size in daemon.log.sizes.items():
            # The paths of a daemon in a container are those of its root.
            original = f"{daemon.log_directory}/{file}"
            path = f"{root}{original}"
            rotated = tuple(f"{original}{suffix}" for suffix in _SUFFIXES)
            renamed = [] if original in each.written else [path for path in each.written if path.startswith(rotated)]
            if renamed:
                yield log_not_rotated.finding(
                    shown(path),
                    details=f"The daemon writes to {shown(renamed[0])} until it is restarted. If that is compressed or "
                    "removed, lines are lost.",
                    commands=(_INSTALL_LOGROTATE,),
                )
            if size >= LARGE_BYTES:
                yield log_not_rotated.finding(
                    shown(path),
                    details=f"Its size is {size >> 20} MiB.",
                    commands=(_INSTALL_LOGROTATE, f"truncate -s 0 {quoted(path)}"),
                )
