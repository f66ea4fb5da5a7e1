"""What the watchdog must know of a daemon when it is no more: its process, and which processes were its servers."""

from exporter.core.watchdog import budget
from exporter.core.watchdog.matter import Matter, Told
from exporter.model.diagnosis import Condition
from exporter.model.identity import ProcessIdentity, identity_of
from exporter.model.node import Node
from exporter.model.observation import DaemonProcess, ProcessReading
from exporter.model.reason import Reason, ReasonCode
from exporter.model.replace import replace
from exporter.model.watch import Watch
from exporter.parse.proc import mps_program

MOST_CHILDREN = 16
"""How many servers of a daemon are remembered, the latest ones."""

_ILL = frozenset(
    {
        Condition.CRASHED,
        Condition.STOPPED,
        Condition.NEVER_SEEN,
        Condition.UNRESPONSIVE,
        Condition.SUSPENDED,
        Condition.STUCK_IN_DRIVER,
    }
)


def remembered(matter: Matter) -> Watch:
    """Return the watch with the daemon's process and its servers, as long as it lives."""
    watch, daemon = matter.watch, matter.daemon
    if daemon.gone:
        return watch
    process = daemon.runtime.process or watch.process
    another = watch.process is not None and identity_of(process) != identity_of(watch.process)
    children = _children(matter, process, () if another else watch.children)
    if (process, children) == (watch.process, watch.children):
        return watch
    well_since = None if another else watch.well_since
    return replace(watch, process=process, children=children, well_since=well_since)


def _children(
    matter: Matter, process: DaemonProcess | None, before: tuple[ProcessIdentity, ...]
) -> tuple[ProcessIdentity, ...]:
    """Return the servers that /proc has shown to be children of this process, without those that have ended.

    The daemon's answers and its log only say at which PIDs to look: any user may write into that log (measured, R580).
    """
    read = (matter.node.processes.get(pid) for pid in matter.daemon.servers)
    now = (identity_of(each) for each in read if each is not None and _is_child(each, process))
    found = dict.fromkeys((*before, *(each for each in now if each is not None)))
    return tuple(each for each in found if not _has_ended(matter.node, each))[-MOST_CHILDREN:]


def _is_child(reading: ProcessReading, daemon: DaemonProcess | None) -> bool:
    """Return whether a process was started by this daemon, and runs a program of MPS as a user that it can have."""
    parent = identity_of(daemon)
    if daemon is None or parent is None or reading.parent != parent or reading.start_ticks < parent.start_ticks:
        return False
    of_mps = mps_program(reading.executable, reading.command) is not None
    return of_mps and daemon.uid is not None and daemon.uid in (0, reading.uid)


def _has_ended(node: Node, process: ProcessIdentity) -> bool:
    """Return whether its end was seen, or another process has its PID."""
    death, reading = node.deaths.get(process.pid), node.processes.get(process.pid)
    if reading is not None:
        return reading.start_ticks != process.start_ticks
    return death is not None and death.start_ticks == process.start_ticks


def leftovers(matter: Matter) -> tuple[ProcessIdentity, ...]:
    """Return the servers that may have outlived their daemon: one that was stopped does (measured, R580)."""
    return tuple(each for each in matter.watch.children if not _has_ended(matter.node, each))


def kept_well(matter: Matter) -> Told:
    """How long it has been well. After a whole window, what went before is forgiven, and the breaker closes."""
    watch, at = budget.pruned(matter.watch, matter.rules, matter.at), matter.at
    watch = _since(watch, matter.condition, at)
    well_for = 0.0 if watch.well_since is None or matter.condition is not Condition.WELL else at - watch.well_since
    if well_for < matter.rules.window:
        return watch, ()
    if watch.failures:
        watch = replace(watch, failures=0)
    return budget.closed(watch, matter.daemon.name, at, Reason(ReasonCode.WELL_FOR_WINDOW, seconds=matter.rules.window))


def _since(watch: Watch, condition: Condition, at: float) -> Watch:
    if condition in _ILL:
        watch = watch if watch.well_since is None else replace(watch, well_since=None)
    elif condition is Condition.WELL and watch.well_since is None:
        watch = replace(watch, well_since=at)
    return watch
