"""All that the preflight looks for, and one examination by it."""

from collections.abc import Iterator
from dataclasses import replace

from exporter.doctor.checks import (
    attribution,
    clients,
    configuration,
    containers,
    daemons,
    directories,
    gpus,
    limits,
    logs,
    programs,
    rights,
    units,
    watchdog,
    web,
)
from exporter.doctor.facts import Facts
from exporter.doctor.finding import Check, Finding, Found, Report

CHECKS: tuple[Check, ...] = (
    *configuration.CHECKS,
    *programs.CHECKS,
    *gpus.CHECKS,
    *daemons.CHECKS,
    *directories.CHECKS,
    *units.CHECKS,
    *clients.CHECKS,
    *containers.CHECKS,
    *limits.CHECKS,
    *watchdog.CHECKS,
    *logs.CHECKS,
    *rights.CHECKS,
    *attribution.CHECKS,
    *web.CHECKS,
)
"""In the order in which they are told, where they are as grave."""


def examine(facts: Facts) -> Report:
    """Everything that is wrong, worst first; what is well; and what could not be told."""
    findings = [finding for check in CHECKS for finding in _findings(check, facts)]
    found = {finding.check for finding in findings}
    unseen = {each.area for each in facts.unseen}
    others = [check for check in CHECKS if check not in found]
    return Report(
        findings=tuple(sorted(findings, key=lambda finding: -finding.found.severity)),
        ok=tuple(check for check in others if not unseen & set(check.needs)),
        unknown=tuple(check for check in others if unseen & set(check.needs)),
    )


def _findings(check: Check, facts: Facts) -> Iterator[Finding]:
    """Those of one check; the same of several processes or GPUs is one, with all of them in it."""
    where: dict[Found, dict[str, None]] = {}
    for found in check.find(facts):
        where.setdefault(replace(found, where=()), {}).update(dict.fromkeys(found.where))
    for found, places in where.items():
        yield Finding(check, replace(found, where=tuple(places)))
