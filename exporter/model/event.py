"""What happened, as the core tells it."""

from dataclasses import dataclass, fields
from enum import StrEnum

from exporter.model.incident import Incident
from exporter.model.server import ServerState


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
    CLIENT_FAULT_CONTAINED = "client_fault_contained"
    SERVER_CRASH_LOOP = "server_crash_loop"
    GPU_XID = "gpu_xid"
    FAULT = "fault"
    FAULT_CHANGED = "fault_changed"
    FAULT_RECOVERED = "fault_recovered"
    FAULT_OPEN = "fault_open"
    DAEMON_DIAGNOSED = "daemon_diagnosed"
    WATCHDOG_WOULD_ACT = "watchdog_would_act"
    WATCHDOG_ACTS = "watchdog_acts"
    WATCHDOG_ACTED = "watchdog_acted"
    WATCHDOG_WAITS = "watchdog_waits"
    CIRCUIT_OPENED = "circuit_opened"
    CIRCUIT_CLOSED = "circuit_closed"
    DAEMON_QUARANTINED = "daemon_quarantined"
    DAEMON_RELEASED = "daemon_released"
    LIMITS_DRIFTED = "limits_drifted"
    LIMITS_IN_FORCE = "limits_in_force"
    LIMITS_BYPASSED = "limits_bypassed"
    LOG_CONTRADICTED = "log_contradicted"
    LOG_BLOCKED = "daemon_log_blocked"
    LOG_UNBLOCKED = "daemon_log_unblocked"


GRAVE = frozenset(
    {
        EventName.FAULT,
        EventName.DAEMON_LOST,
        EventName.DAEMON_UNRESPONSIVE,
        EventName.SERVER_CRASH_LOOP,
        EventName.CIRCUIT_OPENED,
        EventName.CIRCUIT_CLOSED,
        EventName.DAEMON_QUARANTINED,
        EventName.DAEMON_RELEASED,
    }
)
"""What may page a person, and what an operator's `resume` changes: it is published at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened at `at` (seconds since the epoch); fields that do not apply are None.

    `daemon` is None for what happened to a GPU; `incident` is the fault, as it was then, of which the event tells.
    `action` is what the watchdog does or would do, `result` what came of it, `problem` what kept it from success,
    `evidence` the directory of what was saved before, and `witnesses` who tells of its diagnosis. `count` is how many
    clients it is about.
    """

    at: float
    event: EventName
    daemon: str | None = None
    server: int | None = None
    pid: int | None = None
    gpu: str | None = None
    reason: str | None = None
    state: str | None = None
    xid: int | None = None
    name: str | None = None
    action: str | None = None
    result: str | None = None
    problem: str | None = None
    evidence: str | None = None
    witnesses: tuple[str, ...] | None = None
    count: int | None = None
    incident: Incident | None = None

    @property
    def grave(self) -> bool:
        """Return whether the event is published at once."""
        return self.event in GRAVE or self.state == ServerState.FAULT

    def as_json(self) -> dict[str, object]:
        """The event as an object for JSON, without what does not apply."""
        known = ((each.name, getattr(self, each.name)) for each in fields(self) if each.name != "incident")
        told: dict[str, object] = {name: value for name, value in known if value is not None}
        return (
            told
            if self.incident is None
            else {**told, **_told_of(self.incident, briefly=self.event is EventName.FAULT)}
        )


def _told_of(incident: Incident, *, briefly: bool) -> dict[str, object]:
    """What an event tells of its fault; at its opening little is known yet."""
    opening: dict[str, object] = {"incident": incident.id, "server": incident.server, "gpus": list(incident.gpus)}
    if briefly:
        return opening
    return {
        **opening,
        **({} if incident.seconds is None else {"seconds": round(incident.seconds, 3)}),
        "kind": incident.kind,
        "xids": [xid.number for xid in incident.xids],
        "affected": sorted(incident.affected),
        "suspects": [
            {"pid": each.tenant.pid, "confidence": each.confidence, "evidence": list(each.evidence)}
            for each in incident.suspects
        ],
        "refused": sorted({each.pid for each in incident.refused if each.pid is not None}),
        "blocking": sorted(incident.blocking),
        **({"blockers": sorted(incident.blockers)} if incident.open else {}),
    }
