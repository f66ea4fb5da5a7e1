"""The table of faults, in which each leads to the dashboard of its incident, and marks of faults over time."""

from dashboards import looks
from dashboards.board import Annotation
from dashboards.links import to_incident, to_node
from dashboards.panel import Column, Panel, table
from dashboards.query import DAEMON

INCIDENT = f"{DAEMON}, incident"
_BEFORE_SECONDS, _AFTER_SECONDS = 900, 1800


def began(which: str = "") -> str:
    """Return when each incident of the selected time range began."""
    return _of_each("cuda_mps_incident_timestamp_seconds", which)


def _of_each(family: str, which: str = "") -> str:
    return f"max by ({INCIDENT}) (last_over_time({family}{{node{which}}}[$__range]))"


def faults() -> Panel:
    """All faults of the time shown, the newest first."""
    return table(
        "Faults",
        "Each fatal GPU error that affected a server's clients, even if the server recovered at once. Click a fault "
        "for its clients, its suspect, and the state before and after. Empty: there was none in the selected time "
        "range.",
        (
            f"1000 * {began()}",
            f"1000 * ({began()} - {_BEFORE_SECONDS})",
            f"1000 * ({began()} + {_AFTER_SECONDS})",
            _of_each("cuda_mps_fault_last_affected_clients"),
        ),
        {
            "Value #A": Column("Began", looks.MOMENT),
            "instance": Column("Node", link=to_node()),
            "daemon": "Daemon",
            "incident": Column("Incident", link=to_incident()),
            "Value #D": Column("Affected clients", looks.COUNT),
            "Value #B": Column("From", looks.NUMBER, hidden=True),
            "Value #C": Column("To", looks.NUMBER, hidden=True),
        },
        sort=("Began", True),
        width=12,
    )


def marks(of: str) -> tuple[Annotation, ...]:
    """Marks of the faults and deaths of the selected daemons; `of` begins the selector."""
    return (
        Annotation(
            name="Faults",
            colour=looks.Colour.BAD,
            moments=f"cuda_mps_fault_last_timestamp_seconds{{{of}}}",
            title="Fault",
            text="A fatal GPU error affected clients of {{daemon}} on {{instance}}.",
        ),
        Annotation(
            name="Daemon deaths",
            colour=looks.Colour.WARNING,
            moments=f"cuda_mps_daemon_last_loss_timestamp_seconds{{{of}}}",
            title="Daemon died",
            text="The control daemon {{daemon}} on {{instance}} died, and its clients with it.",
        ),
    )
