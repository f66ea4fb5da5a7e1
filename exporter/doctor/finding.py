"""A finding: severity, what, where, how to fix it."""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from exporter import __version__
from exporter.doctor.facts import Area, Facts
from exporter.doctor.words import shown
from exporter.report.problem import FindingCode
from exporter.report.problem import Severity as ProblemSeverity
from exporter.report.problems import PROBLEMS
from exporter.report.text import counted

PAGE = "docs/doctor.md"
"""Has each finding in a line; where there is more to read, a check names another."""


class Severity(IntEnum):
    """How grave a finding is.

    ADVICE can be left as it is; a WARNING costs something; an ERROR keeps MPS from working, or the exporter from it.
    """

    ADVICE = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        """As it is written."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One mistake, as a check finds it. `where` has those whom it concerns, `commands` what mends it, as typed."""

    severity: Severity
    what: str
    where: tuple[str, ...] = ()
    mend: str
    commands: tuple[str, ...] = ()


_SEVERITIES = {ProblemSeverity.WARNING: Severity.WARNING, ProblemSeverity.CRITICAL: Severity.ERROR}


def found(
    code: FindingCode, *, where: tuple[str, ...], detail: str = "", fix: str = "", commands: tuple[str, ...] = ()
) -> Found:
    """Return a problem of the catalogue as a mistake; `detail` and `fix` are sentences that are added to its texts."""
    problem = PROBLEMS[code]
    return Found(
        severity=_SEVERITIES[problem.severity],
        what=" ".join(each for each in (problem.meaning, detail) if each),
        where=where,
        mend=" ".join(each for each in (problem.remedy, fix) if each),
        commands=commands,
    )


@dataclass(frozen=True, slots=True)
class Check:
    """Something that is looked for: one kind of mistake, which `find` finds and whose docstring says what it is.

    `fine` is shown if the mistake is not there, unless one of the areas that it `needs` could not be looked at. `mend`
    is for the page of all checks. If the mistake is a problem of the catalogue, `code` names it, and the catalogue has
    its meaning and remedy.
    """

    find: Callable[[Facts], Iterator[Found]]
    fine: str
    mend: str = ""
    needs: tuple[Area, ...] = ()
    doc: str = PAGE
    code: FindingCode | None = None

    @property
    def id(self) -> str:
        """What it is called: `socket-path-too-long`."""
        return self.find.__name__.replace("_", "-")

    @property
    def meaning(self) -> str:
        """What the mistake is, in a sentence."""
        return (self.find.__doc__ or "").partition("\n")[0] if self.code is None else PROBLEMS[self.code].meaning

    @property
    def remedy(self) -> str:
        """What to do, in a sentence."""
        return self.mend if self.code is None else PROBLEMS[self.code].remedy


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake, and the check that found it."""

    check: Check
    found: Found

    @property
    def id(self) -> str:
        """What it is called: its check's name."""
        return self.check.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of an examination.

    The findings, worst first; the checks that found nothing; and those that could not be made in full, since something
    was hidden from them.
    """

    findings: tuple[Finding, ...]
    ok: tuple[Check, ...] = ()
    unknown: tuple[Check, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 where nothing is worse than advice, 1 for a warning, 2 for an error."""
        worst = max((finding.found.severity for finding in self.findings), default=Severity.ADVICE)
        return {Severity.ADVICE: 0, Severity.WARNING: 1, Severity.ERROR: 2}[worst]

    def count(self, severity: Severity) -> int:
        """How many findings are as grave as this."""
        return sum(finding.found.severity is severity for finding in self.findings)


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


WIDTH = 80
MOST_PLACES = 5

_LABEL = 7


def report_text(report: Report, facts: Facts, *, verbose: bool = False) -> str:
    """All of it; `verbose` tells of each check that found nothing, too."""
    lines = [line for finding in report.findings for line in _text_finding(finding)]
    if verbose:
        lines += [line for check in report.ok for line in _wrapped(f"ok       {check.fine}", 9)]
        lines += [line for check in report.unknown for line in _wrapped(f"unknown  whether {check.fine}", 9)]
        lines += [""]
    return "\n".join((*lines, *_looked_at(report, facts), *_summary(report), ""))


def _text_finding(finding: Finding) -> Iterator[str]:
    found, doc = finding.found, finding.check.doc
    yield f"{found.severity.word.upper()}  {finding.id}"
    yield from _wrapped(f"  {_sentence(found.what)}", 2)
    for label, place in zip(["where", *[""] * MOST_PLACES], _places(found.where), strict=False):
        yield from _wrapped(f"  {label:<{_LABEL}}{place}", _LABEL + 2)
    yield from _wrapped(f"  {'fix':<{_LABEL}}{_sentence(found.mend)}", _LABEL + 2)
    for command in found.commands:
        yield f"{' ' * (_LABEL + 4)}{command}"
    if doc != PAGE:
        yield f"  {'read':<{_LABEL}}{doc}"
    yield ""


def _places(where: Sequence[str]) -> list[str]:
    more = len(where) - MOST_PLACES
    return [*where[:MOST_PLACES], *([f"and {more} more"] if more > 0 else [])]


def _looked_at(report: Report, facts: Facts) -> Iterator[str]:
    counts = (
        counted(len(facts.node.gpus), "GPU"),
        counted(len(facts.daemons), "daemon that runs", "daemons that run"),
        counted(len(facts.processes), "CUDA process", "CUDA processes"),
        counted(sum(map(len, facts.logs.values())), "log"),
        counted(len(facts.units or {}), "systemd unit"),
        f"the rights of {facts.watcher.called}",
    )
    yield from _wrapped(f"Looked at: {', '.join(counts)}.", 0)
    well = f"{counted(len(report.ok), 'check')} found nothing wrong"
    yield from _wrapped(f"{well}.", 0)
    if facts.unseen:
        areas = ", ".join(dict.fromkeys(each.area for each in facts.unseen))
        lacking = f"{counted(len(report.unknown), 'check')} could not be made in full"
        yield from _wrapped(f"Not looked at, or not in full: {areas}; {lacking}.", 0)


def _summary(report: Report) -> Iterator[str]:
    counts = (
        counted(report.count(Severity.ERROR), "error"),
        counted(report.count(Severity.WARNING), "warning"),
        counted(report.count(Severity.ADVICE), "piece of advice", "pieces of advice"),
    )
    yield f"{', '.join(counts)}."


def _sentence(text: str) -> str:
    """As a sentence begins and ends; what is called by a small letter, as a program, keeps it."""
    first = text.partition(" ")[0]
    begun = text[:1].upper() + text[1:] if first.isalpha() else text
    return begun if begun.endswith(".") else f"{begun}."


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False)
