"""Checks of CUDA processes, namespaces and containers, then of the exporter: configuration, rights, attribution."""

import posixpath
from collections.abc import Iterator
from functools import partial

from exporter.collectors.proc import INITIAL_PID_NAMESPACE
from exporter.config.settings import Attribution, DaemonConfig
from exporter.doctor.facts import (
    AS_ROOT,
    ATTRIBUTION_AS_ROOT,
    DROP_INS,
    RESTART_EXPORTER,
    TEMPORARY,
    UNITS,
    Area,
    DaemonFacts,
    ExporterProcess,
    Facts,
    ProcessFacts,
    check,
    cuda_processes,
    process_label,
    quoted,
    shown,
    without_private_tmp,
)
from exporter.model.daemon import Daemon
from exporter.model.settings import PIPE_DIRECTORY, Mode
from exporter.parse.printable import printable
from exporter.parse.proc import Capability
from exporter.report.document_parts import Severity
from exporter.report.finding import Finding
from exporter.report.problems import NodeProblem, Situation
from exporter.state.devices import serves_all_gpus_of
from exporter.view import gpu_name

_NEEDS = (Area.GPUS, Area.DAEMONS, Area.PROCESSES)


@check(NodeProblem.PROCESS_BYPASSING, *_NEEDS)
def process_bypassing(facts: Facts) -> Iterator[Finding]:
    """A CUDA process bypasses MPS, for one of several reasons."""
    for daemon, each, process, gpu in bypassing(facts):
        path, reaches = process.pipe_directory, _reaches(daemon, each, process)
        same = posixpath.normpath(path) == posixpath.normpath(each.process.pipe_directory)
        below = process.container is not None and _is_below(daemon, each, process)
        hidden = (same or below) and not reaches
        finding = partial(Finding, NodeProblem.PROCESS_BYPASSING, values={"gpu": gpu}, facts=(process_label(process),))
        if not hidden and not reaches:
            default = "" if process.variable(PIPE_DIRECTORY) is not None else " (the default)"
            suffices = serves_all_gpus_of(facts.node, daemon, process.pid)
            others = "They also use GPUs that the daemon does not have. Start them on the GPUs of one daemon."
            yield finding(
                details=f"They were started with {shown(path)}{default}, "
                f"the daemon has {shown(each.process.pipe_directory)}.",
                advice=f"Set it in the {_place_of_variables(process)}." if suffices else others,
                commands=(f"{PIPE_DIRECTORY}={quoted(daemon.pipe_directory)}",) if suffices else (),
            )
        elif hidden and path.startswith(TEMPORARY) and process.container is None:
            yield finding(
                details=f"They have a private /tmp without the daemon's directory, {shown(path)}.",
                situation=Situation.PRIVATE_TMP,
                commands=(without_private_tmp(process.unit),) if process.unit else (),
            )
        elif hidden:
            directory = quoted(path)
            yield finding(
                details=f"In their container, {shown(path)} is not the daemon's directory, or is missing.",
                situation=Situation.CONTAINER_WITHOUT_DIRECTORY,
                commands=(f"docker run --ipc=host -v {directory}:{directory} -e {PIPE_DIRECTORY}={directory} IMAGE",),
            )
        if reaches:
            # The compute mode concerns all users.
            advice = "" if each.process.uid else "To make such a process fail instead, set EXCLUSIVE_PROCESS."
            yield finding(details="They have the daemon's directory: they started while no daemon ran.", advice=advice)


@check(Severity.WARNING, *_NEEDS)
def shared_memory_differs(facts: Facts) -> Iterator[Finding]:
    """A CUDA process has another /dev/shm than its daemon. It hangs when it connects, or is refused.

    Share the IPC namespace, or mount the daemon's /dev/shm. In a pod, set hostIPC: true.
    """
    for each, process in _connecting(facts):
        memories = each.process.shared_memory, process.shared_memory
        connected = process.pid in facts.node.daemons[each.name].clients
        if None not in memories and memories[0] != memories[1] and not connected:
            yield shared_memory_differs.finding(process_label(process), commands=("docker run --ipc=host IMAGE",))


@check(Severity.WARNING, *_NEEDS)
def pid_namespace_differs(facts: Facts) -> Iterator[Finding]:
    """A daemon does not see the PID of a client, and can neither name nor end it.

    The container of the daemon does not contain the client's PID namespace.

    Run the daemon in the host's PID namespace. In a pod, set hostPID: true. For NVIDIA's device plugin, use 0.18 or
    newer, with mps.enableHostPID.
    """
    for each, process in _connecting(facts):
        own = each.process.pid_namespaces[:1]
        if own and process.pid_namespaces and own[0] not in process.pid_namespaces:
            yield pid_namespace_differs.finding(f"{process_label(process)}, of {shown(each.name)}")


@check(Severity.INFO, Area.DAEMONS, Area.PROCESSES, Area.RIGHTS)
def exporter_pid_namespace(facts: Facts) -> Iterator[Finding]:
    """The exporter is not in the host's PID namespace. It knows no user, command or end of processes outside.

    Set hostPID: true in the pod. If all CUDA processes are in this container, and launches need not be counted,
    ignore this.
    """
    own = facts.exporter.pid_namespaces[:1]
    if not own or own[0] == INITIAL_PID_NAMESPACE:
        return
    unknown = len(set(cuda_processes(facts.node)) - set(facts.processes))
    hidden = tuple(shown(name) for name in facts.directories if facts.hidden(name))
    details = [f"Unknown processes on GPUs: {unknown}."] if unknown else []
    details += ["Whether a daemon runs is unknown."] if hidden else []
    yield exporter_pid_namespace.finding(
        *hidden,
        details=" ".join(details),
        commands=("docker run --pid=host IMAGE",),
        rated=Severity.WARNING if details else None,
    )


def bypassing(facts: Facts) -> Iterator[tuple[Daemon, DaemonFacts, ProcessFacts, str]]:
    """Yield the bypassing processes of known environment, with the daemon of the GPU and the GPU's name."""
    for gpu in facts.node.gpus.values():
        label = printable(gpu_name(facts.node, gpu.reading.gpu))
        for process in (facts.processes[pid] for pid in gpu.bypassing if pid in facts.processes):
            daemon = facts.node.daemons.get(gpu.bypassing_processes[process.pid].daemon or "")
            running = () if daemon is None or daemon.has_lost_directory else facts.daemons_of(daemon.name)
            if daemon and running and running[0].process.pipe is not None and process.environment is not None:
                yield daemon, running[0], process, label


def _connecting(facts: Facts) -> Iterator[tuple[DaemonFacts, ProcessFacts]]:
    """Yield the processes that can reach a daemon, or are its clients."""
    for daemon, each in facts.running():
        yield from ((each, process) for process in facts.clients_of(daemon))
    for daemon, each, process, _ in bypassing(facts):
        if _reaches(daemon, each, process):
            yield each, process


def _reaches(daemon: Daemon, each: DaemonFacts, process: ProcessFacts) -> bool:
    """Return whether the process has the daemon's directory, or one of a server or namespace in it."""
    return process.pipe is not None and (process.pipe == each.process.pipe or _is_below(daemon, each, process))


def _is_below(daemon: Daemon, each: DaemonFacts, process: ProcessFacts) -> bool:
    own, path = (posixpath.normpath(facts.pipe_directory) for facts in (each.process, process))
    return daemon.dialect.named_servers and path.startswith(f"{own}/")


def _place_of_variables(process: ProcessFacts) -> str:
    if process.container is not None:
        return "container or pod"
    return "environment" if process.unit is None else f"unit {shown(process.unit)} (Environment=)"


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
