"""A problem of the catalogue that this node has, the values that fill its texts, and the steps that help."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, field

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import Node
from exporter.model.observation import DaemonName, GpuUuid
from exporter.model.reason import with_known_parts
from exporter.model.values import frozen_positional, replace
from exporter.parse.printable import printable
from exporter.report.document import FindingStatus, ManualStep
from exporter.report.document_parts import Severity
from exporter.report.problems import ON_NODE, DaemonProblem, Definition, Entry, Situation
from exporter.report.process_status import filled, printed
from exporter.report.remedy import MOST_GROUPED
from exporter.report.text import counted, duration_text

SETTLED_SECONDS = 10.0
"""After this time, the daemon of a client or server is known, and NVML lists no clients of a daemon that ended."""

COUNTED_SECONDS = 60.0
"""For how long the alert of a refused client or a restart fires, which a counter shows, if scraped every 15 s."""

MOST_COMMANDS = 4
"""How many commands of one kind a step has at most."""

MOST_FACTS = 512
"""At most so many facts, and so many names, of a finding are in the document."""


@frozen_positional
class Finding:
    """One problem, as it was at the time `at`.

    `since` is when it began, if that is known. `daemon`, `server`, `gpu` and `client` (a PID) are what it concerns.
    """

    problem: Entry
    _: KW_ONLY
    at: float = 0.0
    since: float | None = None
    daemon: DaemonName | None = None
    server: int | None = None
    gpu: GpuUuid | None = None
    client: int | None = None

    values: Mapping[str, str] = field(default_factory=dict)
    """What fills the placeholders of the catalogue's texts, safe to show."""

    notes: tuple[str, ...] = ()
    """What is added to the text: earlier restarts, and what the end of a daemon ended."""

    details: str = ""
    """Sentences after the text: what a check read."""

    affected: str = ""
    """Who is affected, in a few words: the number of clients; empty if that is unknown."""

    affected_names: tuple[str, ...] = ()
    """The known ones."""

    facts: tuple[str, ...] = ()
    """What indicates the problem: processes, paths or GPUs."""

    outlook: str = ""
    """What happens without an operator: sentences that hold in the watchdog's mode, budget and permissions."""

    follows: str | None = None
    """Another problem of this node that may be the cause, in a few words."""

    rated: Severity | None = None
    """The severity, if it is not that of the catalogue."""

    situation: Situation | None = None
    """What changes the catalogue's remedy."""

    advice: str = ""
    """Sentences after the remedy."""

    commands: tuple[str, ...] = ()
    """What helps, as typed into a shell."""

    steps: tuple[ManualStep, ...] = ()
    """What to do, in order, instead of the catalogue's remedy with the commands."""

    @property
    def definition(self) -> Definition:
        """The entry of the catalogue."""
        return self.problem.definition

    @property
    def severity(self) -> Severity:
        """How urgent it is."""
        return self.rated or self.definition.severity

    @property
    def text(self) -> str:
        """What is wrong, in one line."""
        values = self._values()
        template = with_known_parts(self.definition.summary, values.keys())
        for part in ON_NODE:
            template = template.replace(part, "")
        text = ", ".join((template.format_map(values), *self.notes))
        return f"{text}. {self.details}".removesuffix(".") if self.details else text

    @property
    def remedy(self) -> str:
        """What to do, if there are no steps."""
        texts = [self.definition.remedy, self.advice]
        if self.situation is not None:
            texts[0] = self.situation.value
        return " ".join(filter(None, texts))

    @property
    def all_steps(self) -> tuple[ManualStep, ...]:
        """What to do, in order; one step if there is only a remedy."""
        return self.steps or (ManualStep(text=self.remedy, commands=self.commands),)

    def _values(self) -> Mapping[str, str]:
        """Return the values of placeholders; one that is missing is unknown."""
        since = None if self.since is None else duration_text(self.at - self.since)
        known = {"daemon": self.daemon, "gpu": self.gpu, "server": self.server, "since": since}
        shown = {name: printable(str(value)) for name, value in known.items() if value is not None}
        return defaultdict(lambda: "unknown", {**shown, **self.values})


def observed(node: Node, since: float | None) -> float | None:
    """Return since when something lasts; None if it may have begun before the exporter did."""
    return None if since is None or 0 <= since - (node.began_at or since) < SETTLED_SECONDS else since


def finding_statuses(found: Iterable[Finding]) -> tuple[FindingStatus, ...]:
    """Return findings as parts of the status document, one for all daemons with the same problem and remedy."""
    alike: dict[object, list[Finding]] = {}
    for each in found:
        texts = tuple(step.text for step in each.all_steps)
        # Each fault has its own clients.
        alone = each.daemon is None or each.problem in (DaemonProblem.SERVER_FAULT, DaemonProblem.FAULT)
        key = id(each) if alone else (each.problem, each.severity, each.follows, each.details, texts)
        alike.setdefault(key, []).append(each)
    return tuple(map(_status, alike.values()))


def _status(alike: Sequence[Finding]) -> FindingStatus:
    """Return findings of several daemons, or a single one. Each daemon is a fact, with its own facts."""
    first, *others = alike
    text, facts, affected = first.text, list(first.facts), first.affected
    names = [name for each in alike for name in each.affected_names]
    daemons = tuple(dict.fromkeys(printed(each.daemon) for each in alike if each.daemon is not None))
    if others:
        what = "more daemon" if len(daemons) == len(alike) else "more server"
        text = f"{text}; the same applies to {counted(len(others), what)}"
        facts = [_as_fact(each, first) for each in (alike if first.facts else others)]
        # Of daemons without names, the clients may be unknown.
        least = "" if all(each.affected_names for each in alike) else "at least "
        same = first.affected if len({each.affected for each in alike}) == 1 else ""
        affected = f"{least}{counted(len(names), 'client')}" if names else same
    return filled(
        FindingStatus,
        first,
        first.definition,
        code=first.problem.code,
        daemons=daemons,
        text=text,
        affected=affected,
        affected_names=tuple(names[:MOST_FACTS]),
        facts=tuple(facts[:MOST_FACTS]),
        steps=tuple(map(_together, zip(*(each.all_steps for each in alike), strict=True))),
        runbook=first.definition.page,
    )


def _as_fact(finding: Finding, first: Finding) -> str:
    """Return the finding of one of several daemons without the sentences that the first one has too."""
    outlook = "" if finding.outlook == first.outlook else finding.outlook
    sentences = filter(None, (finding.text, *finding.facts, outlook))
    return ". ".join(each[:1].upper() + each[1:] for each in sentences)


def with_most(step: ManualStep, most: int) -> ManualStep:
    """Return a step with at most so many commands. Its text then says that there are more."""
    left = len(step.commands) - most
    if left <= 0:
        return step
    text = f"{step.text} Then `cuda-mps-exporter status` shows {counted(left, 'more command')}."
    return replace(step, text=text, commands=step.commands[:most])


def _together(steps: Sequence[ManualStep]) -> ManualStep:
    """Return the same step for several daemons."""
    commands = tuple(dict.fromkeys(command for step in steps for command in step.commands))
    ends = {step.commands: step.ends for step in steps}.values()  # The same commands end the same clients.
    step = replace(steps[0], commands=commands, ends=None if None in ends else sum(filter(None, ends)))
    return step if len(steps) == 1 else with_most(step, MOST_GROUPED)


def state_text(daemon: Daemon) -> str:
    """Return the state of a daemon, or why it has none."""
    return daemon.state or ("unknown" if daemon.supported else "unsupported")


def severity_and_label(daemon: Daemon, found: Iterable[Finding]) -> tuple[Severity, str]:
    """Return the severity of a daemon and its name: the most urgent finding's, or else that of its own state.

    The end of a daemon that is not expected is not an outage.
    """
    severity, label = Severity.WARNING, state_text(daemon)
    if daemon.state is DaemonState.UP:
        severity = Severity.WELL
    elif daemon.state is None and daemon.supported:
        severity = Severity.UNKNOWN
    elif daemon.declared.expected and daemon.state in (DaemonState.DOWN, DaemonState.UNRESPONSIVE):
        severity = Severity.CRITICAL
    for each in found:
        if each.daemon == daemon.name and each.severity.rank > severity.rank:
            severity, label = each.severity, each.definition.label
    return severity, label
