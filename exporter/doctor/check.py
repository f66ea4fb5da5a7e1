"""What a check is, and the texts and commands that checks share."""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import cleandoc

from exporter.doctor.facts import Area, DaemonFacts, Facts, ProcessFacts
from exporter.model.node import CollectorName
from exporter.model.reason import Reason
from exporter.parse.printable import LONGEST_PROBLEM, printable
from exporter.report.finding import Finding
from exporter.report.problem import Definition, Problem, Severity
from exporter.report.text import process_text

Find = Callable[[Facts], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Check:
    """A function that finds one kind of mistake, and the mistake's entry in the catalogue.

    If one of the areas in `needs` was not fully examined, it is unknown whether the mistake is absent.
    """

    code: str
    definition: Definition
    find: Find
    needs: tuple[Area, ...]

    def finding(
        self,
        *facts: str,
        details: str = "",
        advice: str = "",
        commands: tuple[str, ...] = (),
        rated: Severity | None = None,
    ) -> Finding:
        """Return the mistake with the processes, paths or GPUs that have it."""
        return Finding(self, facts=facts, details=details, advice=advice, commands=commands, rated=rated)


def check(defined_by: Severity | Problem, *needs: Area, page: str | None = None) -> Callable[[Find], Check]:
    """Make a check of a function that finds a problem of the catalogue, or a mistake that its docstring defines.

    The first sentence of that docstring is the summary, and the last paragraph the remedy. Between them is the meaning.
    """

    def made(find: Find) -> Check:
        if isinstance(defined_by, Problem):
            return Check(defined_by.code, defined_by.definition, find, needs)
        problem, _, remedy = (" ".join(each.split()) for each in cleandoc(find.__doc__ or "").rpartition("\n\n"))
        summary, meaning = re.split(r"(?<=[.]) ", problem, maxsplit=1)
        definition = Definition(
            label=find.__name__.replace("_", " "),
            summary=summary.rstrip("."),
            meaning=meaning,
            remedy=remedy,
            severity=defined_by,
            runbook=page,
            fails=False,
        )
        return Check(find.__name__, definition, find, needs)

    return made


AS_ROOT = ("sudo cuda-mps-exporter doctor",)
ATTRIBUTION_AS_ROOT = ("sudo cuda-mps-exporter doctor --attribution=bpf",)
"""The service has the option from its unit, but a command in a shell does not."""
RESTART_EXPORTER = "systemctl daemon-reload && systemctl restart cuda-mps-exporter"

UNITS = "/opt/cuda-mps-exporter/share/cuda-mps-exporter/systemd"
"""Where the guide's installation has units and drop-ins; the operator may have no clone of the repository."""

DROP_INS = f"install -Dm 644 -t /etc/systemd/system/cuda-mps-exporter.service.d {UNITS}/cuda-mps-exporter.service.d"


def process_label(process: ProcessFacts) -> str:
    """Return a process as `PID 5120 (python3 of carol)`."""
    user = process.user or ("" if process.uid is None else f"UID {process.uid}")
    return process_text(process.pid, process.command, user)


def daemon_label(daemon: DaemonFacts) -> str:
    """Return a running daemon as `/run/nvidia-mps: PID 441 (nvidia-cuda-mps-control of root)`."""
    return f"{shown(daemon.name)}: {process_label(daemon.process)}"


def nvml_problem(facts: Facts) -> Reason | None:
    """Return why NVML does not work, if so."""
    source = facts.node.sources.get(CollectorName.NVML)
    return None if source is None else source.last.problem


def shown(text: str) -> str:
    """Return the printable form of a text from the node, such as a path or an error."""
    return printable(text, LONGEST_PROBLEM)


def quoted(text: str) -> str:
    """Return such a text as one word of a shell command."""
    return shlex.quote(shown(text))


def config_line(key: str, text: str) -> str:
    """Return a line of the configuration file."""
    return f"{key} = {json.dumps(shown(text), ensure_ascii=False)}"


def without_private_tmp(unit: str) -> str:
    """Return the command that gives a unit the /tmp of the host."""
    return f"systemctl edit {quoted(unit)}  # [Service] PrivateTmp=no"
