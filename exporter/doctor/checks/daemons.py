"""Checks of NVIDIA's programs, control daemons and their units."""

import re
from collections.abc import Iterator

from exporter.doctor.facts import TEMPORARY, Area, DaemonFacts, Facts
from exporter.doctor.finding import Occurrence, Severity, check
from exporter.doctor.formatting import (
    config_line,
    daemon_label,
    error_text,
    gpu_label,
    nvml_problem,
    quoted,
    shown,
    start_commands,
    without_private_tmp,
)
from exporter.model.daemon import SUPPORTED_PROTOCOLS, Daemon, DaemonState
from exporter.model.reason import ReasonCode
from exporter.model.settings import DEFAULT_LOG_DIRECTORY, DEFAULT_PIPE_DIRECTORY, LOG_DIRECTORY, PIPE_DIRECTORY
from exporter.report.findings import FULL_RATIO
from exporter.report.problem import FindingCode
from exporter.report.text import duration_text, failed_starts_text, mebibytes
from exporter.state.gpus import is_from_volta, serves_gpu
from exporter.state.servers import in_crash_loop

ENOUGH_OPEN_FILES = 16384
"""What NVIDIA recommends for servers with many clients (MPS guide, known issues)."""

EXPORTER = "cuda-mps-exporter.service"

_START = (
    f"mkdir -p {DEFAULT_PIPE_DIRECTORY} {DEFAULT_LOG_DIRECTORY} && {PIPE_DIRECTORY}={DEFAULT_PIPE_DIRECTORY}"
    f" {LOG_DIRECTORY}={DEFAULT_LOG_DIRECTORY} nvidia-cuda-mps-control -d"
)

_VERSION = re.compile(r"([0-9]{1,3})([0-9]{2})[0-9]")


@check(
    Severity.ERROR,
    fix="Install the driver's programs, or add their directory to PATH. In a container, set "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
)
def control_program_unusable(facts: Facts) -> Iterator[Occurrence]:
    """nvidia-cuda-mps-control was not found, or fails. The exporter cannot query a daemon."""
    programs = facts.programs
    if programs.control is None:
        yield Occurrence(
            (shown(facts.config.constants.control_executable),),
            commands=("PATH=$PATH:/opt/nvidia/bin cuda-mps-exporter doctor",),
        )
    elif programs.problem is not None:
        yield Occurrence(
            (shown(programs.control),), detail=error_text(programs.problem), commands=("nvidia-cuda-mps-control -v",)
        )


@check(
    Severity.WARNING,
    Area.PROGRAMS,
    fix="Install the driver's package that has both programs. Ignore this if all daemons run in containers.",
)
def server_program_missing(facts: Facts) -> Iterator[Occurrence]:
    """nvidia-cuda-mps-server was not found."""
    if facts.programs.control is not None and facts.programs.server is None:
        yield Occurrence(
            (shown(facts.programs.control),),
            detail="It is neither in PATH nor in the directory of nvidia-cuda-mps-control. A daemon that is started "
            "here cannot start a server, and its clients get error 805.",
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


@check(FindingCode.DAEMON_DEAD, Area.DAEMONS, Area.DIRECTORIES)
def daemon_absent(facts: Facts) -> Iterator[Occurrence]:
    """A daemon that is expected, or was killed, does not run."""
    for daemon in facts.node.daemons.values():
        runs = facts.daemons_of(daemon.name) or daemon.answers or daemon.state is DaemonState.UNRESPONSIVE
        directory = facts.directories.get(daemon.name)
        killed = directory is not None and directory.pid_file_mode is not None and daemon.ended
        if (daemon.declared.expected or killed) and not runs and not facts.hidden(daemon.name):
            unit = daemon.declared.unit
            status = () if unit is None else (f"systemctl status {quoted(unit)}",)
            yield Occurrence(
                (shown(daemon.name),),
                detail="Its PID file shows that it was killed." if killed else "",
                fix="If it is no longer needed, remove it from the configuration, or disable its unit."
                if daemon.declared.expected
                else "",
                commands=(*status, *start_commands(facts, daemon)),
                severity=None if daemon.declared.expected else Severity.WARNING,
            )


@check(FindingCode.DAEMON_HUNG, Area.PROGRAMS, doc="docs/watchdog.md")
def daemon_hung(facts: Facts) -> Iterator[Occurrence]:
    """A daemon runs, but does not answer."""
    for daemon in facts.node.daemons.values():
        # The facts of a daemon that is stuck in the kernel cannot be read either.
        running = facts.daemons_of(daemon.name)[:1]
        if daemon.state is DaemonState.UNRESPONSIVE or (running and daemon.commands.unanswered):
            resume = tuple(f"kill -CONT {each.process.pid}" for each in running)
            yield Occurrence(
                tuple(map(daemon_label, running)) or (shown(daemon.name),),
                commands=("cuda-mps-exporter status --look", *resume),
            )


@check(FindingCode.DAEMON_HELD, Area.PROGRAMS)
def daemon_held(facts: Facts) -> Iterator[Occurrence]:
    """An open session blocks a daemon."""
    for daemon, _ in facts.running():
        if daemon.state is DaemonState.HELD or daemon.commands.refused_since is not None:
            holder = daemon.commands.session_holder
            pid = "" if holder is None or holder.pid is None else f": held by PID {holder.pid}"
            yield Occurrence(
                (f"{shown(daemon.name)}{pid}",),
                fix="Send commands one at a time.",
                commands=("pgrep -a -f nvidia-cuda-mps-control",),
            )


@check(FindingCode.SERVER_CRASH_LOOP, Area.DAEMONS, Area.LOGS, Area.GPUS, Area.DIRECTORIES)
def servers_exit_early(facts: Facts) -> Iterator[Occurrence]:
    """Servers exit before they are ready. Clients get error 805."""
    for daemon, each in facts.running():
        failed = daemon.connections.failed_starts
        if failed.reported and failed.last_exit_at is not None:
            causes = list(_causes_of_early_exits(facts, daemon, each)) or ["None of the usual causes was found"]
            causes += ["The kernel log was not read for Xids"] if facts.exporter.kernel_log is not None else []
            ago = duration_text(max(0.0, facts.node.at - failed.last_exit_at))
            logs = " ".join(quoted(log.path) for log in facts.logs.get(daemon.name, ()) if log.problem is None)
            yield Occurrence(
                (daemon_label(each),),
                detail=f"By its log, {failed_starts_text(failed)}. That was {ago} ago. {'. '.join(causes)}.",
                commands=(f"tail -n 30 {logs}",) if logs else (),
                severity=None if in_crash_loop(daemon, facts.node.at) else Severity.WARNING,
            )


def _causes_of_early_exits(facts: Facts, daemon: Daemon, each: DaemonFacts) -> Iterator[str]:
    """Yield what usually prevents a server from starting, if it is so here."""
    directory = facts.directories.get(daemon.name)
    if directory is not None and directory.closed is not None:
        yield f"A user's server cannot enter {shown(directory.closed)}: see directory-closed"
    problem = nvml_problem(facts)
    mismatch = problem is not None and problem.code is ReasonCode.DRIVER_MISMATCH
    if each.outdated or mismatch or any(version_mismatch.find(facts)):
        yield "The driver, its libraries or its programs have different versions"
    in_container = each.process.container is not None or daemon.name != daemon.pipe_directory
    own = {*daemon.clients, *daemon.servers}
    for uuid, gpu in facts.node.gpus.items():
        reading = gpu.reading
        if not serves_gpu(facts.node, daemon, reading):
            continue
        label = gpu_label(gpu)
        others = [process.pid for process in reading.compute_processes or () if process.pid not in own]
        used, total = reading.memory_used_bytes, reading.memory_total_bytes
        if reading.problem is not None or uuid in facts.xids:
            xid = f" (Xid {facts.xids[uuid]} since the boot)" if uuid in facts.xids else ""
            yield f"{label} has an error, and may need a reset{xid}"
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


@check(FindingCode.DAEMON_UNSUPPORTED, Area.DAEMONS)
def protocol_not_supported(facts: Facts) -> Iterator[Occurrence]:
    """A daemon uses a protocol that the exporter does not support."""
    for daemon, each in facts.running():
        if not daemon.supported:
            known = " and ".join(map(str, SUPPORTED_PROTOCOLS))
            yield Occurrence(
                (daemon_label(each),),
                detail=f"The daemon uses protocol {daemon.runtime.protocol}, the exporter {known}.",
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
    fix="Move the daemon to /run, or set PrivateTmp=no. To move it, set CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps for it "
    "and its clients.",
    doc="docs/systemd.md",
)
def daemon_private_tmp(facts: Facts) -> Iterator[Occurrence]:
    """A daemon in /tmp has a unit with a private /tmp. Other CUDA processes do not find the daemon, and bypass MPS."""
    for daemon in facts.node.daemons.values():
        unit = daemon.runtime.unit or daemon.declared.unit
        if daemon.pipe_directory.startswith(TEMPORARY) and unit is not None and (facts.private_tmp or {}).get(unit):
            yield Occurrence((f"{shown(unit)}: {shown(daemon.pipe_directory)}",), commands=(without_private_tmp(unit),))


@check(Severity.ERROR, Area.UNITS, fix="Set PrivateTmp=no, as in the delivered unit.", doc="docs/systemd.md")
def exporter_private_tmp(facts: Facts) -> Iterator[Occurrence]:
    """The exporter's unit has a private /tmp. The exporter may not find a daemon in /tmp."""
    hidden = tuple(
        shown(daemon.name) for daemon in facts.node.daemons.values() if daemon.pipe_directory.startswith(TEMPORARY)
    )
    if hidden and (facts.private_tmp or {}).get(EXPORTER):
        yield Occurrence(
            hidden,
            detail="It finds the daemon only while the daemon runs, and only with CAP_SYS_PTRACE.",
            commands=(without_private_tmp(EXPORTER),),
        )
