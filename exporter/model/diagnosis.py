"""What is the matter with a control daemon, and who says so."""

from dataclasses import dataclass
from enum import StrEnum

from exporter.model.identity import ProcessIdentity


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is the matter since when, and the `witnesses` in words, each a sentence without its full stop.

    `culprit` is the process that it names: the holder of the session, or the one that was stopped, hangs or sleeps.
    `server` and `incident` are those of a fault, or of a server that hangs.
    """

    condition: Condition
    since: float
    witnesses: tuple[str, ...] = ()
    culprit: ProcessIdentity | None = None
    server: int | None = None
    incident: str | None = None
