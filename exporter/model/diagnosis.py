"""The diagnosis of a control daemon: its condition, and the indications for it."""

from dataclasses import dataclass
from enum import StrEnum

from exporter.model.identity import ProcessIdentity
from exporter.model.reason import Reason


class Condition(StrEnum):
    """How a control daemon is. One at a time: the gravest."""

    WELL = "well"
    STARTING = "starting"
    UNKNOWN = "unknown"
    """Too little is seen: of one alone, nothing follows."""
    CRASHED = "crashed"
    """It is no more, and nobody had told it to go."""
    STOPPED = "stopped"
    """An operator told it to go."""
    NEVER_SEEN = "never_seen"
    """It is expected, and there is no trace that it ever was."""
    UNRESPONSIVE = "unresponsive"
    """It lives and answers nobody."""
    SUSPENDED = "suspended"
    """It was stopped by a signal (SIGSTOP), or by a debugger, and answers nobody."""
    STUCK_IN_DRIVER = "stuck_in_driver"
    """It, or one of its servers, sleeps and cannot be woken, nor killed."""
    SERVER_SUSPENDED = "server_suspended"
    """One of its servers was stopped by a signal; the daemon is sound, and hangs as soon as it asks that server."""
    SERVER_UNRESPONSIVE = "server_unresponsive"
    """The daemon answers nobody, as it waits for one of its servers."""
    PROGRAM_UNRESPONSIVE = "program_unresponsive"
    """The control program gets no answer, but the daemon answers the exporter's own connections."""
    HELD = "held"
    """Somebody's open session keeps all others out."""
    FAULT = "fault"
    """One of its servers is in FAULT."""
    CRASH_LOOP = "crash_loop"
    """Its servers exit before they are ready."""


HARMLESS = (Condition.WELL, Condition.STARTING, Condition.UNKNOWN)
"""Conditions that call for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A daemon's condition, since when it lasts, and what indicates it.

    `culprit` is the process that the diagnosis names: the one with the open session, or the one that is suspended,
    hangs or sleeps. `server` and `incident` belong to a fault, or to a server that hangs.
    """

    condition: Condition
    since: float
    indications: tuple[Reason, ...] = ()
    culprit: ProcessIdentity | None = None
    server: int | None = None
    incident: str | None = None
