"""The exporter's own configuration, and where it keeps what must outlive it."""

from collections.abc import Iterator

from exporter.doctor.facts import Facts
from exporter.doctor.finding import Check, Found, Severity
from exporter.doctor.words import quoted, shown


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


CHECKS = (
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
