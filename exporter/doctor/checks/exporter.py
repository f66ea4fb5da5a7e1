"""Checks of the exporter: configuration, rights, watchdog, attribution."""

from collections.abc import Iterator

from exporter.config.settings import Attribution, DaemonConfig
from exporter.doctor.check import AS_ROOT, ATTRIBUTION_AS_ROOT, DROP_INS, RESTART_EXPORTER, UNITS, check, quoted, shown
from exporter.doctor.facts import Area, ExporterProcess, Facts
from exporter.model.settings import Mode
from exporter.parse.proc import Capability
from exporter.report.finding import Finding
from exporter.report.problem import Severity

_UNIT = f"install -Dm 644 -t /etc/systemd/system {UNITS}/cuda-mps-exporter.service"


@check(Severity.CRITICAL, page="docs/configuration.md")
def configuration_unusable(facts: Facts) -> Iterator[Finding]:
    """A flag, a variable, the configuration file or the web config file is invalid. The exporter does not start.

    Correct it, and check it with `serve --config.check`.
    """
    if facts.config_problem is not None:
        yield configuration_unusable.finding(
            details=f"{shown(facts.config_problem)}. The other checks ignore the configuration.",
            commands=("cuda-mps-exporter serve --config.check",),
        )
    if facts.web_problem is not None:
        file = str(facts.config.web_config_file)
        yield configuration_unusable.finding(
            shown(file),
            details=shown(facts.web_problem),
            commands=(f"cuda-mps-exporter serve --config.check --web.config.file={quoted(file)}",),
        )


@check(Severity.WARNING, Area.RIGHTS, page="docs/security.md")
def history_not_writable(facts: Facts) -> Iterator[Finding]:
    """The exporter cannot write to its state directory. A restart loses incidents and the watchdog's state.

    Make the service's user its owner, as the unit does (StateDirectory=).
    """
    exporter = facts.exporter
    if exporter.state_problem is not None:
        directory = quoted(exporter.state_directory)
        yield history_not_writable.finding(
            shown(exporter.state_directory),
            details=f"For {exporter.label}: {shown(exporter.state_problem)}.",
            commands=(f"chown -R cuda-mps-exporter: {directory} && chmod 0700 {directory}",),
            rated=None if exporter.is_service else Severity.INFO,
        )


@check(Severity.CRITICAL, page="docs/watchdog.md")
def acts_without_restart(facts: Facts) -> Iterator[Finding]:
    """The watchdog may act, but has no unit or command to restart a daemon. A daemon that ends stays down.

    Set `unit` or `restart_command` in the daemon's [[daemons]].
    """
    for configured in facts.config.daemons:
        daemon = facts.node.daemons.get(configured.name)
        unit = configured.unit or (None if daemon is None else daemon.declared.unit)
        if _acts(configured, facts) and unit is None and not configured.restart_command:
            yield acts_without_restart.finding(shown(configured.name), commands=('unit = "nvidia-cuda-mps.service"',))


def _acts(configured: DaemonConfig, facts: Facts) -> bool:
    return (configured.watchdog or facts.config.watchdog) is Mode.ACT


def _lacks(exporter: ExporterProcess, missing: str) -> str:
    return f"{exporter.label[:1].upper()}{exporter.label[1:]} (UID {exporter.uid}) lacks {missing}."


@check(Severity.WARNING, Area.RIGHTS, page="docs/security.md")
def exporter_rights(facts: Facts) -> Iterator[Finding]:
    """The exporter does not have the rights that it needs. It lacks a capability, or has one too many.

    Give it the rights of the delivered unit and its drop-ins, and no others.
    """
    exporter = facts.exporter
    others = [each for each in facts.daemons if each.process.uid != exporter.uid]
    missing = exporter.lacks(Capability.SYS_PTRACE)
    if missing and (others or not facts.daemons):
        yield exporter_rights.finding(
            *(shown(each.name) for each in others),
            details="It assumes that daemons serve all GPUs, and misses those in containers. "
            f"Paths of programs and exit statuses are also unknown. {_lacks(exporter, missing)}",
            commands=(_UNIT, RESTART_EXPORTER) if exporter.is_service else AS_ROOT,
        )
    acting = tuple(shown(each.name) for each in facts.config.daemons if _acts(each, facts))
    missing = exporter.lacks(Capability.KILL, Capability.SETUID, Capability.SETGID)
    if missing and (acting or facts.config.watchdog is Mode.ACT):
        yield exporter_rights.finding(
            *acting,
            details="The watchdog may act, but cannot end hung daemons or run commands as their users. "
            + _lacks(exporter, missing),
            advice="Install the drop-in `act.conf` and the polkit rule. They allow restarts of units.",
            commands=(
                f"{DROP_INS}/act.conf",
                f"install -Dm 644 -t /etc/polkit-1/rules.d {UNITS}/50-cuda-mps-exporter.rules",
                "systemctl try-restart polkit",
                RESTART_EXPORTER,
            ),
        )
    if exporter.uid != 0 and not exporter.lacks(Capability.DAC_OVERRIDE):
        yield exporter_rights.finding(
            details="It has CAP_DAC_OVERRIDE, but is not root. Daemons of other users refuse its queries (measured, "
            "R580).",
            commands=("systemctl edit cuda-mps-exporter  # AmbientCapabilities=CAP_SYS_PTRACE",),
            rated=Severity.CRITICAL,
        )


@check(Severity.INFO, Area.RIGHTS, page="docs/security.md")
def kernel_log_closed(facts: Facts) -> Iterator[Finding]:
    """The exporter cannot read the kernel log. It misses some Xids, and no faulting address names a client.

    Install the drop-in `kernel-log.conf` (CAP_SYSLOG).
    """
    if facts.exporter.kernel_log is not None:
        yield kernel_log_closed.finding(
            details=f"For {facts.exporter.label}: {shown(facts.exporter.kernel_log)}.",
            commands=(f"{DROP_INS}/kernel-log.conf", RESTART_EXPORTER),
        )


@check(Severity.UNKNOWN, page="docs/security.md")
def not_examined(facts: Facts) -> Iterator[Finding]:
    """An area was not fully examined. Mistakes in it are unknown.

    Run doctor as root.
    """
    for each in facts.not_examined:
        if not each.reported:
            yield not_examined.finding(
                details=f"The area is {each.area}: {shown(each.reason)}.", advice=each.fix, commands=each.commands
            )


@check(Severity.WARNING, Area.LAUNCHES, Area.RIGHTS, page="docs/security.md")
def launches_not_counted(facts: Facts) -> Iterator[Finding]:
    """With `attribution=bpf`, launches cannot be counted. SM time is not attributed to these clients.

    Make it possible, or set --attribution=off.
    """
    exporter, probes = facts.exporter, facts.libcuda_probes
    # CAP_SYS_ADMIN includes the other two.
    missing = exporter.lacks(Capability.SYS_ADMIN) and exporter.lacks(Capability.BPF, Capability.PERFMON)
    if facts.config.attribution is Attribution.BPF and missing:
        yield launches_not_counted.finding(
            details=_lacks(exporter, missing),
            advice="Install the drop-in `bpf.conf`, or run doctor as root.",
            commands=(f"{DROP_INS}/bpf.conf", RESTART_EXPORTER) if exporter.is_service else ATTRIBUTION_AS_ROOT,
        )
    elif probes is not None and probes.refused is not None:
        yield launches_not_counted.finding(
            details=f"The kernel refuses the BPF programs: {shown(probes.refused)}.",
            advice="Use Linux with BPF and uprobes, without confidentiality lockdown, on x86-64 or arm64. "
            "In a container, check the seccomp profile.",
            commands=("cat /sys/kernel/security/lockdown", "uname -rm"),
        )
    if probes is not None and not probes.libraries and not probes.problems:
        yield launches_not_counted.finding(
            details="No libcuda.so.1 is in the directories of the distribution or in a CUDA process.",
            advice="Install the driver's libraries. In a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
        )
    for problem in probes.problems if probes is not None else ():
        yield launches_not_counted.finding(shown(problem), advice="Restart processes with a replaced library.")
