"""Checks, their findings, the texts and commands that they share, and the report of an examination."""

import json
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from enum import IntEnum
from inspect import cleandoc
from typing import Any

from exporter import __version__
from exporter.doctor.facts import Area, DaemonFacts, Facts, ProcessFacts
from exporter.model.gpu import Gpu
from exporter.model.node import CollectorName
from exporter.model.reason import Reason
from exporter.parse.printable import LONGEST_PROBLEM, printable
from exporter.report import problem
from exporter.report.problem import Problem
from exporter.report.text import counted, display_name, process_text, short_gpu

PAGE = "docs/start.md"
"""The page that lists all checks."""


class Severity(IntEnum):
    """ADVICE can be ignored, a WARNING costs something, an ERROR prevents MPS or the exporter from working."""

    ADVICE = 1
    WARNING = 2
    ERROR = 3

    @property
    def text(self) -> str:
        """The name in lower case."""
        return self.name.lower()


SEVERITIES = {
    problem.Severity.UNKNOWN: Severity.WARNING,
    problem.Severity.WARNING: Severity.WARNING,
    problem.Severity.CRITICAL: Severity.ERROR,
}
"""The severity of a catalogue's problem here."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence of a check's problem: the processes, paths or GPUs concerned, and the commands that fix it.

    `detail` and `fix` are sentences that follow those of the check. `severity` and `problem` replace the check's.
    """

    where: tuple[str, ...] = ()
    _: KW_ONLY
    detail: str = ""
    fix: str = ""
    commands: tuple[str, ...] = ()
    severity: Severity | None = None
    problem: Problem | None = None


Find = Callable[[Facts], Iterator[Occurrence]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One kind of mistake, which `find` finds.

    If one of the areas in `needs` was not fully examined, it is unknown whether the mistake is absent. `problem` is the
    problem of the catalogue that has these texts.
    """

    find: Find
    severity: Severity
    meaning: str
    fix: str
    needs: tuple[Area, ...]
    doc: str
    problem: Problem | None

    @property
    def id(self) -> str:
        """The name of the check, such as `log-fifo-open`."""
        return self.find.__name__.replace("_", "-")

    @property
    def summary(self) -> str:
        """The first sentence on the mistake."""
        return first_sentence(self.find.__doc__ or "")


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, up to a colon."""
    return re.split(r"[.:]\s", text)[0].rstrip(".") + "."


def check(defined_by: Severity | Problem, *needs: Area, fix: str = "", doc: str = PAGE) -> Callable[[Find], Check]:
    """Make a check of a function. The first paragraph of its docstring is the meaning, the second one the remedy.

    Severity, meaning and remedy come from the catalogue if a problem of it is given.
    """

    def made(find: Find) -> Check:
        if isinstance(defined_by, Problem):
            problem, definition = defined_by, defined_by.definition
            texts = (SEVERITIES[definition.severity], definition.meaning, definition.remedy)
        else:
            meaning, _, remedy = cleandoc(find.__doc__ or "").partition("\n\n")
            problem, texts = None, (defined_by, meaning, fix or " ".join(remedy.split()))
        severity, meaning, remedy = texts
        return Check(find=find, severity=severity, meaning=meaning, fix=remedy, needs=needs, doc=doc, problem=problem)

    return made


# -- what checks share: names of processes, paths and GPUs, and commands ---------------------------------------------

AS_ROOT = ("sudo cuda-mps-exporter doctor",)
ATTRIBUTION_AS_ROOT = ("sudo cuda-mps-exporter doctor --attribution=bpf",)
"""The service has the option from its unit, but a command in a shell does not."""
RESTART_EXPORTER = "systemctl daemon-reload && systemctl restart cuda-mps-exporter"

UNITS = "/opt/cuda-mps-exporter/share/cuda-mps-exporter/systemd"
"""Where the guide's installation has units and drop-ins; the operator may have no clone of the repository."""

DROP_INS = f"install -Dm 644 -t /etc/systemd/system/cuda-mps-exporter.service.d {UNITS}/cuda-mps-exporter.service.d"


def as_user(uid: int | None, command: str) -> str:
    """Return a command that changes a user's own file. As root it would follow a link that the user puts there."""
    return command if uid in (0, None) else f"sudo -u '#{uid}' {command}"


def process_label(process: ProcessFacts) -> str:
    """Return a process as `PID 5120 (python3 of carol)`."""
    user = process.user or ("" if process.uid is None else f"UID {process.uid}")
    return process_text(process.pid, process.command, user)


def daemon_label(daemon: DaemonFacts) -> str:
    """Return a running daemon as `/run/nvidia-mps: PID 441 (nvidia-cuda-mps-control of root)`."""
    return f"{shown(daemon.name)}: {process_label(daemon.process)}"


def gpu_label(gpu: Gpu) -> str:
    """Return a GPU as `GPU 0 (GPU-1efa3f60, NVIDIA H200)`."""
    names = ", ".join(each for each in (short_gpu(gpu.reading.gpu), display_name(gpu.reading.name)) if each)
    return f"GPU ({names})" if gpu.reading.index is None else f"GPU {gpu.reading.index} ({names})"


def nvml_problem(facts: Facts) -> Reason | None:
    """Return why NVML does not work, if so."""
    source = facts.node.sources.get(CollectorName.NVML)
    return None if source is None else source.last.problem


def shown(text: str) -> str:
    """Return the printable form of a text from the node, such as a path or an error."""
    return printable(text, LONGEST_PROBLEM)


def error_text(problem: str) -> str:
    """Return a sentence with the text of an error."""
    return f"The error is: {shown(problem).rstrip('.')}."


def quoted(text: str) -> str:
    """Return such a text as one word of a shell command."""
    return shlex.quote(shown(text))


def config_line(key: str, text: str) -> str:
    """Return a line of the configuration file."""
    return f"{key} = {json.dumps(shown(text), ensure_ascii=False)}"


def without_private_tmp(unit: str) -> str:
    """Return the command that gives a unit the /tmp of the host."""
    return f"systemctl edit {quoted(unit)}  # [Service] PrivateTmp=no"


# -- the report -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A mistake of this node, with all places where it occurs."""

    check: Check
    severity: Severity
    problem: Problem | None
    what: str
    where: tuple[str, ...]
    fix: str
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The findings, worst first; the checks that found nothing; and those that lack facts."""

    findings: tuple[Finding, ...]
    ok: tuple[Check, ...] = ()
    unknown: tuple[Check, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 if nothing is worse than advice, 1 for a warning, 2 for an error."""
        return max((finding.severity for finding in self.findings), default=Severity.ADVICE) - Severity.ADVICE

    def count(self, severity: Severity) -> int:
        """Return the number of findings with this severity."""
        return sum(finding.severity is severity for finding in self.findings)


def report_object(report: Report, facts: Facts) -> dict[str, Any]:
    """Return the report for `--json`."""
    return {
        "version": __version__,
        "exit_code": report.exit_code,
        "counts": {each.text: report.count(each) for each in sorted(Severity, reverse=True)},
        "findings": [
            {
                "severity": each.severity.text,
                "id": each.check.id,
                "code": None if each.problem is None else each.problem.code,
                "what": each.what,
                "where": list(each.where),
                "fix": each.fix,
                "commands": list(each.commands),
                "doc": each.check.doc,
            }
            for each in report.findings
        ],
        "ok": [check.id for check in report.ok],
        "unknown": [check.id for check in report.unknown],
        "not_examined": [{"area": str(each.area), "reason": shown(each.reason)} for each in facts.not_examined],
    }


WIDTH = 80
MAX_PLACES = 5

_LABEL = 7


def report_text(report: Report, facts: Facts, *, verbose: bool = False) -> str:
    """Return the report as text. With `verbose`, it lists the checks that found nothing, too."""
    lines = [line for finding in report.findings for line in _finding_lines(finding)]
    if verbose:
        for label, checks in (("Found nothing", report.ok), ("Unknown", report.unknown)):
            lines += [*_wrapped(f"{label}: {', '.join(each.id for each in checks) or 'no check'}.", 2), ""]
    severities = (
        counted(report.count(Severity.ERROR), "error"),
        counted(report.count(Severity.WARNING), "warning"),
        counted(report.count(Severity.ADVICE), "piece of advice", "pieces of advice"),
    )
    return "\n".join((*lines, *_examined_lines(report, facts), f"{', '.join(severities)}.", ""))


def _finding_lines(finding: Finding) -> Iterator[str]:
    yield f"{finding.severity.name}  {finding.check.id}"
    yield from _wrapped(f"  {finding.what}", 2)
    more = len(finding.where) - MAX_PLACES
    places = [*finding.where[:MAX_PLACES], *([f"and {more} more"] if more > 0 else [])]
    for label, place in zip(["where", *[""] * MAX_PLACES], places, strict=False):
        yield from _wrapped(f"  {label:<{_LABEL}}{place}", _LABEL + 2)
    yield from _wrapped(f"  {'fix':<{_LABEL}}{finding.fix}", _LABEL + 2)
    yield from (f"{' ' * (_LABEL + 4)}{command}" for command in finding.commands)
    if finding.check.doc != PAGE:
        yield f"  {'read':<{_LABEL}}{finding.check.doc}"
    yield ""


def _examined_lines(report: Report, facts: Facts) -> Iterator[str]:
    counts = (
        counted(len(facts.node.gpus), "GPU"),
        counted(len(facts.daemons), "running daemon"),
        counted(len(facts.processes), "CUDA process", "CUDA processes"),
        counted(sum(len(daemon.log.problems) for daemon, _ in facts.running()), "log"),
        counted(len(facts.private_tmp or {}), "systemd unit"),
        f"the rights of {facts.exporter.label}",
    )
    yield from _wrapped(f"Examined: {', '.join(counts)}.", 0)
    yield f"{counted(len(report.ok), 'check')} found nothing wrong."
    if facts.not_examined:
        areas = ", ".join(dict.fromkeys(each.area for each in facts.not_examined))
        incomplete = counted(len(report.unknown), "check is incomplete", "checks are incomplete")
        yield from _wrapped(f"Not examined, or not in full: {areas}. {incomplete}.", 0)


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False)
