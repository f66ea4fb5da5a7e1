"""A problem of the catalogue that this node has, the values that fill its texts, and the commands that help."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.observation import DaemonName, GpuUuid
from exporter.model.reason import with_known_parts
from exporter.parse.printable import printable
from exporter.report.document import FindingStatus, ManualStep
from exporter.report.problem import ON_NODE, Definition, Entry, Severity
from exporter.report.problems import Situation
from exporter.report.process_status import filled
from exporter.report.text import duration_text

MOST_COMMANDS = 4
"""How many commands a finding has at most."""


@dataclass(frozen=True, slots=True)
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
    """What is added to the text: earlier restarts, and what the watchdog does."""

    details: str = ""
    """Sentences after the text: what `doctor` read."""

    places: tuple[str, ...] = ()
    """The processes, paths or GPUs that have the problem, if it can be in several places."""

    rated: Severity | None = None
    """The severity, if it is not that of the catalogue."""

    situation: Situation | None = None
    """What changes the catalogue's remedy."""

    advice: str = ""
    """Sentences after the remedy."""

    commands: tuple[str, ...] = ()
    """What helps, as typed into a shell."""

    steps: tuple[ManualStep, ...] = ()
    """What to do, in order, if several steps are needed."""

    harmless: bool = False
    """Whether `status` exits with code 0 all the same, as with an exporter that has just started."""

    @property
    def definition(self) -> Definition:
        """The entry of the catalogue."""
        return self.problem.definition

    @property
    def severity(self) -> Severity:
        """How urgent it is."""
        return self.rated or self.definition.severity

    @property
    def fails(self) -> bool:
        """Whether `status` exits with code 1 because of it."""
        return self.definition.fails and not self.harmless

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
        """What to do, before the commands."""
        texts = [self.definition.remedy, self.advice]
        if self.situation is not None:
            texts[: not self.situation.added] = [self.situation.remedy.format_map(self._values())]
        return " ".join(filter(None, texts))

    def _values(self) -> Mapping[str, str]:
        """Return the values of placeholders; one that is missing is unknown."""
        since = None if self.since is None else duration_text(self.at - self.since)
        known = {"daemon": self.daemon, "gpu": self.gpu, "server": self.server, "since": since}
        shown = {name: printable(str(value)) for name, value in known.items() if value is not None}
        return defaultdict(lambda: "unknown", {**shown, **self.values})


def finding_status(found: Finding) -> FindingStatus:
    """Return the finding as a part of the status document."""
    return filled(FindingStatus, found, found.definition, code=found.problem.code, runbook=found.definition.page)


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
