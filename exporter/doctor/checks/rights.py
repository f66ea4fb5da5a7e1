"""Rights: what the exporter may not see, and what it had better not have."""

from collections.abc import Iterator

from exporter.doctor.capability import Capability
from exporter.doctor.facts import Area, Facts
from exporter.doctor.finding import Check, Found, Severity
from exporter.doctor.words import AS_ROOT, TAKES_UP_ITS_UNIT, UNITS, shown

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


CHECKS = (
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
