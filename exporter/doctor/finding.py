"""What the preflight finds: how grave it is, what it is, where, and how to mend it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from exporter.doctor.facts import Area, Facts
from exporter.report.problem import FindingCode
from exporter.report.problem import Severity as ProblemSeverity
from exporter.report.problems import PROBLEMS

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
