"""The preflight: `readers.py` reads facts once, the checks find mistakes in them, and `examine` runs all checks."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from exporter import __version__
from exporter.doctor import daemons, gpus, processes
from exporter.doctor.facts import Check, Facts, shown
from exporter.model.values import frozen, plain
from exporter.parse.printable import printable_value
from exporter.report.document import ManualStep
from exporter.report.document_parts import Severity
from exporter.report.finding import Finding, finding_statuses
from exporter.report.remedy import DOCTOR
from exporter.report.status_text import finding_lines
from exporter.report.text import Line, counted, line_of

CHECKS: tuple[Check, ...] = tuple(
    value for module in (gpus, daemons, processes) for value in vars(module).values() if isinstance(value, Check)
)
"""In the order of their definitions, causes before what follows from them. So are the findings of one severity."""

SEVERITIES = (Severity.CRITICAL, Severity.WARNING, Severity.UNKNOWN, Severity.INFO)


@frozen
class Report:
    """The findings, worst first; the checks that found nothing; and those that lack facts."""

    findings: tuple[Finding, ...]
    ok: tuple[Check, ...] = ()
    unknown: tuple[Check, ...] = ()

    @property
    def exit_code(self) -> int:
        """2 if a finding is critical, 1 for a warning or what is unknown, else 0."""
        worst = max((finding.severity.rank for finding in self.findings), default=0)
        return 2 if worst == Severity.CRITICAL.rank else int(worst > Severity.INFO.rank)

    @property
    def counts(self) -> dict[str, int]:
        """The number of findings with each severity."""
        return {each.value: sum(finding.severity is each for finding in self.findings) for each in SEVERITIES}


def examine(facts: Facts) -> Report:
    """Return the findings, worst first, the checks that found nothing, and those that lack facts."""
    by_check = {check: tuple(map(_without_doctor, _merged(check.find(facts)))) for check in CHECKS}
    findings = (finding for of_check in by_check.values() for finding in of_check)
    not_examined = {each.area for each in facts.not_examined}
    others = [check for check, found in by_check.items() if not found]
    return Report(
        findings=tuple(sorted(findings, key=lambda finding: -finding.severity.rank)),
        ok=tuple(check for check in others if not not_examined & set(check.needs)),
        unknown=tuple(check for check in others if not_examined & set(check.needs)),
    )


def _merged(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield one finding for all that differ only in their facts and commands: each daemon has its own files."""
    alike: dict[object, list[Finding]] = {}
    for each in findings:
        alike.setdefault((each.severity, each.text, each.remedy, each.steps), []).append(each)
    for every in alike.values():
        facts = dict.fromkeys(fact for each in every for fact in each.facts)
        commands = dict.fromkeys(command for each in every for command in each.commands)
        yield replace(every[0], facts=tuple(facts), commands=tuple(commands))


def _without_doctor(finding: Finding) -> Finding:
    """Return a finding that does not advise to run `doctor`, which is running."""

    def other(step: ManualStep) -> ManualStep:
        text = re.sub(rf"(Run |: )`{DOCTOR}`[^.]*", "", step.text).lstrip(". ")
        commands = tuple(command for command in step.commands if command != DOCTOR)
        return replace(step, text=text or "Other findings show what the exporter lacks.", commands=commands)

    return replace(finding, steps=tuple(map(other, finding.all_steps)))


def report_object(report: Report, facts: Facts) -> dict[str, Any]:
    """Return the report for `--json`."""
    return {
        "version": __version__,
        "exit_code": report.exit_code,
        "counts": report.counts,
        "findings": printable_value(plain(finding_statuses(report.findings))),
        "ok": [check.code for check in report.ok],
        "unknown": [check.code for check in report.unknown],
        "not_examined": [{"area": str(each.area), "reason": shown(each.reason)} for each in facts.not_examined],
    }


def report_lines(report: Report, facts: Facts, *, verbose: bool = False) -> Iterator[Line]:
    """Yield the lines of the report. With `verbose`, it lists the checks that found nothing, too."""
    for finding in finding_statuses(report.findings):
        yield from finding_lines(finding)
        yield line_of()
    if verbose:
        for label, checks in (("Found nothing", report.ok), ("Unknown", report.unknown)):
            yield line_of(f"{label}: {', '.join(check.code for check in checks) or 'no check'}.")
    examined = (
        counted(len(facts.node.gpus), "GPU"),
        counted(len(facts.daemons), "running daemon"),
        counted(len(facts.processes), "CUDA process", "CUDA processes"),
        counted(sum(len(daemon.log.problems) for daemon, _ in facts.running()), "log"),
        counted(len(facts.private_tmp or {}), "systemd unit"),
        f"the rights of {facts.exporter.label}",
    )
    yield line_of(f"Examined: {', '.join(examined)}.")
    yield line_of(f"{counted(len(report.ok), 'check')} found nothing wrong.")
    if facts.not_examined:
        areas = ", ".join(dict.fromkeys(each.area for each in facts.not_examined))
        incomplete = counted(len(report.unknown), "check is incomplete", "checks are incomplete")
        yield line_of(f"Not examined, or not in full: {areas}. {incomplete}.")
    yield line_of(f"{', '.join(f'{count} {severity}' for severity, count in report.counts.items())}.")
