"""The checks: one function for each mistake. `examine` runs all of them."""

from collections.abc import Iterator
from dataclasses import replace

from exporter.doctor.check import Check
from exporter.doctor.checks import clients, daemons, exporter, gpus
from exporter.doctor.facts import Facts
from exporter.doctor.report import Report
from exporter.report.finding import Finding

CHECKS: tuple[Check, ...] = tuple(
    value
    for module in (gpus, daemons, clients, exporter)
    for value in vars(module).values()
    if isinstance(value, Check)
)
"""In the order of their definitions, causes before what follows from them. So are the findings of one severity."""


def examine(facts: Facts) -> Report:
    """Return the findings, worst first, the checks that found nothing, and those that lack facts."""
    by_check = {check: tuple(_merged(check.find(facts))) for check in CHECKS}
    findings = (finding for of_check in by_check.values() for finding in of_check)
    not_examined = {each.area for each in facts.not_examined}
    others = [check for check, found in by_check.items() if not found]
    return Report(
        findings=tuple(sorted(findings, key=lambda finding: -finding.severity.rank)),
        ok=tuple(check for check in others if not not_examined & set(check.needs)),
        unknown=tuple(check for check in others if not_examined & set(check.needs)),
    )


def _merged(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield one finding for all that differ only in their places."""
    alike: dict[object, list[Finding]] = {}
    for each in findings:
        alike.setdefault((each.severity, each.text, each.remedy, each.commands), []).append(each)
    for first, *others in alike.values():
        places = (place for each in (first, *others) for place in each.places)
        yield replace(first, places=tuple(dict.fromkeys(places)))
