"""The watchdog's diagnosis and actions as text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from exporter.model.action import ActionKind
from exporter.model.daemon import Daemon
from exporter.model.identity import ProcessIdentity
from exporter.model.node import Node
from exporter.model.settings import Mode
from exporter.model.watchdog import (
    HARMLESS,
    Condition,
    Diagnosis,
    LastAction,
    OngoingAction,
    Quarantine,
    WatchdogPhase,
    WatchdogState,
)
from exporter.parse.printable import printable
from exporter.report.finding import Finding
from exporter.report.problem import FindingCode
from exporter.report.problems import OF_CONDITION, of_condition, of_watch_state
from exporter.report.reasons import text_of, texts_of
from exporter.report.remedy import cause, resume_text
from exporter.report.text import (
    Line,
    counted,
    dim,
    display_name,
    duration_text,
    error,
    line_of,
    pid_text,
    process_text,
    warning,
)
from exporter.view import View
from exporter.watchdog.context import Policy

MOST_INDICATIONS = 8
MOST_BRIEF = 4
"""So many daemons are named in one line."""

GIVEN_UP = (WatchdogPhase.CIRCUIT_OPEN, WatchdogPhase.QUARANTINED, WatchdogPhase.STATE_LOST)
"""Until somebody says `resume`."""

_ACTIONS = {
    ActionKind.RESTART: "restart of the daemon",
    ActionKind.END_SERVER: "end of a hung server",
    ActionKind.KILL_CLIENTS: "kill of the clients that block recovery",
    ActionKind.SHUT_DOWN_SERVER: "shutdown of the server in FAULT",
    ActionKind.SET_LIMITS: "setting of limits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The watchdog's state of a daemon in words: the diagnosis, its indications, the process it names, what is done.

    `ill` says that the diagnosis calls for something, and `of_fault` that it is a fault, which is shown separately.
    If `given_up`, nothing is done until an operator resumes the daemon. `quarantine` is since when, and why, a GPU is
    in quarantine. `planned` says that `says` is what the watchdog would do if it did not only observe.
    """

    ill: bool
    of_fault: bool
    given_up: bool
    matter: str
    indications: str
    quarantine: str | None
    named: str | None
    says: str | None
    planned: bool
    failed: str | None

    @property
    def told(self) -> str:
        """The diagnosis with its indications."""
        return f"{self.matter}: {self.indications}" if self.indications else self.matter


def modes(node: Node, policy: Policy) -> str:
    """Whether the watchdog acts, in two words; where not for all that it watches alike, for how many."""
    watched = [daemon for daemon in View(node).daemons() if daemon.declared.expected]
    acting = sum(policy.mode_of(daemon) is Mode.ACT for daemon in watched)
    if 0 < acting < len(watched):
        return f"watchdog acts for {acting} of {len(watched)}"
    return "watchdog acts" if (acting if watched else policy.mode is Mode.ACT) else "watchdog observes"


def briefly(node: Node) -> Sequence[str]:
    """What is the matter with the daemons, each in a few words; of too many, how many more they are."""
    found = ((daemon, in_few_words(node, daemon)) for daemon in View(node).daemons())
    told = [f"{display_name(daemon.name)}: {words}" for daemon, words in found if words is not None]
    more = [f"{len(told) - MOST_BRIEF} more daemons are not well"] if len(told) > MOST_BRIEF else []
    return [*told[:MOST_BRIEF], *more]


def in_few_words(node: Node, daemon: Daemon) -> str | None:
    """What is the matter with a daemon, in a few words; None where nothing is, or its fault is told anyhow."""
    watch = node.watches.get(daemon.name)
    if watch is None:
        return None
    found = None if watch.diagnosis is None else watch.diagnosis.condition
    told = [] if found in (None, *HARMLESS, Condition.FAULT) else [of_condition(found).label]
    if told or watch.phase is not WatchdogPhase.IDLE:
        told += history_of(watch)
    return ", ".join(told) or None


def history_of(watch: WatchdogState) -> Sequence[str]:
    """How often a daemon was restarted lately, and what the watchdog is at, in a few words each."""
    restarted = [f"restarted {counted(len(watch.restarts), 'time')}"] if watch.restarts else []
    return restarted if watch.phase is WatchdogPhase.IDLE else [*restarted, of_watch_state(watch.phase).label]


def lines(node: Node) -> Iterable[Line]:
    """Of each daemon that is not well, or that something is done or not done for: all that is known, line by line."""
    for daemon in View(node).daemons():
        found = account(node, daemon)
        if found is not None:
            yield from _of(daemon, found)


def _of(daemon: Daemon, found: Account) -> Iterable[Line]:
    because = f": {found.indications}" if found.indications else ""
    if found.quarantine is not None:
        yield line_of(error(found.quarantine))
    if found.quarantine is None or found.ill:
        yield line_of(error(found.matter) if found.ill else found.matter, because)
    if found.named is not None:
        yield line_of(dim("  process: "), found.named)
    if found.says is not None:
        yield line_of(dim("  watchdog: "), error(found.says) if found.given_up else found.says)
    if found.failed is not None:
        yield line_of(dim("  failed: "), warning(found.failed))


def account(node: Node, daemon: Daemon) -> Account | None:
    """None where it is well, and nothing is done or not done for it."""
    watch = node.watches.get(daemon.name)
    if watch is None:
        return None
    found, doing, last = watch.diagnosis, _doing(node, daemon, watch), watch.last_action
    well = found is None or found.condition in HARMLESS
    if well and doing is None:
        return None
    return Account(
        ill=not well,
        of_fault=found is not None and found.condition is Condition.FAULT,
        given_up=watch.phase in GIVEN_UP,
        matter=_matter(daemon, found, node.at),
        indications="" if found is None else texts_of(found.indications[:MOST_INDICATIONS]),
        quarantine=None if watch.quarantine is None else _quarantine(node, daemon, watch.quarantine),
        named=None if found is None or found.process is None else _process(node, found.process),
        says=doing or _latest(watch),
        planned=doing is None and last is not None and not last.begun,
        failed=None if watch.problem is None else text_of(watch.problem),
    )


def _latest(watch: WatchdogState) -> str | None:
    """Return why the watchdog waits, or what it did last, or would do."""
    if watch.last_action is not None:
        return _last_action(watch.last_action)
    return None if watch.reason is None else text_of(watch.reason)


def _last_action(action: LastAction) -> str:
    what = f"{action.kind.replace('_', ' ')}: {action.reason.replace('_', ' ')}"
    return what if action.begun else f"would {what}"


def _quarantine(node: Node, daemon: Daemon, quarantine: Quarantine) -> str:
    values = {"cause": cause(node, quarantine)}
    code = FindingCode.QUARANTINED
    return Finding(code=code, at=node.at, since=quarantine.at, daemon=daemon.name, values=values).text


def _matter(daemon: Daemon, found: Diagnosis | None, now: float) -> str:
    code = OF_CONDITION[Condition.UNKNOWN if found is None else found.condition]
    if code is FindingCode.WELL:
        return f"MPS daemon {printable(daemon.name)} is well"
    since = None if found is None or found.condition in HARMLESS else found.since
    server = None if found is None else found.server
    return Finding(code=code, at=now, since=since, daemon=daemon.name, server=server).text


def _process(node: Node, identity: ProcessIdentity) -> str:
    """The PID may be somebody else's by now, who must not be named for it."""
    process = node.processes.get(identity.pid)
    if process is None or process.start_ticks != identity.start_ticks:
        return pid_text(identity.pid)
    return process_text(identity.pid, process.command, process.user)


def _doing(node: Node, daemon: Daemon, watch: WatchdogState) -> str | None:
    """What the watchdog is at; None where that is nothing."""
    resume = resume_text(daemon.name)
    match watch.phase:
        case WatchdogPhase.IDLE:
            return None
        case WatchdogPhase.ACTING:
            return "acts" if watch.acting is None else _acting(watch.acting, node.at)
        case WatchdogPhase.BACKOFF:
            tried = f"restarted {counted(len(watch.restarts), 'time')} without success"
            return tried if watch.not_before is None else f"{tried}; {_next(watch.not_before - node.at)}"
        case WatchdogPhase.DEFERRED_TO_SYSTEMD:
            return "leaves the restart to systemd: the unit has a Restart= that applies"
        case WatchdogPhase.CIRCUIT_OPEN:
            since = (
                "" if watch.circuit_opened_at is None else f" for {duration_text(node.at - watch.circuit_opened_at)}"
            )
            return f"restarts suspended{since} (circuit open), until {resume}"
        case WatchdogPhase.QUARANTINED:
            return f"restarts suspended (GPU quarantined), until {resume}"
        case WatchdogPhase.STATE_LOST:
            since = "" if watch.state_lost_at is None else f" for {duration_text(node.at - watch.state_lost_at)}"
            return (
                f"the state directory has not been readable and writable{since}, so earlier restarts are unknown;"
                f" restarts suspended until {resume}"
            )


def _acting(acting: OngoingAction, now: float) -> str:
    what = f"{_ACTIONS[acting.kind]} ({acting.reason})"
    if acting.done_at is None:
        return f"{what}: in progress for {duration_text(now - acting.began_at)}"
    return f"{what}: done {duration_text(now - acting.done_at)} ago, effect not verified yet"


def _next(seconds: float) -> str:
    return "next restart now" if seconds <= 0 else f"next restart in {duration_text(seconds)} or later"
