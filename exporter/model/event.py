"""What happened, as the core tells it."""

from dataclasses import dataclass, fields
from enum import StrEnum


class EventName(StrEnum):
    """Every kind of event there is."""

    DAEMON_UP = "daemon_up"
    DAEMON_LOST = "daemon_lost"
    DAEMON_STOPPED = "daemon_stopped"
    DAEMON_UNRESPONSIVE = "daemon_unresponsive"
    DAEMON_RESPONSIVE = "daemon_responsive"
    SERVER_STARTED = "server_started"
    SERVER_EXITED = "server_exited"
    SERVER_STATE = "server_state"
    CLIENT_CONNECTED = "client_connected"
    CLIENT_DISCONNECTED = "client_disconnected"
    CLIENT_REFUSED = "client_refused"
    CLIENT_WAITING = "client_waiting"
    PROCESS_BYPASSING = "process_bypassing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened at `at` (seconds since the epoch); fields that do not apply are None."""

    at: float
    event: EventName
    daemon: str
    server: int | None = None
    pid: int | None = None
    gpu: str | None = None
    reason: str | None = None
    state: str | None = None

    def as_json(self) -> dict[str, str | int | float]:
        """The event as an object for JSON, without what does not apply."""
        known = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in known if value is not None}
