"""A report for a person: worst first, 80 columns wide; what is to be typed is never wrapped."""

import textwrap
from collections.abc import Iterator, Sequence

from exporter.doctor.facts import Facts
from exporter.doctor.finding import PAGE, Finding, Report, Severity
from exporter.telling.short import counted

WIDTH = 80
MOST_PLACES = 5

_LABEL = 7


def report_text(report: Report, facts: Facts, *, verbose: bool = False) -> str:
    """All of it; `verbose` tells of each check that found nothing, too."""
    lines = [line for finding in report.findings for line in _finding(finding)]
    if verbose:
        lines += [line for check in report.ok for line in _wrapped(f"ok       {check.fine}", 9)]
        lines += [line for check in report.unknown for line in _wrapped(f"unknown  whether {check.fine}", 9)]
        lines += [""]
    return "\n".join((*lines, *_looked_at(report, facts), *_summary(report), ""))


def _finding(finding: Finding) -> Iterator[str]:
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
