"""Steps against a fault that does not end: one at a time, only configured ones, and no unaffected client is ended."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from exporter.model.action import ActionStep, EndProcess, GiveCommand, RunCommand, SaveEvidence
from exporter.model.event import EventName
from exporter.model.observation import ControlReply, GpuEvent, LogLine, Observation
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import AllowedAction, Mode
from exporter.model.watchdog import Condition
from exporter.parse.protocol3 import LIST_CLIENTS
from tests.builders import (
    FAULT_BLOCK,
    GPU,
    OTHER_GPU,
    SERVER,
    active,
    clients,
    control_log,
    exited,
    gpu_reading,
    process,
    refusal,
    reply,
    server_log,
    servers,
    status,
    with_fields,
)
from tests.watchdog.watched_daemon import ALL_STEPS, DEATH, KILL, NOTHING, SHUT_DOWN, WatchedDaemon, alive, silences

VICTIM, OTHER = 600, 601
STRUCK = DEATH


def strikes(*victims: int, at: float = STRUCK) -> tuple[Observation, ...]:
    """A fault that hits these, and no others. An Xid confirms it."""
    return (GpuEvent(at=at, type=8, xid=31, gpu=GPU), *claims(*victims, at=at))


def claims(*victims: int, at: float = STRUCK) -> tuple[LogLine, ...]:
    """Return the log lines of such a fault."""
    torn = (f"All clients belonging to error trigging process {pid} will be torn down" for pid in victims)
    return server_log(FAULT_BLOCK[0], *torn, *FAULT_BLOCK[1:4], *map(str, victims), at=at)


def confirms(*served: int, at: float = STRUCK + 0.5) -> tuple[Observation, ...]:
    """Return replies that confirm the fault and list the clients of the server."""
    return status("FAULT", at=at), clients(*served, at=at)


def faulted(
    *victims: int, served: Iterable[int] = (), allow: frozenset[AllowedAction] = ALL_STEPS, mode: Mode = Mode.ACT
) -> WatchedDaemon:
    """Return a watched daemon in FAULT with these affected clients, and other clients."""
    post = WatchedDaemon(*alive(*victims, *served), mode=mode, allow=allow)
    post.observe(*strikes(*victims), *confirms(*victims, *served))
    return post


def passes(post: WatchedDaemon, seconds: float) -> None:
    """Time passes; whatever is to be done is done, and does not help."""
    until = post.at + seconds
    while post.at < until:
        post.until(post.at + 0.5)
        if post.watch.acting is not None and post.watch.acting.done_at is None:
            post.finish_action()


def meets_again(post: WatchedDaemon, *seen: Observation) -> None:
    """Restart the exporter with its stored incidents and these observations. The server is still in FAULT."""
    incidents, at = post.node.incidents, post.at + 1
    post.restarted()
    post.node = replace(post.node, incidents=incidents)
    status = f"get_server_status {SERVER}"
    post.observe(*(replace(each, at=at) for each in seen if getattr(each, "command", None) != status))
    post.observe(reply(status, "FAULT\n", at=at), reply(status, "FAULT\n", at=at + 5))


def named(steps: Iterable[ActionStep]) -> list[str]:
    words: list[str] = []
    for step in steps:
        match step:
            case GiveCommand(command=command):
                words.append(command)
            case EndProcess(identity=identity):
                words.append(f"kill {identity.pid} {identity.start_ticks}")
            case RunCommand():
                words.append("start")
            case SaveEvidence():
                words.append("evidence")
            case _:
                words.append("?")
    return words


WHOLE = [
    ["evidence", "kill 600 60000"],
    ["evidence", "shutdown_server 513"],
    ["evidence", "shutdown_server 513 -f"],
    ["evidence", "kill 441 44100", "kill 513 51300", "start"],
]


@pytest.mark.parametrize(
    ("allow", "rungs"),
    [
        (NOTHING, 0),
        (KILL, 1),
        (SHUT_DOWN, 3),
        (ALL_STEPS, 4),
    ],
    ids=["nothing", "kill_clients", "and shut_down_server", "and restart_daemon"],
)
def test_takes_the_configured_steps_in_their_order(allow: frozenset[AllowedAction], rungs: int) -> None:
    post = faulted(VICTIM, allow=allow)
    passes(post, 59)
    assert post.actions == []
    passes(post, 45)
    assert [named(action.steps) for action in post.actions] == WHOLE[:rungs]


def test_ends_a_client_only_if_the_daemon_has_listed_it_since_the_fault() -> None:
    post = WatchedDaemon(*alive(VICTIM), allow=KILL).observe(*strikes(VICTIM), status("FAULT", at=STRUCK + 0.5))
    passes(post, 80)
    assert post.actions == []
    post.observe(clients(VICTIM, at=post.at))
    passes(post, 5)
    assert [named(action.steps) for action in post.actions] == WHOLE[:1]


@pytest.mark.parametrize(
    ("readings", "ends"),
    [
        ((gpu_reading((), at=STRUCK - 5),), True),
        ((gpu_reading((), at=STRUCK + 1),), False),
        ((gpu_reading((VICTIM,), gpu=OTHER_GPU, at=STRUCK - 5), gpu_reading((), at=STRUCK + 1)), False),
    ],
    ids=["not read since", "not in the list", "not in the list, but in an older one"],
)
def test_ends_a_client_only_if_nvml_lists_it_since_the_fault(readings: tuple[Observation, ...], ends: bool) -> None:
    before, later = ([each for each in readings if (each.at > STRUCK) is is_later] for is_later in (False, True))
    post = WatchedDaemon(*alive(VICTIM), allow=KILL)
    post.observe(*before, *strikes(VICTIM), *confirms(VICTIM), *later)
    passes(post, 80)
    assert [named(action.steps) for action in post.actions] == (WHOLE[:1] if ends else [])


def test_never_ends_pid_1() -> None:
    post = faulted(1, allow=KILL)
    passes(post, 80)
    assert post.actions == []


def test_takes_only_the_steps_that_are_listed() -> None:
    post = faulted(VICTIM, allow=frozenset({AllowedAction.SHUT_DOWN_SERVER}))
    passes(post, 120)
    assert [named(action.steps) for action in post.actions] == WHOLE[1:3]


def test_waits_between_two_steps() -> None:
    post = faulted(VICTIM)
    passes(post, 105)
    times = [each.at - STRUCK for each in post.events if each.event is EventName.WATCHDOG_ACTS]
    assert times[0] == pytest.approx(60, abs=0.6)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps == pytest.approx([10.1] * 3, abs=1.0)


def test_waits_after_the_end_of_a_long_step() -> None:
    post = faulted(VICTIM)
    post.until(STRUCK + 61)
    post.finish_action(after=30)
    passes(post, 9)
    assert len(post.actions) == 1
    passes(post, 2)
    assert len(post.actions) == 2


def test_reports_the_clients_for_which_the_server_waits() -> None:
    post = faulted(VICTIM, OTHER, allow=NOTHING)
    post.until(STRUCK + 300)
    assert post.watch.reason == Reason(ReasonCode.FAULT_WAITS_FOR_CLIENTS, pids=(600, 601), server=SERVER)


def test_ends_no_client_that_has_disconnected() -> None:
    post = faulted(VICTIM, OTHER)
    post.until(STRUCK + 30)
    post.observe(exited(OTHER, at=STRUCK + 30))
    passes(post, 35)
    assert named(post.actions[0].steps) == ["evidence", "kill 600 60000"]


def test_does_nothing_after_the_recovery() -> None:
    post = faulted(VICTIM)
    passes(post, 65)
    post.observe(exited(VICTIM, at=post.at + 1), *server_log("Destroy server context on device 0", at=post.at + 1))
    passes(post, 120)
    assert len(post.actions) == 1


def test_does_not_end_another_process_with_the_pid_of_an_affected_client() -> None:
    post = faulted(VICTIM, allow=KILL)
    post.observe(process(VICTIM, at=STRUCK + 20, ticks=77))
    passes(post, 100)
    assert not [step for action in post.actions for step in action.steps if isinstance(step, EndProcess)]


def test_ends_no_client_without_a_known_identity() -> None:
    post = WatchedDaemon(*(each for each in alive(VICTIM) if each != process(VICTIM)), allow=KILL)
    post.observe(*strikes(VICTIM), *confirms(VICTIM))
    passes(post, 100)
    assert post.actions == []


def test_ends_the_affected_client_for_which_the_daemon_waits() -> None:
    """The daemon waits after an operator's `terminate_client` for an affected client (measured, R580)."""
    post = faulted(VICTIM)
    post.observe(*silences(STRUCK + 5))
    passes(post, 60)
    assert post.condition is Condition.UNRESPONSIVE
    assert [named(action.steps) for action in post.actions] == [["evidence", "kill 600 60000"]]


def test_does_not_shut_down_a_server_with_an_unaffected_client() -> None:
    post = faulted(VICTIM, served=(OTHER,))
    passes(post, 300)
    assert [action.kind.value for action in post.actions] == ["kill_clients"]
    waits = Reason(ReasonCode.CLIENTS_UNAFFECTED, pids=(601,), server=SERVER)
    assert (post.watch.reason, post.watch.last_action) == (waits, None)


def test_does_not_shut_down_a_server_whose_clients_neither_the_log_nor_a_reply_shows() -> None:
    for blocked_since in (None, STRUCK):
        post = faulted(VICTIM, allow=frozenset({AllowedAction.SHUT_DOWN_SERVER}))
        log = replace(post.daemon.log.own_commands, blocked_since=blocked_since)
        logged = {SERVER: replace(post.daemon.servers[SERVER], uid=0)}
        daemon = with_fields(post.daemon, servers=logged, commands__asked_at={}, log__own_commands=log)
        post.node = replace(post.node, daemons={daemon.name: daemon})
        passes(post, 62)
        assert bool(post.actions) is (blocked_since is None)


def test_does_not_shut_down_a_server_with_unknown_clients() -> None:
    post = faulted(VICTIM, allow=SHUT_DOWN)
    meets_again(post, *(each for each in alive() if "get_client_list" not in str(each)))
    passes(post, 200)
    assert not [action for action in post.actions if action.kind.value == "shut_down_server"]


def test_does_not_restart_a_daemon_while_another_server_has_clients() -> None:
    post = WatchedDaemon(*alive(VICTIM), allow=ALL_STEPS)
    post.observe(*control_log("Starting new server 514 for user 1002", at=STRUCK - 1))
    post.observe(*control_log("NEW SERVER 514: Ready", at=STRUCK - 1), *strikes(VICTIM), *confirms(VICTIM))
    post.observe(*server_log("Status of client {PID: 601, Context ID: 1} is ACTIVE", server=514, at=STRUCK + 1))
    passes(post, 300)
    assert [action.kind.value for action in post.actions][-1] == "shut_down_server"
    assert post.watch.reason == Reason(ReasonCode.CLIENTS_UNAFFECTED, pids=(601,))


def test_ends_a_server_in_fault_after_all_clients_disconnected() -> None:
    """Nothing gentler did (measured, R580)."""
    post = faulted(VICTIM, OTHER, allow=SHUT_DOWN)
    post.observe(exited(VICTIM, at=STRUCK + 2), exited(OTHER, at=STRUCK + 2), clients(at=STRUCK + 3))
    passes(post, 120)
    assert [named(action.steps) for action in post.actions] == [["evidence", "shutdown_server 513 -f"]]


def test_waits_for_a_server_that_may_recover() -> None:
    post = faulted(VICTIM)
    post.until(STRUCK + 59)
    post.observe(exited(VICTIM, at=STRUCK + 59))
    passes(post, 8)
    assert post.actions == []


def test_a_restart_against_a_fault_uses_the_budget() -> None:
    post = WatchedDaemon(*alive(VICTIM), allow=ALL_STEPS, restarts=0).observe(*strikes(VICTIM), *confirms(VICTIM))
    passes(post, 300)
    assert [action.kind.value for action in post.actions][-1] == "shut_down_server"
    assert post.watch.circuit_opened_at is not None


def test_the_last_step_outlives_the_exporter() -> None:
    post = faulted(VICTIM, allow=KILL)
    passes(post, 62)
    meets_again(post, *alive(VICTIM))
    passes(post, 60)
    assert [action.kind.value for action in post.actions] == ["kill_clients"]


def test_reports_only_the_first_step_in_observe_mode() -> None:
    post = faulted(VICTIM, mode=Mode.OBSERVE)
    post.until(STRUCK + 300)
    assert post.action_counts == {("kill_clients", "fault", "observed"): 1}
    assert (post.watch.escalation, post.actions) == (None, [])


def test_reports_no_hidden_pid() -> None:
    """A daemon in another PID namespace has clients with PIDs that are unknown here."""
    there = {SERVER: SERVER}

    def inside(*seen: Observation) -> Iterator[Observation]:
        return (replace(each, pids=there) if isinstance(each, LogLine | ControlReply) else each for each in seen)

    post = WatchedDaemon(*inside(*alive(VICTIM)), allow=KILL)
    post.observe(*inside(*strikes(VICTIM), status("FAULT", at=STRUCK + 1), clients(VICTIM, at=STRUCK + 1)))
    passes(post, 120)
    assert (post.diagnosis.indications[1], post.actions) == (
        Reason(ReasonCode.AFFECTED_CLIENTS_CONNECTED, pids=(-600,)),
        [],
    )


def test_takes_no_action_for_a_fault_that_only_the_log_reports() -> None:
    """Any user can write the log, and an open session prevents queries of the daemon (measured, R580)."""
    post = WatchedDaemon(*alive(VICTIM), allow=ALL_STEPS)
    post.observe(*claims(VICTIM), *(refusal(at=STRUCK + each) for each in (1, 4, 59, 90)))
    post.observe(servers(SERVER, at=STRUCK + 91))
    passes(post, 100)
    assert (post.condition, post.actions, post.node.incidents) == (Condition.WELL, [], {})


def test_ends_no_process_for_a_fault_without_a_reply() -> None:
    post = WatchedDaemon(*alive(VICTIM), allow=ALL_STEPS)
    post.observe(*strikes(VICTIM), *(refusal(at=STRUCK + each) for each in (1, 4, 59, 90)))
    post.observe(servers(SERVER, at=STRUCK + 91))
    passes(post, 100)
    assert (post.condition, post.actions) == (Condition.FAULT, [])


def test_a_reply_about_an_earlier_fault_confirms_no_later_one() -> None:
    post = faulted(VICTIM)
    post.observe(exited(VICTIM, at=post.at + 1), status("ACTIVE", at=post.at + 1.5), clients(at=post.at + 2))
    post.observe(process(OTHER, at=post.at), *server_log(active(OTHER), at=post.at), clients(OTHER, at=post.at + 1))
    at = post.at + 20
    post.observe(*strikes(OTHER, at=at), *(refusal(at=at + each) for each in (1, 4, 59, 90)))
    post.observe(servers(SERVER, at=at + 91))
    passes(post, 100)
    assert (post.condition, post.actions) == (Condition.FAULT, [])


def test_ends_no_client_that_only_the_log_names() -> None:
    post = faulted(VICTIM, allow=KILL)
    post.observe(*server_log(active(OTHER), at=STRUCK - 5), process(OTHER, at=STRUCK + 2), *strikes(VICTIM, OTHER))
    passes(post, 100)
    assert [named(action.steps) for action in post.actions] == [["evidence", "kill 600 60000"]]


OF_USER = "uid_1000"
KILLED, DELETED, FORCED = "kill 600 60000", f"server delete {OF_USER}", f"server delete {OF_USER} --force"


@pytest.mark.parametrize(
    ("name", "listed", "rungs"),
    [(OF_USER, True, [KILLED, DELETED, FORCED]), ("training", True, [KILLED]), (OF_USER, False, [KILLED])],
    ids=["server of a user", "named server", "unknown clients"],
)
def test_ends_a_server_of_protocol_3_only_if_the_daemon_creates_it_again(
    name: str, rungs: list[str], *, listed: bool
) -> None:
    post = faulted(VICTIM, allow=SHUT_DOWN)
    known = {SERVER: replace(post.daemon.servers[SERVER], name=name)}
    asked = {LIST_CLIENTS: STRUCK + 1} if listed else {}
    daemon = with_fields(post.daemon, servers=known, runtime__protocol=3, commands__asked_at=asked)
    post.node = replace(post.node, daemons={daemon.name: daemon})
    passes(post, 120)
    assert [named(action.steps)[1] for action in post.actions] == rungs
    waits = Reason(ReasonCode.CLIENTS_UNKNOWN, server=SERVER)
    assert (post.watch.reason == waits) is not listed


def test_says_what_a_step_against_a_fault_waits_for() -> None:
    post = faulted(VICTIM)
    passes(post, 62)
    assert post.watch.reason == Reason(ReasonCode.REMEDY_TAKES_EFFECT, action="kill_clients")
    waits = [each for each in post.events if each.event is EventName.WATCHDOG_WAITS]
    assert {(each.server, each.state) for each in waits} == {(SERVER, Condition.FAULT)}
    assert [each.server for each in post.events if each.event is EventName.WATCHDOG_ACTS] == [SERVER]


def test_the_remedies_of_an_earlier_fault_do_not_shorten_those_of_the_next_one() -> None:
    post = faulted(VICTIM, allow=SHUT_DOWN)
    passes(post, 75)
    assert [action.kind.value for action in post.actions] == ["kill_clients", "shut_down_server"]
    post.observe(exited(VICTIM, at=post.at + 1), status("ACTIVE", at=post.at + 1.5), clients(at=post.at + 2))
    post.observe(process(OTHER, at=post.at), *server_log(active(OTHER), at=post.at), clients(OTHER, at=post.at + 1))
    at = post.at + 5
    post.observe(*strikes(OTHER, at=at), *confirms(OTHER, at=at + 0.5))
    passes(post, 50)
    assert len(post.actions) == 2
    passes(post, 12)
    assert named(post.actions[2].steps) == ["evidence", "kill 601 60100"]
