"""The watchdog: whether it could do what it is told to."""

from collections.abc import Iterator

from exporter.config import DaemonConfig
from exporter.doctor.capability import Capability, names
from exporter.doctor.checks.rights import DROP_INS
from exporter.doctor.facts import Area, Facts
from exporter.doctor.finding import Check, Found, Severity
from exporter.doctor.words import TAKES_UP_ITS_UNIT, UNITS, shown
from exporter.model.settings import Mode


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


CHECKS = (
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
