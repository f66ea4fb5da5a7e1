"""Checks of control daemons, their units and NVIDIA's programs."""

import re
from collections.abc import Iterator

from exporter.doctor.facts import TEMPORARY, Area, Facts
from exporter.doctor.finding import Check, Found, Severity, found
from exporter.doctor.words import (
    daemon_text,
    keyed,
    quoted,
    restart_commands,
    shown,
    start_commands,
    with_everybodys_tmp,
)
from exporter.model.daemon import SUPPORTED_PROTOCOL, DaemonState
from exporter.report.problem import FindingCode

ENOUGH_OPEN_FILES = 16384
"""What NVIDIA recommends for servers with many clients (MPS guide, known issues)."""


def no_daemon(facts: Facts) -> Iterator[Found]:
    """No control daemon runs, nor is any expected."""
    expected = any(daemon.declared.expected for daemon in facts.node.daemons.values())
    if (
        not expected
        and not facts.daemons
        and not any(daemon.lifecycle.ever_ran for daemon in facts.node.daemons.values())
    ):
        yield Found(
            severity=Severity.WARNING,
            what="no control daemon runs, and none is expected: there is no MPS here to watch",
            mend="Start one; and enable its unit, or name it in the configuration, so that its absence pages somebody",
            commands=("systemctl enable --now nvidia-cuda-mps", "nvidia-cuda-mps-control -d"),
        )


def daemon_absent(facts: Facts) -> Iterator[Found]:
    """A daemon that is expected does not run."""
    for daemon in facts.node.daemons.values():
        lives = facts.daemons_of(daemon.name) or daemon.answers or daemon.state is DaemonState.UNRESPONSIVE
        if daemon.declared.expected and not lives and not facts.hidden(daemon.name):
            unit = daemon.declared.unit
            asks = () if unit is None else (f"systemctl status {quoted(unit)}",)
            yield found(
                FindingCode.DAEMON_DEAD,
                where=(shown(daemon.name),),
                fix="If it is no longer needed, remove it from the configuration, or disable its unit.",
                commands=(*asks, *start_commands(facts, daemon)),
            )


def daemon_silent(facts: Facts) -> Iterator[Found]:
    """A daemon runs, and does not answer."""
    for daemon in facts.node.daemons.values():
        # One that is stuck in the kernel cannot be looked into either.
        running = facts.daemons_of(daemon.name)
        if daemon.state is DaemonState.UNRESPONSIVE or (running and daemon.commands.unanswered):
            name = shown(daemon.name)
            yield found(
                FindingCode.DAEMON_HUNG,
                where=tuple(daemon_text(each) for each in running[:1]) or (name,),
                commands=(
                    "cuda-mps-exporter status --look",
                    *(f"kill -CONT {each.process.pid}" for each in running[:1]),
                ),
            )


def daemon_held(facts: Facts) -> Iterator[Found]:
    """Somebody keeps a session with a daemon open, and so all others out."""
    for daemon, _ in facts.running():
        if daemon.state is DaemonState.HELD or daemon.commands.refused_since is not None:
            holder = daemon.commands.session_holder
            known = holder is not None and holder.pid is not None
            yield found(
                FindingCode.DAEMON_HELD,
                where=(f"{shown(daemon.name)}: held by PID {holder.pid}" if holder and known else shown(daemon.name),),
                fix="Send commands one at a time, as in echo ps | ….",
                commands=("pgrep -a -f nvidia-cuda-mps-control",),
            )


def daemon_not_expected(facts: Facts) -> Iterator[Found]:
    """A daemon runs that no configuration, enabled unit or device plugin declares: no alert fires for its absence.

    Those of containers are their makers' affair.
    """
    for daemon, each in facts.running():
        elsewhere = daemon.name != daemon.pipe_directory
        if daemon.discovered and not daemon.declared.expected and not elsewhere:
            yield Found(
                severity=Severity.ADVICE,
                what="a daemon runs that no configuration, enabled unit or device plugin declares: if it dies, that is "
                "logged, and no alert fires",
                where=(daemon_text(each),),
                mend="Where it should always be there, enable its unit, or name it in "
                "/etc/cuda-mps-exporter/config.toml; a job's own daemon needs nothing",
                commands=("[[daemons]]", keyed("pipe_directory", daemon.pipe_directory)),
            )


def protocol_not_supported(facts: Facts) -> Iterator[Found]:
    """A daemon speaks MPS' protocol 3, which the exporter does not."""
    for daemon, each in facts.running():
        if not daemon.supported:
            yield found(
                FindingCode.DAEMON_UNSUPPORTED,
                detail=f"The daemon uses protocol {daemon.runtime.protocol}, the exporter {SUPPORTED_PROTOCOL}.",
                where=(daemon_text(each),),
                commands=restart_commands(facts, daemon, variables={"CUDA_MPS_PROTOCOL_VERSION": "2"}),
            )


def few_open_files(facts: Facts) -> Iterator[Found]:
    """A daemon and its servers may have few files open: with many clients, a server fails."""
    for _, each in facts.running():
        if each.open_files is not None and each.open_files < ENOUGH_OPEN_FILES:
            yield Found(
                severity=Severity.ADVICE,
                what=f"a daemon and its servers may have {each.open_files} files open: with many clients a server "
                f"runs out of them; NVIDIA recommends {ENOUGH_OPEN_FILES}",
                where=(daemon_text(each),),
                mend="Raise it where the daemon is started (LimitNOFILE=16384 in its unit), and restart it",
                commands=("ulimit -n 16384",),
            )


CHECKS = (
    Check(no_daemon, fine="there is a daemon to watch", mend="start one, and enable its unit"),
    Check(daemon_absent, fine="each daemon that is expected runs", code=FindingCode.DAEMON_DEAD),
    Check(
        daemon_silent,
        fine="each daemon answers",
        code=FindingCode.DAEMON_HUNG,
        needs=(Area.PROGRAMS,),
        doc="docs/watchdog.md",
    ),
    Check(daemon_held, fine="no open session blocks a daemon", code=FindingCode.DAEMON_HELD, needs=(Area.PROGRAMS,)),
    Check(
        daemon_not_expected,
        fine="each daemon is expected",
        mend="enable its unit, or name it in the configuration",
        needs=(Area.UNITS,),
        doc="docs/configuration.md",
    ),
    Check(
        protocol_not_supported,
        fine="each daemon speaks a protocol that is understood",
        needs=(Area.DAEMONS,),
        code=FindingCode.DAEMON_UNSUPPORTED,
    ),
    Check(few_open_files, fine="daemons may have enough files open", mend="`LimitNOFILE=16384`"),
)


EXPORTER = "cuda-mps-exporter.service"


def unit_not_there(facts: Facts) -> Iterator[Found]:
    """The configuration names a unit that there is not: nothing can restart that daemon."""
    for configured in facts.config.daemons:
        if configured.unit is not None and facts.units is not None and configured.unit not in facts.units:
            yield Found(
                severity=Severity.ERROR,
                what=f"the configuration names a unit that systemd does not know, {shown(configured.unit)}: whether "
                "its daemon was stopped cannot be told, and nothing can restart it",
                where=(shown(configured.name),),
                mend="Install the unit, or write its right name",
                commands=("systemctl list-unit-files 'nvidia*'",),
            )


def daemon_private_tmp(facts: Facts) -> Iterator[Found]:
    """A daemon's unit has a /tmp of its own, where its clients do not find it."""
    for daemon in facts.node.daemons.values():
        unit = daemon.runtime.unit or daemon.declared.unit
        if daemon.pipe_directory.startswith(TEMPORARY) and unit is not None and _has_own_tmp(facts, unit):
            yield Found(
                severity=Severity.ERROR,
                what=f"a daemon is in {shown(daemon.pipe_directory)}, and its unit has a /tmp of its own "
                "(PrivateTmp=): nobody outside finds it, and CUDA processes bypass MPS",
                where=(shown(unit),),
                mend="Move the daemon out of /tmp, with CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps for it and its "
                "clients; or let the unit have everybody's /tmp",
                commands=(with_everybodys_tmp(unit),),
            )


def exporter_private_tmp(facts: Facts) -> Iterator[Found]:
    """The exporter's own unit has a /tmp of its own, where it does not find a daemon that is there."""
    hidden = [daemon for daemon in facts.node.daemons.values() if daemon.pipe_directory.startswith(TEMPORARY)]
    if hidden and _has_own_tmp(facts, EXPORTER):
        yield Found(
            severity=Severity.ERROR,
            what="the exporter's unit has a /tmp of its own (PrivateTmp=), where a daemon's directory is another or "
            "none: the exporter sees it by CAP_SYS_PTRACE at best, and not while the daemon is down",
            where=tuple(shown(daemon.name) for daemon in hidden),
            mend="Let the unit have everybody's /tmp, as it is delivered",
            commands=(with_everybodys_tmp(EXPORTER),),
        )


def _has_own_tmp(facts: Facts, unit: str) -> bool:
    found = (facts.units or {}).get(unit)
    return found is not None and found.private_tmp


UNITS_CHECKS = (
    Check(
        unit_not_there,
        fine="systemd knows the units that the configuration names",
        mend="install the unit, or write its right name",
        needs=(Area.UNITS,),
        doc="docs/systemd.md",
    ),
    Check(
        daemon_private_tmp,
        fine="no daemon is hidden in a /tmp of its unit's",
        mend="a directory in /run; or `PrivateTmp=no`",
        needs=(Area.UNITS,),
        doc="docs/systemd.md",
    ),
    Check(
        exporter_private_tmp,
        fine="the exporter's /tmp is everybody's",
        mend="`PrivateTmp=no`, as delivered",
        needs=(Area.UNITS,),
        doc="docs/systemd.md",
    ),
)


_VERSION = re.compile(r"([0-9]{1,3})([0-9]{2})[0-9]")


def control_program_missing(facts: Facts) -> Iterator[Found]:
    """`nvidia-cuda-mps-control` is not where the exporter looks for it."""
    if facts.programs.control is None:
        yield Found(
            severity=Severity.ERROR,
            what=f"{shown(facts.config.constants.control_executable)} is not there: no daemon can be asked anything",
            mend="Install the driver's programs, or say where they are: in a container, "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility has them brought in; else add their directory to PATH",
            commands=("PATH=$PATH:/opt/nvidia/bin cuda-mps-exporter doctor",),
        )


def control_program_fails(facts: Facts) -> Iterator[Found]:
    """`nvidia-cuda-mps-control` is there, and cannot be run."""
    programs = facts.programs
    if programs.control is not None and programs.problem is not None:
        yield Found(
            severity=Severity.ERROR,
            what=f"the control program cannot be run: {shown(programs.problem)}",
            where=(shown(programs.control),),
            mend="See what it says itself, and install that of the driver",
            commands=("nvidia-cuda-mps-control -v",),
        )


def server_program_missing(facts: Facts) -> Iterator[Found]:
    """`nvidia-cuda-mps-server` is not beside the control program."""
    programs = facts.programs
    if programs.control is not None and programs.server is None:
        yield Found(
            severity=Severity.WARNING,
            what="nvidia-cuda-mps-server is neither beside the control program nor in PATH: a daemon started from here "
            "could start no server, and its clients would get error 805",
            where=(shown(programs.control),),
            mend="Install the driver's package that has both programs; where daemons run in a container of their own, "
            "this does not matter",
        )


def version_mismatch(facts: Facts) -> Iterator[Found]:
    """The control program is of another CUDA version than the driver."""
    found = _VERSION.fullmatch(facts.programs.version or "")
    if found is None:
        return
    program = f"{int(found[1])}.{int(found[2])}"
    drivers = {gpu.reading.cuda_version for gpu in facts.node.gpus.values() if gpu.reading.cuda_version is not None}
    for driver in sorted(drivers - {program}):
        yield Found(
            severity=Severity.WARNING,
            what=f"the control program is that of CUDA {program}, the driver that of CUDA {shown(driver)}: an older "
            "installation is in the way, or the driver was upgraded without it",
            where=(shown(facts.programs.control or ""),),
            mend="Remove the programs that are not the driver's, or put the right directory first in PATH",
            commands=("type -a nvidia-cuda-mps-control", "nvidia-smi"),
        )


def daemon_outdated(facts: Facts) -> Iterator[Found]:
    """A daemon runs a program whose file was replaced since."""
    for _, each in facts.running():
        if each.replaced:
            yield Found(
                severity=Severity.WARNING,
                what="a control daemon runs a program whose file was replaced since: the driver was upgraded under it, "
                "and its next server may not start",
                where=(daemon_text(each),),
                mend="Restart the daemon when its clients can be spared: it takes them with it",
            )


PROGRAMS_CHECKS = (
    Check(
        control_program_missing,
        fine="nvidia-cuda-mps-control is there",
        mend="install the driver's programs, or name the path",
    ),
    Check(
        control_program_fails,
        fine="nvidia-cuda-mps-control can be run",
        mend="install that of the driver",
        needs=(Area.PROGRAMS,),
    ),
    Check(
        server_program_missing,
        fine="nvidia-cuda-mps-server is there",
        mend="install the package that has both",
        needs=(Area.PROGRAMS,),
    ),
    Check(
        version_mismatch,
        fine="the programs are the driver's",
        mend="remove those of an older installation",
        needs=(Area.PROGRAMS, Area.GPUS),
    ),
    Check(
        daemon_outdated,
        fine="daemons run the programs that are installed",
        mend="restart the daemon when its clients can be spared",
        needs=(Area.DAEMONS,),
    ),
)
