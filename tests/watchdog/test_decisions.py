"""What each diagnosis calls for, in each mode, and when: one row each."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from exporter.model.action import (
    ActionKind,
    ActionReason,
    EndProcess,
    GiveCommand,
    RestartUnit,
    Role,
    RunCommand,
    SaveEvidence,
)
from exporter.model.daemon import DaemonState
from exporter.model.event import EventName
from exporter.model.identity import ProcessIdentity, identity_of
from exporter.model.observation import Observation
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Limits, Mode
from exporter.model.watchdog import Condition, LastAction, WatchdogPhase
from exporter.watchdog.context import DaemonPolicy
from tests.builders import (
    AT,
    CONTROL,
    SERVER,
    control_log,
    daemon_process,
    gpu_reading,
    look,
    no_daemon,
    probe,
    refusal,
    silence,
)
from tests.state.test_daemon_ends import failures
from tests.watchdog.watched_daemon import (
    BY_UNIT,
    COMMAND,
    DEATH,
    HUNG,
    UNIT,
    WatchedDaemon,
    alive,
    asks_a_server,
    deaf,
    dies,
    hangs,
    holder,
    left,
    quits,
    silences,
    suspended,
    unit,
)

NEVER = 10_000.0
"""Later than anything here."""


class Row(NamedTuple):
    """What is seen, after how many seconds what is done, if anything, and why it is not done before, or ever."""

    seen: tuple[Observation, ...]
    after: float = NEVER
    action: str | None = None
    why: Reason | None = None
    rules: Mapping[str, Any] | None = None


HANGS = Reason(ReasonCode.HANG_TOO_RECENT, seconds=90.0)
ENDS = {"allow": HUNG}
ROWS = {
    "well": Row((look("log", at=DEATH),)),
    "one command without an answer": Row((silence(at=DEATH),)),
    "down": Row(dies(), 0.5, "restart"),
    "stopped": Row(quits(), why=Reason(ReasonCode.STOPPED_BY_OPERATOR)),
    "suspended": Row(hangs(), 90, "restart", HANGS),
    "suspended, with more patience": Row(
        hangs(), 300, "restart", Reason(ReasonCode.HANG_TOO_RECENT, seconds=300.0), rules={"hung_after": 300.0}
    ),
    "unresponsive": Row(silences(), 90, "restart", HANGS),
    "in the driver": Row(
        (suspended(state="D"), *silences()),
        why=Reason(ReasonCode.STUCK_IN_KERNEL, pid=CONTROL),
    ),
    "its server in the driver": Row(
        (suspended(SERVER, state="D"), *silences()),
        why=Reason(ReasonCode.STUCK_IN_KERNEL, pid=SERVER),
        rules=ENDS,
    ),
    "server suspended": Row((suspended(SERVER),), why=Reason(ReasonCode.SERVER_MUST_CONTINUE, server=SERVER)),
    "server suspended, which hangs the daemon": Row(
        (suspended(SERVER), *silences()), why=Reason(ReasonCode.SERVER_MUST_CONTINUE, server=SERVER)
    ),
    "server suspended, and it may be ended": Row(
        (suspended(SERVER),),
        90,
        "end_server",
        Reason(ReasonCode.HANG_TOO_RECENT, server=SERVER, seconds=90.0),
        rules=ENDS,
    ),
    "server unresponsive": Row(
        (*asks_a_server(), *silences()),
        why=Reason(ReasonCode.SERVER_MUST_END, server=SERVER),
    ),
    "server unresponsive, and it may be ended": Row(
        (*asks_a_server(), *silences()),
        90,
        "end_server",
        Reason(ReasonCode.HANG_TOO_RECENT, server=SERVER, seconds=90.0),
        rules=ENDS,
    ),
    "held": Row(
        (refusal(at=DEATH), holder(DEATH + 1), refusal(at=DEATH + 3)),
        why=Reason(ReasonCode.SESSION_HELD, pid=700),
    ),
    "held by an unknown process": Row(
        (refusal(at=DEATH), refusal(at=DEATH + 3)),
        why=Reason(ReasonCode.SESSION_HELD),
    ),
    "servers that cannot start": Row(failures(3, at=DEATH), why=Reason(ReasonCode.SERVERS_CANNOT_START)),
    "its server has gone": Row(control_log("Server 513 exited with status 0", at=DEATH)),
}


def waits(post: WatchedDaemon) -> list[str | None]:
    return [each.reason for each in post.events if each.event is EventName.WATCHDOG_WAITS]


def test_takes_the_expected_action_at_the_expected_time(subtests: pytest.Subtests) -> None:
    for row in ROWS.values():
        with subtests.test(row=row):
            post = WatchedDaemon(**(row.rules or {})).observe(*row.seen)
            post.until(DEATH + min(row.after, 1000.0) - 0.5, every=5.0)
            before = [] if row.after > 1 else post.kinds
            assert post.kinds == before
            assert waits(post) == ([] if row.why is None else [row.why])
            post.until(DEATH + min(row.after, 1000.0) + 12)
            assert [kind for kind, _ in post.kinds] == ([] if row.action is None else [row.action])


def test_reports_each_planned_action_once_in_observe_mode(subtests: pytest.Subtests) -> None:
    for row in ROWS.values():
        with subtests.test(row=row):
            post = WatchedDaemon(mode=Mode.OBSERVE, **(row.rules or {})).observe(*row.seen)
            post.until(DEATH + 1000, every=5.0)
            would = [each.action for each in post.events if each.event is EventName.WATCHDOG_WOULD_ACT]
            assert would == ([] if row.action is None else [row.action])
            assert sum(post.action_counts.values()) == len(would)
            assert {result for _, _, result in post.action_counts} <= {"observed"}
            assert (post.actions, post.watch.restarts, post.watch.acting) == ([], (), None)
            why = row.why
            if why is not None and why.code is ReasonCode.HANG_TOO_RECENT:
                # Nothing is done later either.
                why = Reason(ReasonCode.HANG_OBSERVED, server=why.parameters.get("server"))
            assert waits(post) == ([] if why is None else [why])


def test_does_not_start_a_daemon_that_never_ran() -> None:
    post = WatchedDaemon(no_daemon(), no_daemon(at=AT + 20))
    post.until(AT + 1000)
    assert (post.actions, waits(post)) == ([], [Reason(ReasonCode.NEVER_SEEN)])


def test_does_not_restart_a_daemon_that_recovers_in_time() -> None:
    post = WatchedDaemon().observe(*hangs())
    post.until(DEATH + 89)
    post.observe(suspended(at=DEATH + 89, state="S"), *alive(at=DEATH + 89.5))
    post.until(DEATH + 300)
    assert post.actions == []


def test_measures_each_hang_from_its_own_start() -> None:
    post = WatchedDaemon().observe(*silences(), *alive(at=DEATH + 80), *silences(at=DEATH + 85))
    post.until(DEATH + 170)
    assert post.actions == []
    post.until(DEATH + 180)
    assert post.kinds == [("restart", "hung")]


def test_a_quit_in_the_log_of_a_hung_daemon_does_not_prevent_its_restart() -> None:
    """Every user can write that line."""
    post = WatchedDaemon().observe(*control_log("NEW UI", "Cmd:quit", at=DEATH), *hangs())
    post.until(DEATH + 100)
    assert post.kinds == [("restart", "hung")]


@pytest.mark.parametrize(("mode", "waits"), [("default", False), ("exclusive_process", True), (None, True)])
def test_saves_evidence_then_ends_the_processes_then_starts(mode: str | None, waits: bool) -> None:
    """Where only one process may have a context, the next server starts after the old contexts have ended."""
    post = WatchedDaemon().observe(gpu_reading(compute_mode=mode), *hangs())
    post.until(DEATH + 90)
    (action,) = post.actions
    assert (action.reason, action.uid) == ("hung", 0)
    evidence, daemon, server, start = action.steps
    assert evidence == SaveEvidence()
    assert daemon == EndProcess(identity=ProcessIdentity(pid=CONTROL, start_ticks=44100), role=Role.DAEMON)
    assert server == EndProcess(
        identity=ProcessIdentity(pid=SERVER, start_ticks=51300), role=Role.SERVER, contexts=waits
    )
    assert isinstance(start, RunCommand)


def test_leaves_the_end_of_a_hung_daemon_to_its_unit() -> None:
    """Killed first, it would be started twice: by systemd and by the restart."""
    post = WatchedDaemon(daemon_policy=BY_UNIT).observe(unit("active", at=AT), *hangs())
    post.until(DEATH + 90)
    (action,) = post.actions
    assert action.steps == (SaveEvidence(), RestartUnit(unit=UNIT))


def test_ends_a_server_that_may_have_outlived_its_daemon_first() -> None:
    """Whether it has, is looked at when it is its turn: who has gone is no problem."""
    post = WatchedDaemon().observe(*dies())
    (action,) = post.actions
    ends = [step.identity.pid for step in action.steps if isinstance(step, EndProcess)]
    assert ends == [SERVER]


def test_does_not_end_a_server_that_has_exited() -> None:
    post = WatchedDaemon()
    *_, last_look = dies()
    post.observe(dies()[0], *(each for each in dies(pid=SERVER) if each != last_look), last_look)
    (action,) = post.actions
    assert [step for step in action.steps if isinstance(step, EndProcess)] == []


def test_log_lines_do_not_delay_the_restart_of_a_hung_daemon() -> None:
    """Every user can write them, with the daemon's PID."""
    post = WatchedDaemon().observe(*silences())
    for second in range(12, 90):
        post.observe(*control_log("NEW UI", f"Cmd:get_server_status {SERVER}", at=DEATH + second))
    post.until(DEATH + 95)
    assert post.kinds == [("restart", "hung")]
    assert post.condition is Condition.UNRESPONSIVE


def test_a_command_in_the_log_ends_no_healthy_server() -> None:
    post = WatchedDaemon(allow=HUNG)
    post.observe(*silences(), *control_log("NEW UI", f"Cmd:get_server_status {SERVER}", at=DEATH + 12))
    post.until(DEATH + 200)
    assert post.kinds == [("restart", "hung")]


def test_a_control_program_that_hangs_is_no_reason_to_restart_the_daemon() -> None:
    post = WatchedDaemon()
    post.observe(
        *(
            seen
            for round_ in range(30)
            for seen in (silence(at=DEATH + 5 + 10 * round_), probe(True, at=DEATH + 5.1 + 10 * round_))
        )
    )
    post.until(DEATH + 400)
    assert (post.actions, post.daemon.state) == ([], DaemonState.UP)
    assert waits(post) == [Reason(ReasonCode.PROGRAM_AT_FAULT)]


def test_a_daemon_that_answers_connections_again_is_not_restarted() -> None:
    post = WatchedDaemon().observe(*silences())
    assert post.condition is Condition.UNRESPONSIVE
    post.observe(silence(at=DEATH + 60), probe(True, at=DEATH + 60.1))
    post.until(DEATH + 400)
    assert (post.condition, post.daemon.state) == (Condition.PROGRAM_UNRESPONSIVE, DaemonState.UP)
    assert post.actions == []


def test_two_unanswered_commands_alone_do_not_suffice_for_a_restart() -> None:
    """As a recording has them that looked at nothing else: the daemon does not answer, and may yet be well."""
    post = WatchedDaemon().observe(silence(at=DEATH + 5), silence(at=DEATH + 11))
    post.until(DEATH + 400)
    assert (post.condition, post.actions) == (Condition.UNRESPONSIVE, [])
    assert waits(post)[-1] == Reason(ReasonCode.HANG_UNCONFIRMED)


def test_unanswered_commands_do_not_suffice_if_no_connection_is_possible() -> None:
    """The exporter may lack file descriptors, or another user's idle connection may hold the daemon."""
    post = WatchedDaemon()
    post.observe(
        *(
            seen
            for round_ in range(12)
            for seen in (silence(at=DEATH + 5 + 10 * round_), probe(None, at=DEATH + 5.1 + 10 * round_))
        )
    )
    assert post.kinds == []
    assert post.daemon.state is DaemonState.UNRESPONSIVE
    assert post.watch.reason == Reason(ReasonCode.HANG_UNCONFIRMED)


@pytest.mark.parametrize("others", [True, None])
def test_does_not_restart_a_daemon_that_may_wait_for_another_process(others: bool | None) -> None:
    """Any user can connect to a daemon and send nothing. Then it answers neither commands nor connections."""
    post = WatchedDaemon()
    for round_ in range(100):
        at = DEATH + 5 + 10 * round_
        post.observe(silence(at=at), replace(probe(False, at=at + 0.1), others=others), holder(at=at + 0.2))
    assert post.kinds == []
    assert post.daemon.state is (DaemonState.HELD if others else DaemonState.UNRESPONSIVE)
    if others:
        assert post.watch.diagnosis is not None
        assert post.watch.diagnosis.process == identity_of(holder(AT))


def test_restarts_a_daemon_that_hangs_after_another_process_left() -> None:
    post = WatchedDaemon().observe(silence(at=DEATH + 5), replace(probe(False, at=DEATH + 5.1), others=True))
    for round_ in range(1, 20):
        at = DEATH + 5 + 10 * round_
        post.observe(silence(at=at), probe(False, at=at + 0.1), holder(at + 0.2, None))
    assert post.kinds[:1] == [("restart", "hung")]


def test_restarts_a_suspended_daemon_although_another_process_is_connected() -> None:
    """Only its own user and root can suspend it."""
    post = WatchedDaemon().observe(suspended(at=DEATH))
    for round_ in range(20):
        at = DEATH + 5 + 10 * round_
        post.observe(silence(at=at), replace(probe(False, at=at + 0.1), others=True), holder(at=at + 0.2))
    assert post.kinds[:1] == [("restart", "hung")]


def test_starts_a_daemon_with_its_earlier_environment() -> None:
    daemon_policy = DaemonPolicy(
        command=COMMAND,
        limits=Limits(active_thread_percentage=40.0, pinned_memory={0: 1 << 31}),
    )
    seen = replace(daemon_process(), uid=1001, environment={"CUDA_VISIBLE_DEVICES": "0"})
    post = WatchedDaemon(seen, *alive()[1:], daemon_policy=daemon_policy).observe(*dies())
    (action,) = post.actions
    evidence, start, *limits = action.steps
    assert isinstance(evidence, SaveEvidence)
    assert isinstance(start, RunCommand)
    assert limits == [
        GiveCommand(command="set_default_device_pinned_mem_limit 0 2G", vital=False),
        GiveCommand(command="set_default_active_thread_percentage 40", vital=False),
        GiveCommand(command="get_default_device_pinned_mem_limit 0", vital=False),
        GiveCommand(command="get_default_active_thread_percentage", vital=False),
    ]
    assert (start.arguments, start.uid, action.uid) == (COMMAND, 1001, 1001)
    assert start.environment == {
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
        "CUDA_MPS_LOG_DIRECTORY": "/tmp/nvidia-mps/log",
        "CUDA_VISIBLE_DEVICES": "0",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40",
    }


def test_remembers_the_visible_devices_after_an_exporter_restart() -> None:
    post = WatchedDaemon(replace(daemon_process(), environment={"CUDA_VISIBLE_DEVICES": "0"}), *alive()[1:])
    post.restarted()
    post.observe(no_daemon(at=DEATH), left(DEATH), deaf(DEATH))
    start = post.actions[0].steps[-1]
    assert isinstance(start, RunCommand)
    assert start.environment["CUDA_VISIBLE_DEVICES"] == "0"


def test_sets_no_defaults_for_a_daemon_of_protocol_3_after_an_exporter_restart() -> None:
    """It has none. The new exporter knows the protocol only from the last process."""
    daemon_policy = DaemonPolicy(command=COMMAND, limits=Limits(active_thread_percentage=40.0))
    post = WatchedDaemon(replace(daemon_process(), protocol=3), *alive()[1:], daemon_policy=daemon_policy)
    post.restarted()
    post.observe(no_daemon(at=DEATH), left(DEATH), deaf(DEATH))
    start = post.actions[0].steps[-1]
    assert isinstance(start, RunCommand)
    assert start.environment["CUDA_MPS_PROTOCOL_VERSION"] == "3"


@pytest.mark.parametrize("seen", [dies(), hangs()], ids=["down", "hung"])
def test_waits_without_a_restart_method(seen: tuple[Observation, ...]) -> None:
    post = WatchedDaemon(daemon_policy=DaemonPolicy()).observe(*seen)
    post.until(DEATH + 200)
    assert post.actions == []
    assert Reason(ReasonCode.NO_RESTART_METHOD) in waits(post)
    assert post.action_counts == {}


def test_does_not_start_the_daemon_of_a_container_outside() -> None:
    post = WatchedDaemon()
    daemon = replace(post.daemon, runtime=replace(post.daemon.runtime, in_foreign_namespace=True))
    post.node = replace(post.node, daemons={daemon.name: daemon})
    post.observe(*dies())
    assert (post.actions, waits(post)) == ([], [Reason(ReasonCode.DAEMON_IN_CONTAINER)])


def test_ends_no_daemon_that_cannot_be_started_again() -> None:
    post = WatchedDaemon(daemon_policy=BY_UNIT).observe(*hangs())
    post.until(DEATH + 200)
    assert waits(post)[-1] == Reason(ReasonCode.UNIT_STATE_UNKNOWN, unit=UNIT)
    post.observe(unit("inactive", at=DEATH + 200, load="not-found"))
    post.until(DEATH + 300)
    assert post.actions == []
    assert waits(post)[-1] == Reason(ReasonCode.UNIT_NOT_LOADED, unit=UNIT, state="not-found")
    post.observe(unit("active", at=DEATH + 300))
    assert post.kinds == [("restart", "hung")]


def test_ends_a_hung_server_once() -> None:
    post = WatchedDaemon(allow=HUNG).observe(suspended(SERVER))
    post.until(DEATH + 100)
    post.finish_action()
    post.until(DEATH + 400)
    assert (post.kinds, post.watch.phase) == ([("end_server", "hung")], WatchdogPhase.IDLE)
    assert post.action_counts == {("end_server", "hung", "succeeded"): 1}


def test_reports_an_action_before_it_starts() -> None:
    post = WatchedDaemon().observe(*dies())
    (acts,) = (each for each in post.events if each.event is EventName.WATCHDOG_ACTS)
    assert (acts.action, acts.reason, acts.indications) == (
        "restart",
        "down",
        (Reason(ReasonCode.PROCESS_GONE, pid=CONTROL), Reason(ReasonCode.LOG_ENDS_WITHOUT_QUIT)),
    )
    assert (post.watch.phase, post.watch.reason) == (WatchdogPhase.ACTING, None)
    assert post.watch.last_action == LastAction(kind=ActionKind.RESTART, reason=ActionReason.DOWN, begun=True)


def test_an_evaluation_without_changes_returns_the_same_node() -> None:
    post = WatchedDaemon()
    post.evaluate(AT + 1)
    before = post.node
    post.evaluate(AT + 2)
    assert post.node is before
