"""Limits that outlast a control daemon: what it had in its memory is put into the next one's.

Only what was set by command is remembered: a percentage that a daemon has from its start environment comes from there
again, and may be another one by then.
"""

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.enforcing import Enforcing
from exporter.model.identity import ProcessIdentity, identity_of
from exporter.model.limits import Limits
from exporter.model.replace import revised
from exporter.model.watch import Watch

WHOLE_GPU = 100.0
"""The percentage of a daemon that was told of none (R580)."""


def to_hold(configured: Limits, watch: Watch) -> Limits:
    """What is to hold now: as configured; and where another daemon has taken over, what held before."""
    return wanted(configured, watch) if watch.enforcing.restoring else configured


def wanted(configured: Limits, watch: Watch) -> Limits:
    """What the next daemon is to have: as configured, and else as it was, limit by limit and device by device."""
    before = watch.limits or Limits()
    share, priority = configured.active_thread_percentage, configured.client_priority
    return Limits(
        active_thread_percentage=before.active_thread_percentage if share is None else share,
        pinned_memory={**before.pinned_memory, **configured.pinned_memory},
        client_priority=before.client_priority if priority is None else priority,
    )


def followed(daemon: Daemon, watch: Watch) -> Watch:
    """What is remembered of a daemon's limits, after this was seen of it."""
    process = identity_of(daemon.runtime.process)
    enforcing = watch.enforcing
    if _is_another(daemon, process, enforcing):
        enforcing = Enforcing(restoring=True)
    if process is not None and process != enforcing.process:
        enforcing = revised(enforcing, process=process)
    if daemon.state is not DaemonState.UP:
        return revised(watch, enforcing=enforcing)
    limits, seen = _held(watch.limits or Limits(), enforcing.seen, daemon), _seen(enforcing.seen, daemon)
    return revised(watch, limits=limits or None, enforcing=revised(enforcing, seen=seen))


def _is_another(daemon: Daemon, process: ProcessIdentity | None, enforcing: Enforcing) -> bool:
    """Whether it is not the one that it was. Where that cannot be told, its having gone says so."""
    if process is not None and enforcing.process is not None:
        return process != enforcing.process
    return daemon.gone


def _held(before: Limits, seen: Limits, daemon: Daemon) -> Limits:
    """A default that has changed was set, and so was any that a daemon does not have of its own."""
    share, priority = daemon.default_limits.active_thread_percentage, daemon.default_limits.client_priority
    if share is not None and seen.active_thread_percentage not in (None, share):
        before = revised(before, active_thread_percentage=None if share == WHOLE_GPU else share)
    if priority or (priority == 0 and seen.client_priority is not None):
        before = revised(before, client_priority=priority or None)
    return revised(before, pinned_memory={**before.pinned_memory, **daemon.default_limits.pinned_memory})


def _seen(before: Limits, daemon: Daemon) -> Limits:
    share, priority = daemon.default_limits.active_thread_percentage, daemon.default_limits.client_priority
    return Limits(
        active_thread_percentage=before.active_thread_percentage if share is None else share,
        client_priority=before.client_priority if priority is None else priority,
    )
