"""systemd units: whether they hide a daemon's directory in a /tmp of their own."""

from collections.abc import Iterator

from exporter.doctor.facts import TEMPORARY, Area, Facts
from exporter.doctor.finding import Check, Found, Severity
from exporter.doctor.words import shown, with_everybodys_tmp

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


CHECKS = (
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
