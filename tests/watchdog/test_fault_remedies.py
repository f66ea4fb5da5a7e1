"""A fault that does not end: one rung at a time, as far up as is configured, and nobody who is well is harmed."""

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
from tests.builders import (
    FAULT_BLOCK,
    GPU,
    SERVER,
    active,
    clients,
    control_log,
    exited,
    process,
    refusal,
    reply,
    server_log,
    servers,
    status,
)
from tests.watchdog.watched_daemon import DEATH, KILL, LADDER, NOTHING, SHUT_DOWN, Post, alive, silences

VICTIM, OTHER = 600, 601
STRUCK = DEATH


def strikes(*victims: int, at: float = STRUCK) -> tuple[Observation, ...]:
    """A fault that hits these, and no others. An Xid confirms it."""
    return (GpuEvent(at=at, type=8, xid=31, gpu=GPU), *claims(*victims, at=at))


def claims(*victims: int, at: float = STRUCK) -> tuple[LogLine, ...]:
    """The log tells of such a fault."""
    torn = (f"All clients belonging to error trigging process {pid} will be torn down" for pid in victims)
    return server_log(FAULT_BLOCK[0], *torn, *FAULT_BLOCK[1:4], *map(str, victims), at=at)


def confirms(*served: int, at: float = STRUCK + 0.5) -> tuple[Observation, ...]:
    """The daemon, asked, says so too, and whom its server serves."""
    return status("FAULT", at=at), clients(*served, at=at)


def faulted(
    *victims: int, served: Iterable[int] = (), allow: frozenset[AllowedAction] = LADDER, mode: Mode = Mode.ACT
) -> Post:
    """A server with these victims, who linger, and those whom it serves besides."""
    post = Post(*alive(*victims, *served), mode=mode, allow=allow)
    post.see(*strikes(*victims), *confirms(*victims, *served))
    return post


def passes(post: Post, seconds: float) -> None:
    """Time passes; whatever is to be done is done, and does not help."""
    until = post.at + seconds
    while post.at < until:
        post.until(post.at + 0.5)
        if post.watch.acting is not None and post.watch.acting.done_at is None:
            post.did()


def meets_again(post: Post, *seen: Observation) -> None:
    """The exporter begins anew, with the incidents that it has kept, and sees these; the server is still in FAULT."""
    incidents, at = post.node.incidents, post.at + 1
    post.restarted()
    post.node = replace(post.node, incidents=incidents)
    status = f"get_server_status {SERVER}"
    post.see(*(replace(each, at=at) for each in seen if getattr(each, "command", None) != status))
    post.see(reply(status, "FAULT\n", at=at), reply(status, "FAULT\n", at=at + 5))


def named(steps: Iterable[ActionStep]) -> list[str]:
    """The steps, in words."""
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
        (LADDER, 4),
    ],
    ids=["nothing", "kill_clients", "and shut_down_server", "and restart_daemon"],
)
def test_it_is_climbed_as_far_as_is_configured_and_no_further(allow: frozenset[AllowedAction], rungs: int) -> None:
    post = faulted(VICTIM, allow=allow)
    passes(post, 59)
    assert post.actions == []
    passes(post, 45)
    assert [named(action.steps) for action in post.actions] == WHOLE[:rungs]


def test_takes_only_the_steps_that_are_listed() -> None:
    post = faulted(VICTIM, allow=frozenset({AllowedAction.SHUT_DOWN_SERVER}))
    passes(post, 120)
    assert [named(action.steps) for action in post.actions] == WHOLE[1:3]


def test_each_has_its_time_to_help() -> None:
    post = faulted(VICTIM)
    passes(post, 105)
    times = [each.at - STRUCK for each in post.events if each.event is EventName.WATCHDOG_ACTS]
    assert times[0] == pytest.approx(60, abs=0.6)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps == pytest.approx([10.1] * 3, abs=1.0)


def test_while_it_is_waited_for_somebody_it_is_said_for_whom() -> None:
    post = faulted(VICTIM, OTHER, allow=NOTHING)
    post.until(STRUCK + 300)
    assert post.watch.reason == Reason(ReasonCode.FAULT_WAITS_FOR_CLIENTS, pids=(600, 601), server=SERVER)


def test_whoever_has_left_meanwhile_is_left_alone() -> None:
    post = faulted(VICTIM, OTHER)
    post.until(STRUCK + 30)
    post.see(exited(OTHER, at=STRUCK + 30))
    passes(post, 35)
    assert named(post.actions[0].steps) == ["evidence", "kill 600 60000"]


def test_nothing_is_done_once_it_has_recovered() -> None:
    post = faulted(VICTIM)
    passes(post, 65)
    post.see(exited(VICTIM, at=post.at + 1), *server_log("Destroy server context on device 0", at=post.at + 1))
    passes(post, 120)
    assert len(post.actions) == 1


def test_who_has_a_victims_pid_by_now_is_not_the_victim() -> None:
    post = faulted(VICTIM, allow=KILL)
    post.see(process(VICTIM, at=STRUCK + 20, ticks=77))
    passes(post, 100)
    assert not [step for action in post.actions for step in action.steps if isinstance(step, EndProcess)]


def test_of_whom_it_is_not_known_who_that_is_nobody_is_killed() -> None:
    post = Post(*(each for each in alive(VICTIM) if each != process(VICTIM)), allow=KILL)
    post.see(*strikes(VICTIM), *confirms(VICTIM))
    passes(post, 100)
    assert post.actions == []


def test_a_daemon_that_waits_for_a_victim_is_helped_by_its_end_and_not_by_its_own() -> None:
    """So it is after an operator's `terminate_client` for one whom a fault has hit (measured, R580)."""
    post = faulted(VICTIM)
    post.see(*silences(STRUCK + 5))
    passes(post, 60)
    assert post.condition is Condition.UNRESPONSIVE
    assert [named(action.steps) for action in post.actions] == [["evidence", "kill 600 60000"]]


def test_a_server_with_somebody_who_is_well_is_not_shut_down() -> None:
    post = faulted(VICTIM, served=(OTHER,))
    passes(post, 300)
    assert [action.kind.value for action in post.actions] == ["kill_clients"]
    assert post.watch.reason == Reason(ReasonCode.CLIENTS_UNAFFECTED, pids=(601,), server=SERVER)


def test_nor_one_of_which_it_is_not_known_whom_it_serves() -> None:
    post = faulted(VICTIM, allow=SHUT_DOWN)
    meets_again(post, *(each for each in alive() if "get_client_list" not in str(each)))
    passes(post, 200)
    assert not [action for action in post.actions if action.kind.value == "shut_down_server"]


def test_the_daemon_is_not_restarted_while_another_server_serves() -> None:
    post = Post(*alive(VICTIM), allow=LADDER)
    post.see(*control_log("Starting new server 514 for user 1002", at=STRUCK - 1))
    post.see(*control_log("NEW SERVER 514: Ready", at=STRUCK - 1), *strikes(VICTIM), *confirms(VICTIM))
    post.see(*server_log("Status of client {PID: 601, Context ID: 1} is ACTIVE", server=514, at=STRUCK + 1))
    passes(post, 300)
    assert [action.kind.value for action in post.actions][-1] == "shut_down_server"
    assert post.watch.reason == Reason(ReasonCode.CLIENTS_UNAFFECTED, pids=(601,))


def test_a_server_that_does_not_recover_though_all_have_gone_is_ended_at_once() -> None:
    """Nothing gentler did (measured, R580)."""
    post = faulted(VICTIM, OTHER, allow=SHUT_DOWN)
    post.see(exited(VICTIM, at=STRUCK + 2), exited(OTHER, at=STRUCK + 2), clients(at=STRUCK + 3))
    passes(post, 120)
    assert [named(action.steps) for action in post.actions] == [["evidence", "shutdown_server 513 -f"]]


def test_one_that_is_about_to_recover_is_left_to_do_so() -> None:
    post = faulted(VICTIM)
    post.until(STRUCK + 59)
    post.see(exited(VICTIM, at=STRUCK + 59))
    passes(post, 8)
    assert post.actions == []


def test_the_restart_of_the_daemon_has_its_budget_too() -> None:
    post = Post(*alive(VICTIM), allow=LADDER, restarts=0)
    post.see(*strikes(VICTIM), *confirms(VICTIM))
    passes(post, 300)
    assert [action.kind.value for action in post.actions][-1] == "shut_down_server"
    assert post.watch.circuit_opened_at is not None


def test_how_far_it_was_climbed_outlives_the_exporter() -> None:
    post = faulted(VICTIM, allow=KILL)
    passes(post, 62)
    meets_again(post, *alive(VICTIM))
    passes(post, 60)
    assert [action.kind.value for action in post.actions] == ["kill_clients"]


def test_who_only_observes_says_what_would_be_done_first_and_invents_nothing() -> None:
    post = faulted(VICTIM, mode=Mode.OBSERVE)
    post.until(STRUCK + 300)
    assert post.action_counts == {("kill_clients", "fault", "observed"): 1}
    assert (post.watch.escalation, post.actions) == (None, [])


def test_nobody_without_a_pid_here_is_named_to_anybody() -> None:
    """A daemon in another PID namespace has clients whose PIDs are not known here."""
    there = {SERVER: SERVER}

    def inside(*seen: Observation) -> Iterator[Observation]:
        return (replace(each, pids=there) if isinstance(each, LogLine | ControlReply) else each for each in seen)

    post = Post(*inside(*alive(VICTIM)), allow=KILL)
    post.see(*inside(*strikes(VICTIM), status("FAULT", at=STRUCK + 1), clients(VICTIM, at=STRUCK + 1)))
    passes(post, 120)
    assert (post.diagnosis.indications[1], post.actions) == (
        Reason(ReasonCode.AFFECTED_CLIENTS_CONNECTED, pids=(-600,)),
        [],
    )


def test_a_fault_of_which_the_log_alone_tells_costs_nobody_anything() -> None:
    """Everybody may write into it, and by an open session keep us from asking the daemon (measured, R580)."""
    post = Post(*alive(VICTIM), allow=LADDER)
    post.see(*claims(VICTIM), *(refusal(at=STRUCK + each) for each in (1, 4, 59, 90)))
    post.see(servers(SERVER, at=STRUCK + 91))
    passes(post, 100)
    assert (post.condition, post.actions, post.node.incidents) == (Condition.WELL, [], {})


def test_a_fault_that_the_daemon_did_not_confirm_itself_costs_no_process() -> None:
    post = Post(*alive(VICTIM), allow=LADDER)
    post.see(*strikes(VICTIM), *(refusal(at=STRUCK + each) for each in (1, 4, 59, 90)))
    post.see(servers(SERVER, at=STRUCK + 91))
    passes(post, 100)
    assert (post.condition, post.actions) == (Condition.FAULT, [])


def test_nor_does_a_true_one_cost_those_whom_the_log_alone_names() -> None:
    post = faulted(VICTIM, allow=KILL)
    post.see(*server_log(active(OTHER), at=STRUCK - 5), process(OTHER, at=STRUCK + 2), *strikes(VICTIM, OTHER))
    passes(post, 100)
    assert [named(action.steps) for action in post.actions] == [["evidence", "kill 600 60000"]]
