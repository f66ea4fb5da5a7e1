"""The checks: one function for each mistake. `examine` runs all of them."""

from collections.abc import Iterator
from dataclasses import replace

from exporter.doctor.checks import clients, daemons, exporter, gpus
from exporter.doctor.facts import Facts
from exporter.doctor.finding import Check, Finding, Occurrence, Report

CHECKS: tuple[Check, ...] = tuple(
    value
    for module in (daemons, gpus, clients, exporter)
    for value in vars(module).values()
    if isinstance(value, Check)
)
"""In the order of their definitions. Findings of one severity are reported in this order."""


def examine(facts: Facts) -> Report:
    """Return the findings, worst first, the checks that found nothing, and those that lack facts."""
    findings = [finding for check in CHECKS for finding in _findings(check, facts)]
    found = {finding.check.id for finding in findings}
    not_examined = {each.area for each in facts.not_examined}
    others = [check for check in CHECKS if check.id not in found]
    return Report(
        findings=tuple(sorted(findings, key=lambda finding: -finding.severity)),
        ok=tuple(check for check in others if not not_examined & set(check.needs)),
        unknown=tuple(check for check in others if not_examined & set(check.needs)),
    )


def _findings(check: Check, facts: Facts) -> Iterator[Finding]:
    """Yield a finding for all occurrences that differ only in their places."""
    where: dict[Occurrence, dict[str, None]] = {}
    for each in check.find(facts):
        where.setdefault(replace(each, where=()), {}).update(dict.fromkeys(each.where))
    for each, places in where.items():
        yield Finding(
            check=check,
            severity=each.severity or check.severity,
            problem=each.problem or check.problem,
            what=" ".join(filter(None, (check.meaning, each.detail))),
            where=tuple(places),
            fix=" ".join(filter(None, (check.fix, each.fix))),
            commands=each.commands,
        )
