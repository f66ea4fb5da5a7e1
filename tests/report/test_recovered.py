"""What is over is shown for as long as its alert fires, with the severity of the alert."""

import pytest

from exporter.model.incident import IncidentKind
from exporter.model.node import Node
from exporter.model.values import replace
from exporter.report.document_parts import Severity
from exporter.report.incident_findings import ALERT_SECONDS, recovered
from exporter.report.problems import DaemonProblem
from tests.builders import AT, CLIENT, DAEMON, faulted, incident, three_clients


def died(clients: frozenset[int] | None = frozenset({CLIENT}), *, back_at: float = AT + 3) -> Node:
    """Return a node whose daemon died at AT, and is up again."""
    present = three_clients()
    daemon = present.daemons[DAEMON]
    lifecycle = replace(daemon.lifecycle, last_loss_at=AT, clients_at_end=clients, state_since=back_at)
    return replace(present, daemons={DAEMON: replace(daemon, lifecycle=lifecycle)})


@pytest.mark.parametrize(
    ("clients", "ended"),
    [
        (frozenset({CLIENT}), "1 client ended"),
        (frozenset[int](), "no client ended"),
        (None, "an unknown number of clients ended"),
    ],
)
def test_a_daemon_that_died_and_is_up_again(clients: frozenset[int] | None, ended: str) -> None:
    (first,) = (replace(each, at=AT + 30) for each in recovered(died(clients), AT + 30))
    assert first.severity is Severity.WARNING
    assert first.text == f"MPS daemon {DAEMON} died 30 s ago, and is up again; {ended}"


def test_an_earlier_death_does_not_tell_which_clients_ended() -> None:
    earlier = incident("d1", at=AT - 90, server=0, kind=IncidentKind.DAEMON_DIED, ended_at=AT - 80, affected=(7, 8, 9))
    present = replace(died(), incidents={earlier.id: earlier})
    (found,) = recovered(present, AT + 30)
    assert found.affected == "1 client ended"


def test_a_fault_that_has_ended() -> None:
    present = faulted()
    over = {name: replace(each, ended_at=AT + 20) for name, each in present.incidents.items()}
    node = replace(three_clients(), incidents=over)
    (found,) = recovered(node, AT + 30)
    assert (found.problem, found.severity) == (DaemonProblem.FAULT, Severity.WARNING)
    assert "ago and has ended; suspect: " in found.text
    assert not list(recovered(node, AT + 20 + ALERT_SECONDS + 1))
