"""The tables of faults and deaths, in which each leads to its incident, and marks of both over time."""

from dashboards import looks
from dashboards.board import Annotation
from dashboards.links import to_death, to_incident, to_node
from dashboards.panel import Column, Panel, table
from dashboards.query import DAEMON

INCIDENT = f"{DAEMON}, incident"
NEWEST = 100
_BEFORE, _AFTER = -900_000, 1_800_000
"""The time that is shown of an incident, in milliseconds from its begin."""


def began(which: str = "") -> str:
    """Return when each incident of the selected time range began."""
    return _of_each("cuda_mps_incident_timestamp_seconds", which)


def _of_each(family: str, which: str = "") -> str:
    return f"max by ({INCIDENT}) (last_over_time({family}{{node{which}}}[$__range]))"


def faults() -> Panel:
    """The newest faults of the time shown, the newest first."""
    return table(
        "Faults",
        f"The {NEWEST} newest fatal GPU errors that affected a server's clients, even if the server recovered at once. "
        "Click a fault for its clients, its suspect, and the state before and after. Empty: there was none in the "
        "selected time range.",
        (
            f"1000 * topk({NEWEST}, {began()})",
            f"{_of_each('cuda_mps_fault_last_affected_clients')} and on ({INCIDENT}) topk({NEWEST}, {began()})",
        ),
        {
            "Value #A": Column("Began", looks.MOMENT),
            "instance": Column("Node", links=to_node()),
            "daemon": "Daemon",
            "incident": Column("Incident", links=to_incident()),
            "Value #B": Column("Affected clients", looks.COUNT),
        },
        sort=("Began", True),
        later={"From": ("Began", _BEFORE), "To": ("Began", _AFTER)},
        width=12,
    )


def deaths() -> Panel:
    """Return the table of the newest deaths of daemons and servers, the newest first."""
    by = f"{INCIDENT}, kind"
    ends = f"max by ({by}) (last_over_time(cuda_mps_death_timestamp_seconds{{node}}[$__range]))"
    return table(
        "Deaths",
        f"The {NEWEST} newest deaths of daemons and servers, and restarts by the watchdog, even if the daemon returned "
        "at once. Click one for the clients that ended with it. Empty: there was none in the selected time range.",
        f"1000 * topk({NEWEST}, {ends})",
        {
            "Value": Column("Died", looks.MOMENT),
            "instance": Column("Node", links=to_node()),
            "daemon": "Daemon",
            "kind": "Kind",
            "incident": Column("Death", links=to_death()),
        },
        sort=("Died", True),
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
