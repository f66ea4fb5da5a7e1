"""A report for programs, as one JSON object."""

from typing import Any

from exporter import __version__
from exporter.doctor.facts import Facts
from exporter.doctor.finding import Finding, Report, Severity
from exporter.doctor.words import shown


def report_object(report: Report, facts: Facts) -> dict[str, Any]:
    """All of it: how many findings are how grave, each of them, and the ids of what is well or could not be told."""
    return {
        "version": __version__,
        "exit_code": report.exit_code,
        "counts": {each.word: report.count(each) for each in sorted(Severity, reverse=True)},
        "findings": [_finding(each) for each in report.findings],
        "ok": [check.id for check in report.ok],
        "unknown": [check.id for check in report.unknown],
        "not_looked_at": [{"area": str(each.area), "why": shown(each.why)} for each in facts.unseen],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    found = finding.found
    return {
        "severity": found.severity.word,
        "id": finding.id,
        "code": finding.check.code,
        "what": found.what,
        "where": list(found.where),
        "fix": found.mend,
        "commands": list(found.commands),
        "doc": finding.check.doc,
    }
