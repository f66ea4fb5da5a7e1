"""Faults, open and past."""

from dataclasses import replace

from exporter.page.cards import MOST_PAST, faults
from exporter.report.status_view import status_view
from tests.builders import incident
from tests.page.scenes import fault, no_daemon


def test_an_open_fault_has_suspects_and_commands() -> None:
    (found,) = faults(status_view(fault())).open
    assert found.what == "fault by a client killed while its kernel ran on server 513 of /tmp/nvidia-mps"
    assert [(each.confidence, each.client) for each in found.suspects] == [
        ("0.96", "PID 700 (python3 of alice, job 42)"),
        ("0.02", "PID 601 (vllm of bob)"),
    ]
    assert "a kernel runs" in found.suspects[0].indications
    assert [(each.client, each.duration, each.command) for each in found.blockers] == [
        ("PID 601 (vllm of bob)", "44 s", "kill -KILL 601")
    ]
    assert (found.affected, found.refused) == ("3 clients", "1 new client refused in the meantime")


def test_a_past_fault_has_no_command() -> None:
    (found,) = faults(status_view(fault())).past
    assert (found.state, found.blockers, found.stuck) == ("recovered in 1.0 s", (), None)
    assert found.verdict == "unknown: no indication of a cause"


def test_shows_the_last_faults_and_counts_the_others() -> None:
    (over,) = (each for each in fault().incidents if not each.open)
    many = tuple(replace(over, id=f"513-{number}") for number in range(MOST_PAST + 3))
    found = faults(status_view(replace(fault(), incidents=many)))
    assert (len(found.past), found.older) == (MOST_PAST, 3)


def test_a_client_without_a_pid_has_no_command() -> None:
    (lasting,) = (each for each in fault().incidents if each.open)
    stay = next(iter(lasting.blocking.values()))
    found = faults(status_view(replace(fault(), incidents=(replace(lasting, blocking={-3: stay}),))))
    assert [(each.client, each.command) for each in found.open[0].blockers] == [("an unknown PID", None)]


def test_shows_an_incident_of_an_unknown_daemon() -> None:
    stray = incident("9-1", daemon="/gone", stuck=True)
    (found,) = faults(status_view(replace(no_daemon(), incidents=(stray,)))).open
    assert found.stuck is None
