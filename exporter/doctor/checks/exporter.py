"""Checks of the exporter: configuration, rights, watchdog, attribution, web server."""

from collections.abc import Iterator

from exporter.config.settings import Attribution, DaemonConfig
from exporter.doctor.facts import Area, ExporterProcess, Facts
from exporter.doctor.finding import Occurrence, Severity, check
from exporter.doctor.formatting import (
    AS_ROOT,
    ATTRIBUTION_AS_ROOT,
    DROP_INS,
    RESTART_EXPORTER,
    UNITS,
    error_text,
    quoted,
    shown,
)
from exporter.model.settings import Mode
from exporter.parse.proc import Capability

_UNIT = f"install -Dm 644 -t /etc/systemd/system {UNITS}/cuda-mps-exporter.service"


@check(
    Severity.ERROR,
    fix="Correct it, and check it with `serve --config.check`.",
    doc="docs/configuration.md",
)
def configuration_unusable(facts: Facts) -> Iterator[Occurrence]:
    """A flag, a variable, the configuration file or the web config file is invalid. The exporter does not start."""
    if facts.config_problem is not None:
        yield Occurrence(
            detail=f"The error is: {shown(facts.config_problem)}. The other checks ignore the configuration.",
            commands=("cuda-mps-exporter serve --config.check",),
        )
    if facts.web_problem is not None:
        file = str(facts.config.web_config_file)
        yield Occurrence(
            (shown(file),),
            detail=error_text(facts.web_problem),
            commands=(f"cuda-mps-exporter serve --config.check --web.config.file={quoted(file)}",),
        )


@check(
    Severity.WARNING, fix="Make the service's user its owner, as the unit does (StateDirectory=).", doc="docs/rights.md"
)
def history_not_writable(facts: Facts) -> Iterator[Occurrence]:
    """The exporter cannot write to its state directory. A restart loses incidents and the watchdog's state."""
    exporter = facts.exporter
    if exporter.state_problem is not None:
        directory = quoted(exporter.state_directory)
        yield Occurrence(
            (shown(exporter.state_directory),),
            detail=f"For {exporter.label}: {shown(exporter.state_problem)}.",
            commands=(f"chown -R cuda-mps-exporter: {directory} && chmod 0700 {directory}",),
            severity=None if exporter.is_service else Severity.ADVICE,
        )


@check(Severity.ERROR, fix="Set `unit` or `restart_command` in the daemon's [[daemons]].", doc="docs/watchdog.md")
def acts_without_restart(facts: Facts) -> Iterator[Occurrence]:
    """The watchdog may act, but has no unit or command to restart a daemon."""
    for configured in facts.config.daemons:
        daemon = facts.node.daemons.get(configured.name)
        unit = configured.unit or (None if daemon is None else daemon.declared.unit)
        if _acts(configured, facts) and unit is None and not configured.restart_command:
            yield Occurrence((shown(configured.name),), commands=('unit = "nvidia-cuda-mps.service"',))


@check(
    Severity.WARNING,
    fix="Install the drop-in `act.conf` and the polkit rule. They allow restarts of units.",
    doc="docs/systemd.md",
)
def acts_without_rights(facts: Facts) -> Iterator[Occurrence]:
    """The watchdog may act, but lacks rights. It cannot end hung daemons or run commands as their users."""
    acting = [each for each in facts.config.daemons if _acts(each, facts)]
    missing = facts.exporter.lacks(Capability.KILL, Capability.SETUID, Capability.SETGID)
    if missing and (acting or facts.config.watchdog is Mode.ACT):
        yield Occurrence(
            tuple(shown(each.name) for each in acting),
            detail=_lacks(facts.exporter, missing),
            commands=(
                f"{DROP_INS}/act.conf",
                f"install -Dm 644 -t /etc/polkit-1/rules.d {UNITS}/50-cuda-mps-exporter.rules",
                "systemctl try-restart polkit",
                RESTART_EXPORTER,
            ),
        )


def _acts(configured: DaemonConfig, facts: Facts) -> bool:
    return (configured.watchdog or facts.config.watchdog) is Mode.ACT


def _lacks(exporter: ExporterProcess, missing: str) -> str:
    return f"{exporter.label[:1].upper()}{exporter.label[1:]} (UID {exporter.uid}) lacks {missing}."


@check(Severity.WARNING, fix="Run the service from its unit, or doctor as root.", doc="docs/rights.md")
def ptrace_right_missing(facts: Facts) -> Iterator[Occurrence]:
    """The exporter lacks CAP_SYS_PTRACE. It assumes that daemons serve all GPUs, and misses those in containers."""
    exporter = facts.exporter
    missing = exporter.lacks(Capability.SYS_PTRACE)
    others = [each for each in facts.daemons if each.process.uid != exporter.uid]
    if missing and (others or not facts.daemons):
        yield Occurrence(
            tuple(shown(each.name) for each in others),
            detail="Paths of programs and exit statuses are also unknown. " + _lacks(exporter, missing),
            commands=(_UNIT, RESTART_EXPORTER) if exporter.is_service else AS_ROOT,
        )


@check(Severity.ADVICE, fix="Install the drop-in `kernel-log.conf` (CAP_SYSLOG).", doc="docs/rights.md")
def kernel_log_closed(facts: Facts) -> Iterator[Occurrence]:
    """The exporter cannot read the kernel log. It misses some Xids, and root causes are less certain."""
    if facts.exporter.kernel_log is not None:
        yield Occurrence(
            detail=f"For {facts.exporter.label}: {shown(facts.exporter.kernel_log)}.",
            commands=(f"{DROP_INS}/kernel-log.conf", RESTART_EXPORTER),
        )


@check(Severity.ERROR, fix="Remove the capability. The delivered unit does not have it.", doc="docs/rights.md")
def too_many_rights(facts: Facts) -> Iterator[Occurrence]:
    """The exporter has CAP_DAC_OVERRIDE, but is not root. Other users' daemons refuse its queries (measured, R580)."""
    if facts.exporter.uid != 0 and not facts.exporter.lacks(Capability.DAC_OVERRIDE):
        yield Occurrence(commands=("systemctl edit cuda-mps-exporter  # AmbientCapabilities=CAP_SYS_PTRACE",))


@check(Severity.ADVICE, fix="Run doctor as root, or as the service's user.", doc="docs/rights.md")
def service_not_identified(facts: Facts) -> Iterator[Occurrence]:
    """The service cannot be identified. The report has the rights of this command instead."""
    if facts.exporter.unanswering is not None:
        yield Occurrence(
            (shown(str(facts.config.runtime_directory)),),
            detail=error_text(facts.exporter.unanswering),
            commands=AS_ROOT,
        )


@check(Severity.WARNING, fix="Run doctor as root.", doc="docs/rights.md")
def not_examined(facts: Facts) -> Iterator[Occurrence]:
    """An area was not fully examined. Mistakes in it are unknown."""
    for each in facts.not_examined:
        if not each.reported:
            yield Occurrence(
                detail=f"The area is {each.area}: {shown(each.reason)}.", fix=each.fix, commands=each.commands
            )


@check(Severity.WARNING, Area.LAUNCHES, fix="Make it possible, or set --attribution=off.", doc="docs/rights.md")
def launches_not_counted(facts: Facts) -> Iterator[Occurrence]:
    """With `attribution=bpf`, launches cannot be counted. SM time is not attributed to these clients."""
    missing, probes = _missing_for_bpf(facts.exporter), facts.libcuda_probes
    if facts.config.attribution is Attribution.BPF and missing:
        is_service = facts.exporter.is_service
        yield Occurrence(
            detail=_lacks(facts.exporter, missing),
            fix="Install the drop-in `bpf.conf`, or run doctor as root.",
            commands=(f"{DROP_INS}/bpf.conf", RESTART_EXPORTER) if is_service else ATTRIBUTION_AS_ROOT,
        )
    elif probes is not None and probes.refused is not None:
        yield Occurrence(
            detail=f"The kernel refuses the BPF programs. {error_text(probes.refused)}",
            fix="Use Linux with BPF and uprobes, without confidentiality lockdown, on x86-64 or arm64. In a container, "
            "check the seccomp profile.",
            commands=("cat /sys/kernel/security/lockdown", "uname -rm"),
        )
    if probes is not None and not probes.libraries and not probes.problems:
        yield Occurrence(
            detail="No libcuda.so.1 is in the directories of the distribution or in a CUDA process.",
            fix="Install the driver's libraries. In a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
        )
    for problem in probes.problems if probes is not None else ():
        yield Occurrence((shown(problem),), fix="Restart processes with a replaced library.")


def _missing_for_bpf(exporter: ExporterProcess) -> str:
    """Return what the exporter lacks; CAP_SYS_ADMIN includes the other two."""
    return exporter.lacks(Capability.SYS_ADMIN) and exporter.lacks(Capability.BPF, Capability.PERFMON)


@check(
    Severity.ERROR,
    Area.PORTS,
    fix="End the program, or change `web.listen-address`. In that case, change Prometheus, too.",
    doc="docs/web.md",
)
def port_taken(facts: Facts) -> Iterator[Occurrence]:
    """Another program uses the exporter's port."""
    for listener in facts.listeners:
        if not listener.is_service:
            port = listener.address.rpartition(":")[2]
            yield Occurrence(
                (shown(listener.address),),
                detail=f"It runs as UID {listener.uid}.",
                commands=(f"ss -ltnp 'sport = :{port}'", "cuda-mps-exporter serve --web.listen-address=:10678"),
            )
