"""An unprivileged user's daemon cannot claim processes of other users."""

from dataclasses import replace

import pytest

from exporter.model.event import EventName
from exporter.model.observation import Observation
from exporter.state import fault_log, poll_schedule
from tests.builders import (
    AT,
    CLIENT,
    DAEMON,
    FAULT_BLOCK,
    GPU,
    SERVER,
    Reduced,
    active,
    at_work,
    control_log,
    daemon_process,
    gpu_reading,
    look,
    process,
    reduced,
    server_log,
    servers,
    status,
)

VICTIM, ATTACKER = 900, 1000
ROOTS = process(VICTIM, uid=0, user="root")
FAKE = replace(daemon_process(), uid=ATTACKER)
OWN = (process(SERVER, uid=ATTACKER, user="mallory"), process(CLIENT, uid=ATTACKER, user="mallory"))
CLAIMS: tuple[Observation, ...] = (FAKE, *at_work(CLIENT, VICTIM), *OWN)


def everywhere(story: Reduced) -> set[int]:
    """Return all PIDs that the daemon has anything to do with."""
    daemon = story.daemon
    hit = {pid for server in daemon.servers.values() for pid in fault_log.named_clients(server)}
    here = {*daemon.servers, *daemon.clients, *daemon.connections.queued}
    return (
        here
        | hit
        | {
            *daemon.connections.disconnected_at,
            *daemon.connections.server_exited_at,
            *daemon.connections.disconnects,
            *daemon.connections.recently_disconnected,
        }
    )


@pytest.mark.parametrize("seen", [(*CLAIMS, ROOTS), (ROOTS, *CLAIMS)], ids=("learned after", "known before"))
def test_another_users_process_is_no_client_and_has_no_account(seen: tuple[Observation, ...]) -> None:
    """In either order of the claim and the process reading."""
    story = reduced(*seen, start=reduced(gpu_reading(beside=[VICTIM])).node)
    assert everywhere(story) == {SERVER, CLIENT}
    assert {workload.name for workload in story.node.accounts} == {"mallory"}
    assert len(story.of(EventName.CLIENT_CONNECTED)) - len(story.of(EventName.CLIENT_DISCONNECTED)) == 1


def test_removes_other_users_clients_once_the_daemons_user_is_known() -> None:
    assert everywhere(reduced(*CLAIMS[1:], ROOTS, FAKE)) == {SERVER, CLIENT}


def test_another_users_process_bypasses_mps() -> None:
    readings = (gpu_reading([CLIENT], beside=[VICTIM], at=AT + second) for second in (1, 3))
    assert reduced(*CLAIMS, ROOTS, *readings).node.gpus[GPU].bypassing == (VICTIM,)


def test_another_users_process_is_no_disconnected_client() -> None:
    """Its user is read, because NVML would show it for any time."""
    left = server_log(f"Client process {VICTIM} disconnected", at=AT + 1)
    readings = (gpu_reading([CLIENT], beside=[VICTIM], at=AT + second) for second in (2, 3, 5))
    before = reduced(*CLAIMS, *left, next(readings), look(at=AT + 2))
    assert VICTIM in poll_schedule.processes_wanted(before.node)
    assert reduced(ROOTS, *readings, start=before.node).node.gpus[GPU].bypassing == (VICTIM,)


def test_another_users_process_is_no_server_and_no_queued_client() -> None:
    waits = control_log(f"NEW CLIENT {VICTIM} from user 0: Server is not ready, push client to pending list", at=AT + 1)
    assert VICTIM in everywhere(reduced(*CLAIMS, *waits))
    assert everywhere(reduced(*CLAIMS, *waits, ROOTS)) == {SERVER, CLIENT}
    assert everywhere(reduced(*CLAIMS, servers(SERVER, VICTIM, at=AT + 1), ROOTS)) == {SERVER, CLIENT}


EXITS = f"Client {{PID: {VICTIM}, Context ID: 1}} exiting. Number of active client contexts is 2."
TORN_DOWN = f"Client {{PID: {VICTIM}, Context ID: 1}} on device 0 to be torn down"
NAMED = f"Client {{PID: {VICTIM}, Context: 1}} encountered a fatal GPU error."


def test_faults_do_not_affect_other_users_processes(subtests: pytest.Subtests) -> None:
    """The named processes are read, and removed once their user is known."""
    for claims in [
        (EXITS,),
        (NAMED,),
        (NAMED, FAULT_BLOCK[0]),
        (FAULT_BLOCK[0], TORN_DOWN),
        (*FAULT_BLOCK, str(VICTIM)),
    ]:
        with subtests.test(claims=claims):
            own = reduced(FAKE, *at_work(CLIENT), *OWN)
            before = reduced(*server_log(*claims, at=AT + 1), start=own.node)
            assert VICTIM in everywhere(before)
            assert VICTIM in poll_schedule.processes_wanted(before.node)
            assert VICTIM not in everywhere(reduced(ROOTS, start=before.node))
            assert VICTIM not in everywhere(reduced(ROOTS, *server_log(*claims, at=AT + 1), start=own.node))
            assert CLIENT in everywhere(reduced(ROOTS, start=before.node))


@pytest.mark.parametrize("known", [AT + 0.5, AT + 1.5], ids=("known before", "learned after"))
def test_other_users_are_not_suspects_of_its_faults(known: float) -> None:
    """The daemon names an affected client, or one that disconnected just before."""
    own = reduced(FAKE, *at_work(CLIENT), *OWN)
    users = (replace(ROOTS, at=known),)
    claims = (*server_log(EXITS, at=AT + 0.85), *server_log(NAMED, *FAULT_BLOCK, str(VICTIM), at=AT + 1))
    confirms = status("FAULT", at=AT + 1)
    seen = sorted((*claims, confirms, *users, look("log", at=AT + 4)), key=lambda each: each.at)
    story = reduced(*seen, start=own.node)
    (incident,) = story.node.incidents.values()
    assert (incident.affected, set(incident.client_details)) == ((CLIENT,), {CLIENT})
    assert {suspect.client.pid for suspect in incident.suspects} <= {CLIENT}
    assert (incident.clues.named, incident.clues.early_disconnects) == (None, ())
    faulted = {workload.name: account.faults_affected for workload, account in story.node.accounts.items()}
    assert faulted == {"mallory": 1}


def test_the_daemon_of_root_serves_all_users() -> None:
    assert everywhere(reduced(daemon_process(), *CLAIMS[1:], ROOTS)) == {SERVER, CLIENT, VICTIM}


def test_a_daemon_of_an_unknown_user_serves_all_users() -> None:
    assert everywhere(reduced(*CLAIMS[1:], ROOTS)) == {SERVER, CLIENT, VICTIM}


def test_a_daemon_in_a_container_serves_several_users() -> None:
    """It can only name processes of its PID namespace. A user namespace has several UIDs."""
    container = {SERVER: SERVER, 7: VICTIM}
    connects = (replace(line, pids=container) for line in server_log(active(7)))
    seen = (replace(each, pids=container) if hasattr(each, "pids") else each for each in (FAKE, *at_work()))
    assert VICTIM in reduced(*seen, *connects, process(VICTIM, uid=100_999)).node.daemons[DAEMON].clients
