"""Checks of the exporter: configuration, rights, web server, watchdog, attribution."""

from collections.abc import Iterator

from exporter.config.settings import DaemonConfig
from exporter.doctor.facts import Area, Capability, ExporterRights, Facts, names
from exporter.doctor.finding import Check, Found, Severity
from exporter.doctor.words import AS_ROOT, ATTRIBUTION_AS_ROOT, TAKES_UP_ITS_UNIT, UNITS, quoted, shown
from exporter.model.settings import Mode

_ELSE = "each client's SM time is not told then"


def launches_not_counted(facts: Facts) -> Iterator[Found]:
    """With `attribution=bpf`: the rights to count launches are missing."""
    missing = _missing(facts.watcher)
    if facts.config.attribution.counts_launches and missing:
        yield Found(
            severity=Severity.WARNING,
            what=f"attribution is bpf, and {facts.watcher.called} (UID {facts.watcher.uid}) lacks {names(missing)}: "
            f"launches cannot be counted, and {_ELSE}",
            mend="Install the drop-in that gives these rights; for one look, sudo",
            commands=(f"{DROP_INS}/bpf.conf", TAKES_UP_ITS_UNIT) if facts.watcher.is_service else ATTRIBUTION_AS_ROOT,
        )


def kernel_refuses_bpf(facts: Facts) -> Iterator[Found]:
    """With `attribution=bpf`: the kernel does not take the programs that count launches."""
    if facts.doors is not None and facts.doors.refused is not None and not _missing(facts.watcher):
        yield Found(
            severity=Severity.WARNING,
            what=f"attribution is bpf, and the kernel refuses: {shown(facts.doors.refused)}; {_ELSE}",
            mend="It takes Linux with BPF and uprobes, not locked down for confidentiality, on x86-64 or arm64; in a "
            "container, its seccomp profile too. Or turn attribution off",
            commands=("cat /sys/kernel/security/lockdown", "uname -rm"),
        )


def no_libcuda(facts: Facts) -> Iterator[Found]:
    """With `attribution=bpf`: there is no libcuda whose entry points could be watched."""
    if facts.doors is not None and not facts.doors.libraries and not facts.doors.problems:
        yield Found(
            severity=Severity.WARNING,
            what="attribution is bpf, and no libcuda.so.1 was found where distributions have it, or in a process that "
            "uses CUDA: who uses another one is counted only some time after it was first seen",
            mend="Install the driver's libraries where the exporter runs; in a container, have NVIDIA's runtime bring "
            "them in (NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
        )


def libcuda_not_watched(facts: Facts) -> Iterator[Found]:
    """With `attribution=bpf`: a libcuda that a process uses cannot be watched."""
    for problem in facts.doors.problems if facts.doors is not None else ():
        yield Found(
            severity=Severity.WARNING,
            what=f"attribution is bpf, and of some processes the launches cannot be counted: {_ELSE}",
            where=(shown(problem),),
            mend="Restart those whose library was replaced under them; else, see what the file is",
        )


def _missing(watcher: ExporterRights) -> tuple[Capability, ...]:
    """What it takes; who may do all that an administrator may has these, too."""
    if not watcher.lacks(Capability.SYS_ADMIN):
        return ()
    return watcher.lacks(Capability.BPF, Capability.PERFMON)


ATTRIBUTION_CHECKS = (
    Check(
        launches_not_counted,
        fine="whoever is to count launches may, or nobody is",
        mend="the drop-in `bpf.conf`",
        needs=(Area.RIGHTS,),
        doc="docs/rights.md",
    ),
    Check(
        kernel_refuses_bpf,
        fine="the kernel takes the programs that count launches, or nobody wants them",
        mend="another kernel, or `--attribution=off`",
        needs=(Area.DOORS,),
        doc="docs/rights.md",
    ),
    Check(
        no_libcuda,
        fine="there is a libcuda to watch, or nobody wants that",
        mend="the driver's libraries where the exporter is",
        needs=(Area.DOORS,),
        doc="docs/rights.md",
    ),
    Check(
        libcuda_not_watched,
        fine="each libcuda in use can be watched, or nobody wants that",
        mend="restart who runs on a library that was replaced",
        needs=(Area.DOORS,),
        doc="docs/rights.md",
    ),
)


def configuration_unusable(facts: Facts) -> Iterator[Found]:
    """A flag, a variable or the configuration file cannot be used: the exporter does not start."""
    if facts.config_problem is not None:
        yield Found(
            severity=Severity.ERROR,
            what=f"the configuration cannot be used: {shown(facts.config_problem)}. All else here was looked at "
            "without it",
            mend="Mend it as the message says; this tries it out",
            commands=("cuda-mps-exporter serve --config.check",),
        )


def history_not_writable(facts: Facts) -> Iterator[Found]:
    """The state directory cannot be written to: incidents, and what the watchdog has done, are forgotten."""
    watcher = facts.watcher
    if watcher.state_problem is not None:
        directory = quoted(watcher.state_directory)
        yield Found(
            severity=Severity.WARNING if watcher.is_service else Severity.ADVICE,
            what=f"{watcher.called} cannot write to the state directory: {shown(watcher.state_problem)}; incidents, "
            "and what the watchdog has done, would be forgotten with each restart",
            where=(shown(watcher.state_directory),),
            mend="Give the directory to the service's user, as its unit does (StateDirectory=)",
            commands=(f"chown -R cuda-mps-exporter: {directory} && chmod 0700 {directory}",),
        )


CONFIGURATION_CHECKS = (
    Check(
        configuration_unusable,
        fine="the configuration can be used",
        mend="`serve --config.check` says what is wrong",
        doc="docs/configuration.md",
    ),
    Check(
        history_not_writable,
        fine="the history can be kept",
        mend="give the state directory to the service's user",
        doc="docs/rights.md",
    ),
)


_UNIT = f"install -Dm 644 -t /etc/systemd/system {UNITS}/cuda-mps-exporter.service"
DROP_INS = f"install -Dm 644 -t /etc/systemd/system/cuda-mps-exporter.service.d {UNITS}/cuda-mps-exporter.service.d"


def right_to_look_missing(facts: Facts) -> Iterator[Found]:
    """Without CAP_SYS_PTRACE: daemons' CUDA_VISIBLE_DEVICES, programs' paths, daemons in containers are not seen."""
    watcher = facts.watcher
    others = [each for each in facts.daemons if each.process.uid != watcher.uid]
    if watcher.lacks(Capability.SYS_PTRACE) and (others or not facts.daemons):
        yield Found(
            severity=Severity.WARNING,
            what=f"{watcher.called} (UID {watcher.uid}) may not look into other users' processes (CAP_SYS_PTRACE): it "
            "sees no daemon's CUDA_VISIBLE_DEVICES, and assumes that each serves all GPUs; nor any program's path, any "
            "daemon in a container, or how a process ended",
            where=tuple(shown(each.name) for each in others),
            mend="Run the service by its unit, which has that right; for one look, sudo",
            commands=(_UNIT, TAKES_UP_ITS_UNIT) if watcher.is_service else AS_ROOT,
        )


def kernel_log_closed(facts: Facts) -> Iterator[Found]:
    """The kernel's log may not be read: some Xids are missed, and who caused a fault is less certain."""
    if facts.watcher.kernel_log is None:
        return
    yield Found(
        severity=Severity.ADVICE,
        what=f"{facts.watcher.called} may not read the kernel's log ({shown(facts.watcher.kernel_log)}): Xids that "
        "NVML does not report are missed, and who caused a fault is less certain",
        mend="Install the drop-in that opens it (CAP_SYSLOG)",
        commands=(f"{DROP_INS}/kernel-log.conf", TAKES_UP_ITS_UNIT),
    )


def journal_closed(facts: Facts) -> Iterator[Found]:
    """A daemon's log is in the journal, which may not be read: faults and refusals are missed."""
    watcher = facts.watcher
    if watcher.uid == 0 or (watcher.journal_group is not None and watcher.journal_group in watcher.groups):
        return
    names = tuple(
        shown(daemon.name)
        for daemon, _ in facts.running()
        if daemon.runtime.foreground and not daemon.runtime.stdout_in_file
    )
    if names:
        yield Found(
            severity=Severity.WARNING,
            what=f"a daemon in the foreground (-f) has its log in the journal, which {watcher.called} may not read: "
            "short faults, and who was turned away, are not seen",
            where=names,
            mend="Install the drop-in that puts the exporter's user into the journal's group; or have the unit append "
            "to a file stdout.log in the daemon's log directory, as nvidia-cuda-mps.service does",
            commands=(f"{DROP_INS}/journal.conf", TAKES_UP_ITS_UNIT),
        )


def too_many_rights(facts: Facts) -> Iterator[Found]:
    """With CAP_DAC_OVERRIDE, and not as root, a daemon refuses whatever it is asked."""
    watcher = facts.watcher
    if watcher.uid != 0 and not watcher.lacks(Capability.DAC_OVERRIDE):
        yield Found(
            severity=Severity.ERROR,
            what=f"{watcher.called} has CAP_DAC_OVERRIDE and is not root: every daemon of another user refuses "
            "whatever it asks (measured, R580)",
            mend="Take that capability from it; the unit as delivered does not have it",
            commands=("systemctl edit cuda-mps-exporter  # AmbientCapabilities=CAP_SYS_PTRACE",),
        )


def service_not_asked(facts: Facts) -> Iterator[Found]:
    """A service runs, and could not be asked who it is: whose rights it has is not known."""
    if facts.watcher.unanswering is not None:
        yield Found(
            severity=Severity.ADVICE,
            what=f"a service seems to run, and cannot be asked who it is ({shown(facts.watcher.unanswering)}): the "
            "rights told here are those of whoever runs this",
            where=(shown(str(facts.config.runtime_directory)),),
            mend="Run this as root, or as the service's user",
            commands=AS_ROOT,
        )


def not_looked_at(facts: Facts) -> Iterator[Found]:
    """Something could not be looked at, so that what is wrong there is not told."""
    for each in (unseen for unseen in facts.unseen if not unseen.told):
        yield Found(
            severity=Severity.WARNING,
            what=f"not looked at: {each.area}: {shown(each.why)}",
            mend=each.mend,
            commands=each.commands,
        )


RIGHTS_CHECKS = (
    Check(
        right_to_look_missing,
        fine="other users' processes may be looked into",
        mend="run it by its unit; for one look, `sudo`",
        needs=(Area.RIGHTS,),
        doc="docs/rights.md",
    ),
    Check(
        kernel_log_closed,
        fine="the kernel's log may be read",
        mend="the drop-in `kernel-log.conf`",
        needs=(Area.RIGHTS,),
        doc="docs/rights.md",
    ),
    Check(
        journal_closed,
        fine="no log is in a journal that is closed",
        mend="the drop-in `journal.conf`",
        needs=(Area.RIGHTS,),
        doc="docs/rights.md",
    ),
    Check(
        too_many_rights,
        fine="there is no right that daemons refuse",
        mend="without `CAP_DAC_OVERRIDE`",
        needs=(Area.RIGHTS,),
        doc="docs/rights.md",
    ),
    Check(service_not_asked, fine="whose rights count is known", mend="run this as root", doc="docs/rights.md"),
    Check(not_looked_at, fine="all was looked at", mend="as it says; as a rule, `sudo`", doc="docs/rights.md"),
)


def acts_without_restart(facts: Facts) -> Iterator[Found]:
    """The watchdog is to act for a daemon, and has no way to restart it."""
    for configured in facts.config.daemons:
        daemon = facts.node.daemons.get(configured.name)
        unit = configured.unit or (None if daemon is None else daemon.declared.unit)
        if _acts(configured, facts) and unit is None and not configured.restart_command:
            yield Found(
                severity=Severity.ERROR,
                what="the watchdog is to act for a daemon, and neither a unit nor a command says how to restart it",
                where=(shown(configured.name),),
                mend="Name its unit, or a restart_command, in its [[daemons]]",
                commands=('unit = "nvidia-cuda-mps.service"',),
            )


def acts_without_rights(facts: Facts) -> Iterator[Found]:
    """The watchdog is to act, and the exporter has not the rights to."""
    acting = [each for each in facts.config.daemons if _acts(each, facts)]
    if not acting and facts.config.watchdog is not Mode.ACT:
        return
    missing = facts.watcher.lacks(Capability.KILL, Capability.SETUID, Capability.SETGID)
    if missing:
        yield Found(
            severity=Severity.WARNING,
            what=f"the watchdog is to act, and {facts.watcher.called} lacks {names(missing)}: it cannot end a daemon "
            "that hangs, nor give commands and start daemons as their users",
            where=tuple(shown(each.name) for each in acting),
            mend="Install the drop-in, and the polkit rule, by which it may restart units",
            commands=(
                f"{DROP_INS}/act.conf",
                f"install -Dm 644 -t /etc/polkit-1/rules.d {UNITS}/50-cuda-mps-exporter.rules",
                "systemctl try-restart polkit",
                TAKES_UP_ITS_UNIT,
            ),
        )


def _acts(configured: DaemonConfig, facts: Facts) -> bool:
    return (configured.watchdog or facts.config.watchdog) is Mode.ACT


WATCHDOG_CHECKS = (
    Check(
        acts_without_restart,
        fine="the watchdog has what it needs to restart",
        mend="name a `unit` or a `restart_command`",
        doc="docs/watchdog.md",
    ),
    Check(
        acts_without_rights,
        fine="the watchdog has the rights it needs",
        mend="the drop-in `act.conf`, and the polkit rule",
        needs=(Area.RIGHTS,),
        doc="docs/systemd.md",
    ),
)


def port_taken(facts: Facts) -> Iterator[Found]:
    """Another program listens where the exporter is to."""
    for holder in facts.holders:
        if not holder.is_service:
            port = holder.address.rpartition(":")[2]
            yield Found(
                severity=Severity.ERROR,
                what=f"a program of UID {holder.uid} listens on {shown(holder.address)} already, and is not the "
                "exporter's service: that could not serve there",
                where=(shown(holder.address),),
                mend="See who it is, and end it; or serve elsewhere, and tell Prometheus",
                commands=(f"ss -ltnp 'sport = :{port}'", "cuda-mps-exporter serve --web.listen-address=:10678"),
            )


def web_config_unusable(facts: Facts) -> Iterator[Found]:
    """The web config file (TLS, passwords) cannot be used: the exporter does not start."""
    if facts.web_problem is not None:
        file = str(facts.config.web_config_file)
        yield Found(
            severity=Severity.ERROR,
            what=f"the web config file cannot be used: {shown(facts.web_problem)}",
            where=(shown(file),),
            mend="Mend it as the message says; this tries it out",
            commands=(f"cuda-mps-exporter serve --config.check --web.config.file={quoted(file)}",),
        )


WEB_CHECKS = (
    Check(
        port_taken,
        fine="the port is free, or the service's own",
        mend="`ss -ltnp`; another `--web.listen-address`",
        needs=(Area.PORTS,),
        doc="docs/web.md",
    ),
    Check(
        web_config_unusable,
        fine="the web configuration can be used",
        mend="`serve --config.check` says what is wrong",
        doc="docs/web.md",
    ),
)
