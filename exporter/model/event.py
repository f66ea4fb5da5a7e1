"""Events: what happened, as the reducer or the watchdog reports it."""

from dataclasses import fields
from enum import StrEnum
from typing import Any, Self

from exporter.model.action import ActionResult
from exporter.model.daemon import Daemon
from exporter.model.incident import Incident
from exporter.model.reason import Reason
from exporter.model.server import ServerState
from exporter.model.values import frozen, frozen_positional
from exporter.model.watchdog import HARMLESS


class LogLevel(StrEnum):
    """The level at which the exporter's own log has an event."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@frozen_positional
class _Traits:
    """What holds for all events of one name.

    An `urgent` event may page a person, or follows an operator's `resume`: it is published at once. A `frequent` event
    can be caused by lines of a log in any number: the exporter's own log has a limited number of them.
    """

    level: LogLevel = LogLevel.INFO
    urgent: bool = False
    frequent: bool = False


_INFO = _Traits()
_WARNING = _Traits(LogLevel.WARNING)
_URGENT = _Traits(urgent=True)
_URGENT_WARNING = _Traits(LogLevel.WARNING, urgent=True)
_URGENT_ERROR = _Traits(LogLevel.ERROR, urgent=True)
_FREQUENT = _Traits(frequent=True)
_FREQUENT_WARNING = _Traits(LogLevel.WARNING, frequent=True)


class EventName(StrEnum):
    """Every kind of event there is, with its level. Those of the timeline have words for the page."""

    DAEMON_UP = "daemon_up", _INFO, "the daemon answers"
    DAEMON_LOST = "daemon_lost", _URGENT_ERROR, "the daemon died"
    DAEMON_STOPPED = "daemon_stopped", _INFO, "the daemon stopped"
    DAEMON_UNRESPONSIVE = "daemon_unresponsive", _URGENT, "the daemon does not answer"
    DAEMON_RESPONSIVE = "daemon_responsive", _INFO, "the daemon answers again"
    SERVER_STARTED = "server_started", _FREQUENT
    SERVER_EXITED = "server_exited", _FREQUENT
    SERVER_STATE = "server_state", _FREQUENT
    CLIENT_CONNECTED = "client_connected", _FREQUENT
    CLIENT_DISCONNECTED = "client_disconnected", _FREQUENT
    CLIENT_REFUSED = "client_refused", _FREQUENT, "refused"
    CLIENT_WAITING = "client_waiting", _FREQUENT, "waits for another user's clients"
    PROCESS_BYPASSING = "process_bypassing", _FREQUENT, "bypasses MPS"
    CLIENT_FAULT_CONTAINED = "client_fault_contained", _FREQUENT_WARNING, "ended by a fault of its own"
    SERVER_CRASH_LOOP = "server_crash_loop", _URGENT_WARNING, "servers crash repeatedly"
    GPU_XID = "gpu_xid", _FREQUENT, "Xid"
    GPU_LOST = "gpu_lost", _URGENT_ERROR, "the GPU is lost"
    NVML_FAILED = "nvml_failed", _FREQUENT_WARNING, "NVML fails"
    NVML_RECOVERED = "nvml_recovered", _FREQUENT, "NVML works again"
    MEMORY_FILLED = "memory_filled", _FREQUENT_WARNING, "fills the GPU's memory with its workload"
    MEMORY_FREED = "memory_freed", _FREQUENT, "no workload is known to fill the GPU's memory any more"
    CLIENT_STARVED = "client_starved", _FREQUENT_WARNING, "is starved"
    CLIENT_NOT_STARVED = "client_not_starved", _FREQUENT, "is no longer known to be starved"
    FAULT = "fault", _URGENT_ERROR, "fault"
    FAULT_CHANGED = "fault_changed", _WARNING
    FAULT_RECOVERED = "fault_recovered", _WARNING, "recovered from the fault"
    FAULT_OPEN = "fault_open", _INFO
    DAEMON_DIAGNOSED = "daemon_diagnosed", _WARNING
    WATCHDOG_WOULD_ACT = "watchdog_would_act", _INFO, "the watchdog would"
    WATCHDOG_ACTS = "watchdog_acts", _WARNING, "the watchdog starts to"
    WATCHDOG_ACTED = "watchdog_acted", _WARNING, "the watchdog finished:"
    WATCHDOG_WAITS = "watchdog_waits", _INFO, "the watchdog waits"
    CIRCUIT_OPENED = "circuit_opened", _URGENT_ERROR, "circuit opened"
    CIRCUIT_CLOSED = "circuit_closed", _URGENT, "circuit closed"
    DAEMON_QUARANTINED = "daemon_quarantined", _URGENT_ERROR, "quarantined"
    DAEMON_RELEASED = "daemon_released", _URGENT, "released from quarantine"
    LIMITS_DRIFTED = "limits_drifted", _WARNING, "limits have drifted"
    LIMITS_IN_FORCE = "limits_in_force", _INFO, "limits are in force"
    LIMITS_BYPASSED = "limits_bypassed", _WARNING, "clients connected before their limits were set"
    LOG_CONTRADICTED = "log_contradicted", _WARNING, "other sources contradict the log"
    LOG_BLOCKED = "daemon_log_blocked", _WARNING, "the daemon's log is blocked"
    LOG_UNBLOCKED = "daemon_log_unblocked", _INFO, "the daemon's log is no longer blocked"
    DAEMON_RESUMED = "daemon_resumed", _INFO, "an operator resumed the daemon"
    EXPORTER_PAUSED = "exporter_paused", _WARNING, "an operator paused the exporter"
    EXPORTER_RESUMED = "exporter_resumed", _INFO, "an operator resumed the exporter"

    _value_: str
    traits: _Traits
    words: str

    def __new__(cls, name: str, traits: _Traits, words: str = "") -> Self:
        """Make a member whose value is `name`."""
        member = str.__new__(cls, name)
        member._value_, member.traits, member.words = name, traits, words
        return member


TIMELINE = frozenset(event for event in EventName if event.words)
"""The events of the timeline. Others, such as each connection of a client, would displace them."""


@frozen
class Event:
    """One thing that happened at `at` (seconds since the epoch); fields that do not apply are None.

    `daemon` is None if it happened to a GPU. `incident` is the fault of the event, as it was then. `reason` is a code:
    a word, or a `Reason` if the code has parameters. `action` is what the watchdog does or would do, `result` its
    outcome, `problem` why it failed, and `evidence` the directory of files that were saved before. `indications` are
    those of the diagnosis. In the timeline, `user` and `command` name the process `pid`. `count` is the number of
    clients that the event is about.
    """

    at: float
    event: EventName
    daemon: str | None = None
    server: int | None = None
    pid: int | None = None
    user: str | None = None
    command: str | None = None
    gpu: str | None = None
    reason: Reason | str | None = None
    state: str | None = None
    xid: int | None = None
    name: str | None = None
    action: str | None = None
    result: str | None = None
    problem: Reason | None = None
    evidence: str | None = None
    indications: tuple[Reason, ...] | None = None
    count: int | None = None
    incident: Incident | None = None

    @property
    def urgent(self) -> bool:
        """Return whether the event is published at once."""
        return self.event.traits.urgent or self.state == ServerState.FAULT

    @property
    def ends_fault(self) -> bool:
        """Whether the fault is over, so that its incident is complete."""
        return self.event is EventName.FAULT_RECOVERED

    @property
    def level(self) -> LogLevel:
        """The level of the event in the log. A harmless diagnosis and an action that succeeded are information."""
        harmless = self.event is EventName.DAEMON_DIAGNOSED and self.state in HARMLESS
        failed = self.problem is not None or self.result == ActionResult.FAILED
        succeeded = self.event is EventName.WATCHDOG_ACTED and not failed
        return LogLevel.INFO if harmless or succeeded else self.event.traits.level

    def as_json(self) -> dict[str, object]:
        """Return the event as an object for JSON, without what does not apply.

        `reason` is the code; its parameters, if it has any, are in `reason_detail`.
        """
        known: dict[str, object] = {}
        for name in _KEYS:
            value = getattr(self, name)
            if isinstance(value, Reason) and name == "reason":
                known[name] = value.code
                known.update({"reason_detail": parameters} if (parameters := value.parameters_as_json()) else {})
            elif isinstance(value, Reason):
                known[name] = value.as_json()
            elif isinstance(value, tuple):
                known[name] = [each.as_json() for each in value]
            elif value is not None:
                known[name] = value
        if self.incident is None:
            return known
        return {**known, **_incident_as_json(self.incident, briefly=self.event is EventName.FAULT)}


_KEYS = tuple(each.name for each in fields(Event) if each.name != "incident")


MOST_SUSPECTS = 16
"""So many suspects, the likeliest ones, are in an event. Container runtimes split records of more than 16 KiB."""


def _incident_as_json(incident: Incident, *, briefly: bool) -> dict[str, object]:
    """Return the fault of an event as an object for JSON. When a fault begins, little is known."""
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
            {
                "pid": each.client.pid,
                "confidence": each.confidence,
                "indications": [indication.as_json() for indication in each.indications],
            }
            for each in incident.suspects[:MOST_SUSPECTS]
        ],
        "refused": sorted({each.pid for each in incident.refused if each.pid is not None}),
        "blocking": sorted(incident.blocking),
        **({"blockers": sorted(incident.blockers)} if incident.open else {}),
    }


class Step:
    """One change of a daemon by the reducer: the daemon as changed so far, and the events of the change in order.

    `restarting` is whether the watchdog is ending the daemon's process, to start another one.
    """

    __slots__ = ("daemon", "events", "restarting")

    def __init__(self, daemon: Daemon, *, restarting: bool = False) -> None:
        self.daemon = daemon
        self.restarting = restarting
        self.events: list[Event] = []

    def report(self, at: float, name: EventName, **details: Any) -> None:
        """Add an event of the daemon."""
        self.events.append(Event(at=at, event=name, daemon=self.daemon.name, **details))
