"""Servers that a daemon starts again and again, and that exit before they are ready.

So it is where a server cannot run: on a GPU that MPS does not support, in a container without its libraries, with too
little memory. The daemon tries anew at once, for as long as a client waits: every 20 ms (measured, R580), or some times
a second (users' reports, 2024 to 2026).
"""

from math import ceil

from exporter.core.step import Step, quiet
from exporter.model.claim import Claim, ClaimKind
from exporter.model.daemon import Daemon, FailedStarts
from exporter.model.event import Event, EventName
from exporter.model.reason import Reason, ReasonCode
from exporter.model.replace import replace
from exporter.model.server import Server, ServerState

MANY = 3
"""So many starts in a row that fail are a loop, where they are no further apart than `WITHIN_SECONDS` in all."""

WITHIN_SECONDS = 60.0

CEASED_SECONDS = 300.0
"""After this long without a start that fails, the next one begins another loop."""


def exited(daemon: Daemon, at: float, server: Server) -> Step:
    """A server without clients has exited: an event, once, where it is one more of many that were never ready."""
    if not _failed(daemon, server):
        return quiet(daemon)
    last = daemon.connections.failed_starts
    if last.last_at is None or at - last.last_at > CEASED_SECONDS:
        last = FailedStarts()
    began = (*(each for each in last.began if at - each <= WITHIN_SECONDS), server.started_at)[-MANY:]
    daemon = replace(
        daemon,
        connections=replace(daemon.connections, failed_starts=FailedStarts(began=began, last_at=at, told=last.told)),
    )
    is_new = len(began) == MANY and not last.told
    claim = Claim(kind=ClaimKind.CRASH_LOOP, pid=0, at=at)
    return quiet(
        replace(daemon, log=replace(daemon.log, claims={claim.key: claim, **daemon.log.claims})) if is_new else daemon
    )


def confirmed(daemon: Daemon) -> Step:
    """Another source shows that servers have ended: an event, once for each loop."""
    failed = daemon.connections.failed_starts
    if failed.told or not failed.began or failed.last_at is None:
        return quiet(daemon)
    daemon = replace(daemon, connections=replace(daemon.connections, failed_starts=replace(failed, told=True)))
    return _told(daemon, failed.last_at, failed.last_at - failed.began[0])


def got_ready(daemon: Daemon) -> Daemon:
    """A server can start: what failed before is over."""
    return replace(daemon, connections=replace(daemon.connections, failed_starts=FailedStarts()))


def _failed(daemon: Daemon, server: Server) -> bool:
    """Whether the log saw it start, and never serve, though nobody wanted it to leave."""
    began = server.uid is not None and server.state in (None, ServerState.INITIALIZING)
    wanted = (
        server.told_to_leave or daemon.lifecycle.quit_at is not None or daemon.lifecycle.quit_claimed_at is not None
    )
    return began and not wanted


def _told(daemon: Daemon, at: float, seconds: float) -> Step:
    totals = replace(daemon.totals, crash_loops=daemon.totals.crash_loops + 1)
    reason = Reason(ReasonCode.SERVERS_EXITED_EARLY, count=MANY, seconds=float(max(1, ceil(seconds))))
    event = Event(at=at, event=EventName.SERVER_CRASH_LOOP, daemon=daemon.name, reason=reason)
    return replace(daemon, totals=totals), (event,)
