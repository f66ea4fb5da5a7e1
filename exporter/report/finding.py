"""A problem that this node has: a code of the catalogue, the values that fill its texts, and the commands that help."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from string import Formatter

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.observation import DaemonName, GpuUuid
from exporter.parse.printable import printable
from exporter.report.problem import ON_NODE, Definition, FindingCode, Severity
from exporter.report.problems import ADDED, PROBLEMS, REMEDIES, Situation
from exporter.report.remedy import ManualStep
from exporter.report.text import duration_text

MOST_COMMANDS = 4
"""How many commands a finding has at most."""

_LOST = (DaemonState.ABSENT, DaemonState.UNRESPONSIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem, as it was at a moment.

    `since` is when it began, if that is known. `daemon`, `server`, `gpu` and `client` (a PID) are what it concerns.
    """

    code: FindingCode
    at: float
    since: float | None = None
    daemon: DaemonName | None = None
    server: int | None = None
    gpu: GpuUuid | None = None
    client: int | None = None

    values: Mapping[str, str] = field(default_factory=dict)
    """What fills the placeholders of the catalogue's texts, safe to show."""

    notes: tuple[str, ...] = ()
    """What is added to the text: earlier restarts, and what the watchdog does."""

    situation: Situation | None = None
    """What changes the catalogue's remedy."""

    commands: tuple[str, ...] = ()
    """What helps, as typed into a shell."""

    steps: tuple[ManualStep, ...] = ()
    """All that is to be done, in order, if it takes several steps."""

    harmless: bool = False
    """Whether `status` exits with code 0 all the same, as with an exporter that has just started."""

    @property
    def definition(self) -> Definition:
        """The entry of the catalogue."""
        return PROBLEMS[self.code]

    @property
    def severity(self) -> Severity:
        """How urgent it is."""
        return self.definition.severity

    @property
    def fails(self) -> bool:
        """Whether `status` exits with code 1 because of it."""
        return self.definition.fails and not self.harmless

    @property
    def text(self) -> str:
        """What is wrong, in one line."""
        values, definition = self._values(), self.definition
        template = (
            definition.summary_since if self.since is not None and definition.summary_since else definition.summary
        )
        for part in ON_NODE:
            template = template.replace(part, "")
        detail = definition.detail if _placeholders(definition.detail) <= values.keys() else ""
        return ", ".join((f"{template}{detail}".format_map(values), *self.notes))

    @property
    def remedy(self) -> str:
        """What to do, before the commands."""
        if self.situation is None:
            return self.definition.remedy
        text = REMEDIES[self.situation].format_map(self._values())
        return f"{text} {self.definition.remedy}" if self.situation in ADDED else text

    def _values(self) -> Mapping[str, str]:
        since = {} if self.since is None else {"since": duration_text(self.at - self.since)}
        known = {"daemon": self.daemon, "gpu": self.gpu}
        shown = {name: printable(value) for name, value in known.items() if value is not None}
        server = {} if self.server is None else {"server": str(self.server)}
        return _Values({**shown, **server, **since, **self.values})


class _Values(dict[str, str]):
    """The values of placeholders; one that is missing is unknown."""

    def __missing__(self, _: str) -> str:
        return "unknown"


def _placeholders(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}


def state_word(daemon: Daemon) -> str:
    """Return the state of a daemon, or why it has none."""
    return daemon.state or ("unknown" if daemon.supported else "unsupported")


def severity_of(daemon: Daemon) -> Severity:
    """Return how urgent a daemon's own state is; the end of an unexpected daemon is not an outage."""
    if daemon.state is DaemonState.UP:
        return Severity.WELL
    if daemon.state is None:
        return Severity.UNKNOWN if daemon.supported else Severity.WARNING
    return Severity.CRITICAL if daemon.declared.expected and daemon.state in _LOST else Severity.WARNING


def standing(daemon: Daemon, found: Iterable[Finding]) -> tuple[Severity, str]:
    """Return how a daemon is, in one word: its own state, or the most urgent finding if that is more urgent."""
    severity, word = severity_of(daemon), state_word(daemon)
    for each in found:
        if each.daemon == daemon.name and each.severity.rank > severity.rank:
            severity, word = each.severity, each.definition.label
    return severity, word
