"""What the watchdog must know of a daemon when it is no more: which process it was, and which its servers were."""

from itertools import chain

from exporter.core.watchdog import budget
from exporter.core.watchdog.matter import Matter, Told
from exporter.model.diagnosis import Condition
from exporter.model.identity import ProcessIdentity, identity_of
from exporter.model.replace import replace
from exporter.model.watch import Watch

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
    """Its process and its servers, while it lives."""
    watch, daemon = matter.watch, matter.daemon
    if daemon.gone:
        return watch
    known = (identity_of(matter.node.processes.get(pid)) for pid in daemon.servers)
    servers = tuple(each for each in known if each is not None)
    process = daemon.process or watch.process
    if (process, servers) == (watch.process, watch.servers):
        return watch
    another = watch.process is not None and identity_of(process) != identity_of(watch.process)
    well_since = None if another else watch.well_since
    return replace(watch, process=process, servers=servers, well_since=well_since)


def leftovers(matter: Matter) -> tuple[ProcessIdentity, ...]:
    """The servers that may have outlived their daemon: one that was stopped does (measured, R580).

    Which they were, its log told too, into which everybody may write (measured, R580): another daemon, and those who
    serve for it, are none of them.
    """
    deaths, others = matter.node.deaths, _of_others(matter)
    return tuple(
        each
        for each in matter.watch.servers
        if each.pid not in others and (each.pid not in deaths or deaths[each.pid].start_ticks != each.start_ticks)
    )


def _of_others(matter: Matter) -> frozenset[int]:
    """The other daemons, and their servers."""
    others = [each for each in matter.node.daemons.values() if each.name != matter.daemon.name]
    daemons = (each.process.pid for each in others if each.process is not None and each.process.pid is not None)
    return frozenset(chain(daemons, *(each.servers for each in others)))


def kept_well(matter: Matter) -> Told:
    """How long it has been well. After a whole window, what went before is forgiven, and the breaker closes."""
    watch, at = budget.pruned(matter.watch, matter.rules, matter.at), matter.at
    watch = _since(watch, matter.condition, at)
    well_for = 0.0 if watch.well_since is None or matter.condition is not Condition.WELL else at - watch.well_since
    if well_for < matter.rules.window:
        return watch, ()
    if watch.failures:
        watch = replace(watch, failures=0)
    return budget.closed(watch, matter.daemon.name, at, f"it has been well for {matter.rules.window:g} s")


def _since(watch: Watch, condition: Condition, at: float) -> Watch:
    if condition in _ILL:
        watch = watch if watch.well_since is None else replace(watch, well_since=None)
    elif condition is Condition.WELL and watch.well_since is None:
        watch = replace(watch, well_since=at)
    return watch
