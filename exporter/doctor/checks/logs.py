"""Logs: whether they are read, and what keeps them from filling the disk."""

from collections.abc import Iterator

from exporter.doctor.facts import Area, Facts
from exporter.doctor.finding import Check, Found, Severity, found
from exporter.doctor.words import UNITS, keyed, quoted, shown
from exporter.model.variables import LOG_DIRECTORY
from exporter.report.problem import FindingCode

LARGE_BYTES = 256 << 20

_MEBIBYTE = 1 << 20
_INSTALL = f"install -Dm 644 {UNITS}/nvidia-cuda-mps.logrotate /etc/logrotate.d/nvidia-cuda-mps"


def log_unreadable(facts: Facts) -> Iterator[Found]:
    """A running daemon's log cannot be read: short faults and refusals are missed."""
    for daemon, _ in facts.running():
        for log in facts.logs.get(daemon.name, ()):
            if log.problem is not None:
                yield found(
                    FindingCode.LOG_NOT_FOLLOWED,
                    detail=f"The error is: {shown(log.problem)}.",
                    where=(shown(log.path),),
                    commands=(f"ls -ld {quoted(log.path.rpartition('/')[0])} {quoted(log.path)}",),
                )


def log_directory_differs(facts: Facts) -> Iterator[Found]:
    """The configuration names another log directory than the daemon has."""
    for configured in facts.config.daemons:
        for each in facts.daemons_of(configured.name):
            actual = (each.process.variables or {}).get(LOG_DIRECTORY)
            if actual is None or (each.logs is not None and each.logs == facts.configured_logs.get(configured.name)):
                continue  # In a container, the same directory has another path.
            if actual.rstrip("/") != str(configured.log_directory):
                yield Found(
                    severity=Severity.WARNING,
                    what=f"the daemon's logs are in {shown(actual)}, and the configuration has them in "
                    f"{shown(str(configured.log_directory))}: while the daemon is down, its last words are not found",
                    where=(shown(configured.name),),
                    mend="Write the daemon's own directory into the configuration",
                    commands=(keyed("log_directory", actual),),
                )


def log_renamed(facts: Facts) -> Iterator[Found]:
    """A log was rotated by renaming it: the daemon writes on into the renamed file."""
    for name, logs in facts.logs.items():
        for log in logs:
            if log.renamed is not None and facts.daemons_of(name):
                yield Found(
                    severity=Severity.WARNING,
                    what=f"the daemon writes into {shown(log.renamed)}: its log was rotated by renaming it, which MPS "
                    "does not follow; once that file is compressed or removed, what it writes is lost",
                    where=(shown(log.path),),
                    mend="Have it copied and truncated instead (copytruncate); the present log ends with the daemon's "
                    "next start",
                    commands=(_INSTALL,),
                )


def log_rotated_by_rename(facts: Facts) -> Iterator[Found]:
    """Logrotate is told to rename a log, which MPS does not follow."""
    for rotation in facts.rotations:
        if not rotation.truncates:
            yield Found(
                severity=Severity.WARNING,
                what=f"logrotate is to rotate {shown(rotation.path)} by renaming it: MPS never opens its logs anew, "
                "and would write on into the renamed file",
                where=(shown(rotation.file),),
                mend="Add copytruncate there",
                commands=(_INSTALL,),
            )


def log_not_rotated(facts: Facts) -> Iterator[Found]:
    """Nothing rotates a log, or it has grown large all the same."""
    rotated = {rotation.path for rotation in facts.rotations}
    for logs in facts.logs.values():
        for log in logs:
            large = log.size >= LARGE_BYTES
            elsewhere = log.path.startswith("/proc/")
            if log.problem is None and (large or not (elsewhere or log.path in rotated)):
                kept = "logrotate is told of it all the same" if log.path in rotated else "nothing rotates it"
                size = f"{log.size // _MEBIBYTE} MiB" if log.size >= _MEBIBYTE else "less than 1 MiB"
                yield Found(
                    severity=Severity.WARNING if large else Severity.ADVICE,
                    what=f"a log is {size} by now, and {kept}; every command to the daemon adds five lines",
                    where=(shown(log.path),),
                    mend="Have logrotate copy and truncate it (copytruncate)",
                    commands=(_INSTALL, f"truncate -s 0 {quoted(log.path)}") if large else (_INSTALL,),
                )


CHECKS = (
    Check(
        log_unreadable,
        fine="daemons' logs can be read",
        code=FindingCode.LOG_NOT_FOLLOWED,
        needs=(Area.LOGS,),
        doc="docs/rights.md",
    ),
    Check(
        log_directory_differs,
        fine="logs are where the configuration has them",
        mend="`log_directory`",
        needs=(Area.DAEMONS,),
        doc="docs/configuration.md",
    ),
    Check(
        log_renamed,
        fine="daemons write into their logs",
        mend="`copytruncate`",
        needs=(Area.LOGS,),
        doc="docs/systemd.md",
    ),
    Check(
        log_rotated_by_rename,
        fine="logrotate does not rename logs",
        mend="`copytruncate`",
        needs=(Area.ROTATION,),
        doc="docs/systemd.md",
    ),
    Check(
        log_not_rotated,
        fine="logs are rotated",
        mend="`systemd/nvidia-cuda-mps.logrotate`",
        needs=(Area.LOGS, Area.ROTATION),
        doc="docs/systemd.md",
    ),
)
