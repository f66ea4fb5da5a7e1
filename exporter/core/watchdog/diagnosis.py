"""What is the matter with a daemon: several witnesses say so, never one."""

from collections.abc import Iterable

from exporter.core import crash_loop
from exporter.core.watchdog import ending
from exporter.core.watchdog.matter import Matter, Told
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.diagnosis import Condition, Diagnosis
from exporter.model.event import Event, EventName
from exporter.model.identity import ProcessIdentity
from exporter.model.incident import Incident
from exporter.model.replace import replace
from exporter.model.server import ServerState
from exporter.model.watch import Watch
from exporter.model.witnesses import ProcessState

_STANDING_SECONDS = 1.0
"""A server that was stopped for less than this may have been so by a debugger, or at one look."""

_HUNG = frozenset({Condition.UNRESPONSIVE, Condition.SUSPENDED})
_WAITED_FOR = frozenset({Condition.SERVER_SUSPENDED, Condition.STUCK_IN_DRIVER})
_TRIFLES = frozenset({None, Condition.WELL, Condition.STARTING, Condition.UNKNOWN})


def diagnosed(matter: Matter) -> Told:
    """The watch with its diagnosis; an event where that is news."""
    before = matter.watch.diagnosis
    found = _lasting(_found(matter), before, matter.at)
    if found == before:
        return matter.watch, ()
    watch = _stopping(replace(matter.watch, diagnosis=found), found, matter)
    was = None if before is None else before.condition
    trifle = was in _TRIFLES and found.condition in _TRIFLES
    same = before is not None and (was, before.culprit) == (found.condition, found.culprit)
    return watch, () if trifle or same else (_told(matter, found),)


def _lasting(found: Diagnosis, before: Diagnosis | None, at: float) -> Diagnosis:
    """One that hangs may be found to be stopped, or the other way round: that is the same matter.

    One that only waited for another process hangs by itself from now on, if it does: it may not have been asked since.
    """
    if before is None or found.condition not in _HUNG:
        return found
    if before.condition in _WAITED_FOR:
        return replace(found, since=at)
    return replace(found, since=before.since) if before.condition in _HUNG else found


def _stopping(watch: Watch, found: Diagnosis, matter: Matter) -> Watch:
    """An operator's stop is remembered until the daemon lives again."""
    if found.condition is Condition.STOPPED:
        return replace(watch, stopped_at=found.since)
    alive = matter.daemon.state is not None and not matter.daemon.gone
    return replace(watch, stopped_at=None) if alive else watch


def _told(matter: Matter, found: Diagnosis) -> Event:
    return Event(
        at=matter.at,
        event=EventName.DAEMON_DIAGNOSED,
        daemon=matter.daemon.name,
        server=found.server,
        pid=None if found.culprit is None else found.culprit.pid,
        state=found.condition,
        reason=found.witnesses[0] if found.witnesses else None,
        witnesses=found.witnesses or None,
    )


def _found(matter: Matter) -> Diagnosis:
    """The gravest that there is."""
    if matter.daemon.gone:
        return ending.ended(matter)
    return (
        _suspended(matter)
        or _stuck(matter)
        or _server_suspended(matter)
        or _unresponsive(matter)
        or _held(matter)
        or _fault(matter)
        or _crash_loop(matter)
        or _sound(matter)
    )


def _suspended(matter: Matter) -> Diagnosis | None:
    daemon, state = matter.daemon, _state_of_daemon(matter, "Tt")
    if state is None or not _silent(daemon):
        return None
    return Diagnosis(
        condition=Condition.SUSPENDED,
        since=min(state.at, daemon.unanswered_since or state.at),
        witnesses=(f"process {state.pid} was stopped (state {state.state})", "it answers nobody"),
        culprit=_identity(state),
    )


def _stuck(matter: Matter) -> Diagnosis | None:
    """A short sleep in the kernel is nothing; one beside a daemon that answers nobody is what it waits for."""
    daemon = matter.daemon
    if daemon.state is not DaemonState.UNRESPONSIVE:
        return None
    asleep = _state_of_daemon(matter, "D") or next(iter(_states_of_servers(matter, "D")), None)
    if asleep is None:
        return None
    return Diagnosis(
        condition=Condition.STUCK_IN_DRIVER,
        since=asleep.at,
        witnesses=(f"process {asleep.pid} sleeps in the kernel (state D)", "the daemon answers nobody"),
        culprit=_identity(asleep),
        server=asleep.pid if asleep.pid in daemon.servers else None,
    )


def _server_suspended(matter: Matter) -> Diagnosis | None:
    stopped = (each for each in _states_of_servers(matter, "Tt") if matter.at - each.at >= _STANDING_SECONDS)
    state = min(stopped, key=lambda each: each.at, default=None)
    if state is None:
        return None
    daemon = "its daemon answers nobody" if _silent(matter.daemon) else "its daemon is sound, and asks it nothing"
    return Diagnosis(
        condition=Condition.SERVER_SUSPENDED,
        since=state.at,
        witnesses=(f"server {state.pid} was stopped (state {state.state})", daemon),
        culprit=_identity(state),
        server=state.pid,
    )


def _unresponsive(matter: Matter) -> Diagnosis | None:
    """Two failed probes and a second witness have made it so (`core/life.py`)."""
    daemon = matter.daemon
    if daemon.state is not DaemonState.UNRESPONSIVE:
        return None
    lives = () if daemon.process is None else (f"process {daemon.process.pid} lives",)
    deaf = ("nobody listens on its socket",) if daemon.listening is False else ()
    return Diagnosis(
        condition=Condition.UNRESPONSIVE,
        since=min(daemon.state_since or matter.at, daemon.unanswered_since or matter.at),
        witnesses=("its commands get no answer", *lives, *deaf),
    )


def _held(matter: Matter) -> Diagnosis | None:
    daemon, holder = matter.daemon, matter.daemon.holder
    if daemon.state is not DaemonState.HELD:
        return None
    refused = "its commands are refused, as long as somebody's session is open"
    found = Diagnosis(condition=Condition.HELD, since=daemon.state_since or matter.at, witnesses=(refused,))
    if holder is None or holder.pid is None or holder.start_ticks is None:
        return found
    who = f"process {holder.pid} ({holder.user or holder.uid}) has a session open"
    culprit = ProcessIdentity(pid=holder.pid, start_ticks=holder.start_ticks)
    return replace(found, witnesses=(who, refused), culprit=culprit)


def _fault(matter: Matter) -> Diagnosis | None:
    incident = next(iter(faults(matter)), None)
    if incident is None:
        return None
    if incident.stuck:
        second = "all whom it hit have let go, and it does not recover"
    elif incident.blockers:
        second = f"it waits for {', '.join(map(str, sorted(incident.blockers)))} to let go"
    else:
        second = "it waits for those whom it hit to let go"
    return Diagnosis(
        condition=Condition.FAULT,
        since=incident.started_at,
        witnesses=(f"server {incident.server} is in FAULT", second),
        server=incident.server,
        incident=incident.id,
    )


def faults(matter: Matter) -> Iterable[Incident]:
    """The daemon's faults that are not over, the eldest first, as far as their servers are known to be in one."""
    servers = matter.daemon.servers
    for each in matter.node.incidents.values():
        ill = each.server in servers and servers[each.server].state is ServerState.FAULT
        if each.open and each.daemon == matter.daemon.name and ill:
            yield each


def _crash_loop(matter: Matter) -> Diagnosis | None:
    starts = matter.daemon.failed_starts
    if not starts.told or starts.last_at is None or matter.at - starts.last_at > crash_loop.CEASED_SECONDS:
        return None
    return Diagnosis(
        condition=Condition.CRASH_LOOP,
        since=starts.began[0],
        witnesses=(
            f"its last {len(starts.began)} servers exited before they were ready",
            "no server has started since",
        ),
    )


def _sound(matter: Matter) -> Diagnosis:
    daemon = matter.daemon
    condition = Condition.UNKNOWN
    if matter.lives:
        condition = Condition.WELL
    elif daemon.state is DaemonState.STARTING:
        condition = Condition.STARTING
    return Diagnosis(condition=condition, since=daemon.state_since or matter.at)


def _silent(daemon: Daemon) -> bool:
    return daemon.state is DaemonState.UNRESPONSIVE or daemon.unanswered_since is not None


def _state_of_daemon(matter: Matter, letters: str) -> ProcessState | None:
    process = matter.daemon.process
    if process is None or process.pid is None:
        return None
    return _state(matter, process.pid, process.start_ticks, letters)


def _states_of_servers(matter: Matter, letters: str) -> list[ProcessState]:
    processes = matter.node.processes
    known = ((pid, processes[pid].start_ticks) for pid in matter.daemon.servers if pid in processes)
    return [state for pid, ticks in known if (state := _state(matter, pid, ticks, letters)) is not None]


def _state(matter: Matter, pid: int, start_ticks: int | None, letters: str) -> ProcessState | None:
    """How a process stands, where it does so in one of these states."""
    state = matter.node.states.get(pid)
    return state if state is not None and state.start_ticks == start_ticks and state.state in letters else None


def _identity(state: ProcessState) -> ProcessIdentity:
    return ProcessIdentity(pid=state.pid, start_ticks=state.start_ticks)
