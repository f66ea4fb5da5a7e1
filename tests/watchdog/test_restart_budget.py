"""How often, how soon again, and when no more."""

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest

from exporter import policy as dry_run_module
from exporter.cli import main
from exporter.model.action import Action, ActionKind, ActionReason, RunCommand
from exporter.model.event import Event, EventName
from exporter.model.node import Node
from exporter.model.observation import ActionDone, GpuEvent, KernelRecord, Observation
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Mode, Thresholds
from exporter.model.watchdog import Condition, WatchdogPhase, WatchdogState
from exporter.policy import ACTION_SECONDS, START, dry_run, policy_for
from exporter.recording import Header, RecordedDaemon
from exporter.reducer import reduce
from exporter.state.xids import unresolved
from exporter.watchdog import restart as restart_budget
from exporter.watchdog.context import DaemonPolicy, Policy
from exporter.watchdog.evaluation import Evaluation
from tests.builders import (
    AT,
    DAEMON,
    GPU,
    OTHER_GPU,
    Recorded,
    daemon_process,
    gpu_reading,
    look,
    no_daemon,
    node,
    refusal,
    reply,
    scenario,
    servers,
)
from tests.watchdog.watched_daemon import (
    DEATH,
    NEXT,
    WatchedDaemon,
    alive,
    dies,
    hangs,
    left,
    returns,
    silences,
    suspended,
)

FAILED = Reason(ReasonCode.PROGRAM_FAILED, command="start", exit_code=1)
BREAKER = (EventName.CIRCUIT_OPENED, EventName.CIRCUIT_CLOSED)


def crash(post: WatchedDaemon, times: int, *, every: float = 20.0, lasts: float = 1.0) -> list[float]:
    """It dies so many times, and is brought back each time where the watchdog does so; how long that took it."""
    took = []
    for _ in range(times):
        process = post.daemon.runtime.process
        assert process is not None
        assert process.pid is not None
        died, done = post.at + lasts, len(post.actions)
        post.observe(*dies(died, process.pid))
        while len(post.actions) == done and post.at < died + every:
            post.evaluate(post.at + 0.25)
        if len(post.actions) == done:
            break
        took.append(post.at - died)
        post.finish_action()
        post.observe(*returns(post.at + 0.1, process.pid + 1000))
        post.until(died + every)
    return took


def test_the_backoff_doubles_after_the_first_restart(subtests: pytest.Subtests) -> None:
    for times, seconds in [(0, 0), (1, 2), (2, 4), (3, 8), (4, 16), (8, 256), (9, 300), (5000, 300)]:
        with subtests.test(times=times, seconds=seconds):
            rules = Thresholds()
            assert restart_budget.backoff(times, rules, 0.0) == seconds
            assert restart_budget.backoff(times, rules, 1.0) == seconds * 1.25


def test_computes_the_remaining_restarts(subtests: pytest.Subtests) -> None:
    for restarts, at, remaining in [
        ((), 0, 5),
        ((0.0,), 1, 4),
        ((0.0,), 900, 5),
        ((0.0, 100.0), 950, 4),
        ((1.0,) * 7, 2, 0),
    ]:
        with subtests.test(restarts=restarts, at=at, remaining=remaining):
            assert restart_budget.restarts_left(WatchdogState(restarts=restarts), Thresholds(), at) == remaining
            assert (
                restart_budget.restarts_left(WatchdogState(restarts=restarts, circuit_opened_at=0.0), Thresholds(), at)
                == 0
            )


def test_opens_the_circuit_after_the_last_restart_of_the_budget() -> None:
    post = WatchedDaemon()
    took = crash(post, 8)
    assert took == pytest.approx([0.5, 2.5, 4.5, 8.5, 16.5], abs=0.5)
    assert post.reported(EventName.WATCHDOG_WAITS)[0] == (
        "watchdog_waits",
        Reason(ReasonCode.BACKOFF, seconds=900.0, count=1),
    )
    assert post.reported(*BREAKER) == [
        ("circuit_opened", Reason(ReasonCode.RESTARTS_DID_NOT_HELP, seconds=900.0, count=5))
    ]
    assert (post.watch.phase, len(post.watch.restarts)) == (WatchdogPhase.CIRCUIT_OPEN, 5)
    assert post.action_counts == {("restart", "down", "succeeded"): 5}


def test_the_circuit_stays_open_after_the_window_and_an_exporter_restart() -> None:
    post = WatchedDaemon()
    crash(post, 6)
    circuit_opened_at = post.watch.circuit_opened_at
    assert circuit_opened_at is not None
    post.restarted()
    post.observe(no_daemon(at=post.at + 1), left(post.at + 1))
    post.until(circuit_opened_at + 5000, every=60.0)
    assert (len(post.actions), post.watch.circuit_opened_at) == (5, circuit_opened_at)
    assert post.watch.reason == Reason(ReasonCode.CIRCUIT_OPEN)


def test_resume_closes_the_circuit_and_resets_the_budget() -> None:
    post = WatchedDaemon()
    crash(post, 6)
    post.resume()
    assert post.reported(*BREAKER)[-1] == ("circuit_closed", Reason(ReasonCode.OPERATOR_RESUMED))
    assert len(post.actions) == 6
    assert restart_budget.restarts_left(post.watch, Thresholds(), post.at) == 4


def test_failures_do_not_count_after_a_window() -> None:
    post = WatchedDaemon()
    assert crash(post, 3, every=1000.0, lasts=1.0) == pytest.approx([0.5] * 3, abs=0.3)
    assert post.reported(*BREAKER) == []


def restarts_fail(post: WatchedDaemon, times: int) -> None:
    for _ in range(times):
        post.until(post.at + 20)
        post.finish_action(problem=FAILED)


def test_three_failed_restarts_open_the_circuit() -> None:
    post = WatchedDaemon(restarts=50).observe(*dies())
    restarts_fail(post, 3)
    post.until(post.at + 600)
    assert len(post.actions) == 3
    assert post.reported(*BREAKER) == [("circuit_opened", Reason(ReasonCode.RESTARTS_FAILED, count=3))]
    assert post.action_counts == {("restart", "down", "failed"): 3}
    back = post.at + 1
    post.observe(*returns(back, 99))
    post.until(back + 899, every=10.0)
    assert (post.watch.phase, post.watch.failures) == (WatchdogPhase.CIRCUIT_OPEN, 3)
    post.until(back + 901)
    assert (post.watch.phase, post.watch.failures) == (WatchdogPhase.IDLE, 0)


def test_after_resume_three_restarts_may_fail_again() -> None:
    post = WatchedDaemon(restarts=50).observe(*dies())
    restarts_fail(post, 3)
    post.resume()
    restarts_fail(post, 2)
    assert len(post.actions) == 5
    assert post.watch.phase is not WatchdogPhase.CIRCUIT_OPEN


def test_a_second_crash_ends_the_verification() -> None:
    """It has failed as soon as that is known, not when it should have answered."""
    post = WatchedDaemon().observe(*dies())
    post.finish_action()
    post.observe(daemon_process(NEXT, at=post.at + 0.1))
    post.observe(*dies(post.at + 0.2, NEXT), left(post.at + 0.8))
    died = post.at
    assert post.action_counts == {("restart", "down", "failed"): 1}

    post.until(died + 3.0)
    assert len(post.actions) == 2


def test_the_exit_of_the_hung_daemon_is_not_a_second_crash() -> None:
    post = WatchedDaemon(*alive(), *hangs())
    post.until(DEATH + 120)
    assert post.kinds == [("restart", "hung")]
    post.observe(*dies(post.at + 0.1), left(post.at + 0.6))
    assert post.condition is Condition.DOWN
    post.finish_action()
    assert not post.action_counts
    post.observe(*returns(post.at + 0.5))
    assert post.action_counts == {("restart", "hung", "succeeded"): 1}


def test_reports_the_time_of_the_next_restart() -> None:
    post = WatchedDaemon().observe(*dies())
    post.finish_action(problem=FAILED)
    assert (post.watch.phase, post.watch.not_before) == (WatchdogPhase.BACKOFF, pytest.approx(post.at + 2.0))
    post.restarted()
    assert post.watch.not_before is not None
    post.until(post.at + 1.5)
    assert len(post.actions) == 1


def test_draws_the_jitter_once_for_each_restart() -> None:
    """Or else the least that is ever drawn would win."""
    post = WatchedDaemon().observe(*dies())
    post.finish_action(problem=FAILED)
    waited_for = post.watch.not_before
    post.until(post.at + 1)
    assert post.watch.not_before == waited_for


def test_observe_mode_uses_no_budget() -> None:
    post = WatchedDaemon(mode=Mode.OBSERVE)
    for number in range(9):
        died = DEATH + 30 * number
        process = post.daemon.runtime.process
        assert process is not None
        assert process.pid is not None
        post.observe(*dies(died, process.pid), *returns(died + 10, NEXT + number))
    assert (post.watch.restarts, post.reported(*BREAKER)) == ((), [])
    assert post.action_counts == {("restart", "down", "observed"): 9}


def test_counts_restarts_only_within_the_window() -> None:
    post = WatchedDaemon(window=60.0, restarts=2, backoff=0.5)
    crash(post, 2)
    assert len(post.watch.restarts) == 2
    post.until(AT + 500)
    assert post.watch.restarts == ()


def test_another_condition_does_not_close_the_circuit() -> None:
    post = WatchedDaemon()
    post.node = replace(post.node, watches={DAEMON: replace(post.watch, circuit_opened_at=AT, healthy_since=None)})
    post.observe(refusal(at=AT), refusal(at=AT + 3))
    post.until(AT + 1000, every=50.0)
    assert (post.condition, post.watch.circuit_opened_at) == (Condition.HELD, AT)


# What the watchdog would have done in a recording: reported among the rest, and changing nothing of it.


KILLED = scenario("control_killed")


class Judge:
    """Acts at its first judgement from a moment on, and remembers when it was asked."""

    def __init__(self, acts_at: float = AT) -> None:
        self.acts_at = acts_at
        self.asked: list[tuple[float, float]] = []
        self.acted = False

    def __call__(self, node: Node, policy: Policy, *, at: float, chance: float) -> Evaluation:
        """Report one action."""
        self.asked.append((at, chance))
        if self.acted or at < self.acts_at:
            return node, (), ()
        self.acted = True
        steps = (RunCommand(arguments=policy.daemon_policies[DAEMON].command),)
        action = Action(daemon=DAEMON, kind=ActionKind.RESTART, reason=ActionReason.DOWN, steps=steps)
        return node, (Event(at=at, event=EventName.WATCHDOG_ACTS, daemon=DAEMON, action=action.kind),), (action,)


@pytest.fixture
def folded(monkeypatch: pytest.MonkeyPatch) -> list[Observation]:
    """What was taken in."""
    taken: list[Observation] = []
    monkeypatch.setattr(dry_run_module, "reduce", lambda node, seen: (taken.append(seen), reduce(node, seen))[1])
    return taken


def judged_by(evaluate: Judge, monkeypatch: pytest.MonkeyPatch, *seen: Observation) -> list[Event]:
    monkeypatch.setattr(dry_run_module, "evaluate", evaluate)
    policy = policy_for(node(), Mode.ACT, Thresholds())
    return [event for _, events in dry_run(node(), seen, policy) for event in events]


def test_evaluates_after_each_observation_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = Judge(acts_at=AT + 99)
    judged_by(evaluate, monkeypatch, servers(at=AT), servers(at=AT + 1))
    assert evaluate.asked == [(AT, 0.5), (AT + 1, 0.5), (AT + 1, 0.5)]


def test_yields_the_events_of_the_watchdog_among_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = judged_by(Judge(), monkeypatch, servers(at=AT), servers(513, at=AT + 1))
    assert [each.event for each in reported] == [EventName.DAEMON_UP, EventName.WATCHDOG_ACTS, EventName.SERVER_STARTED]


def test_an_action_ends_a_moment_later(monkeypatch: pytest.MonkeyPatch, folded: list[Observation]) -> None:
    at_once, then = servers(at=AT + ACTION_SECONDS / 2), servers(at=AT + 5)
    judged_by(Judge(), monkeypatch, servers(), at_once, then)
    done = ActionDone(
        at=AT + ACTION_SECONDS,
        daemon=DAEMON,
        kind=ActionKind.RESTART,
        reason=ActionReason.DOWN,
        seconds=ACTION_SECONDS,
    )
    assert folded == [servers(), at_once, done, then]


def test_assumes_a_start_command_for_a_daemon_without_a_unit() -> None:
    by_unit = RecordedDaemon(name="a", pipe_directory="/a", log_directory="/a", unit="a.service")
    by_hand = RecordedDaemon(name="b", pipe_directory="/b", log_directory="/b")
    recorded = Header(daemons=(by_unit, by_hand)).node()
    policy = policy_for(recorded, Mode.OBSERVE, Thresholds(restarts=2))
    assert policy == Policy(
        thresholds=Thresholds(restarts=2), daemon_policies={"a": DaemonPolicy(), "b": DaemonPolicy(command=START)}
    )
    assert policy.daemon_policy_of(recorded.daemons["a"]).unit == "a.service"


# -- the command ------------------------------------------------------------------------------------------------------

OF_THE_WATCHDOG = ("daemon_diagnosed", "watchdog_", "circuit_", "daemon_quarantined", "daemon_released", "limits_")


def replayed(recorded: Recorded, capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    assert main(["replay", *flags, str(recorded.path)]) == 0
    return capsys.readouterr().out.splitlines()


def of_the_rest(lines: Iterable[str]) -> list[str]:
    return [line for line in lines if not json.loads(line)["event"].startswith(OF_THE_WATCHDOG)]


@pytest.mark.parametrize("recorded", [KILLED, scenario("quit_with_clients")], ids=repr)
@pytest.mark.parametrize("mode", Mode)
def test_reports_the_same_events_as_without_the_watchdog(
    recorded: Recorded, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rehearsed = replayed(recorded, capsys, "--events", "--watchdog", mode)
    plainly = replayed(recorded, capsys, "--events")
    assert of_the_rest(rehearsed) == of_the_rest(plainly) == plainly


def test_metrics_have_watchdog_families_only_in_a_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert any("cuda_mps_watchdog_mode" in line for line in replayed(KILLED, capsys, "--metrics", "--watchdog=act"))
    assert not any("cuda_mps_watchdog" in line for line in replayed(KILLED, capsys, "--metrics"))


# A restart of MPS does not fix a GPU that needs a reset.


GPUS = (gpu_reading(pci_bus_id="00000000:00:06.0"), gpu_reading(gpu=OTHER_GPU, index=1, pci_bus_id="00000000:00:07.0"))
QUARANTINE = (EventName.DAEMON_QUARANTINED, EventName.DAEMON_RELEASED)


def xid(number: int, *, at: float = DEATH, gpu: str = GPU) -> GpuEvent:
    """Return an Xid event of NVML."""
    return GpuEvent(at=at, type=8, xid=number, gpu=gpu)


def recovery(action: str, *, at: float = DEATH) -> KernelRecord:
    """Return the recovery action of the first GPU, from the kernel log."""
    text = f"NVRM: Xid (PCI:0000:00:06): 154, GPU recovery action changed from 0x0 (None) to {action}"
    return KernelRecord(at=at, record=f"4,1,1,-;{text}")


def on(*seen: Observation, mode: Mode = Mode.ACT) -> WatchedDaemon:
    """A daemon on the first of two GPUs."""
    mine = reply("device_query --csv", f"0,00:00.0,{GPU},NVIDIA H200\n")
    return WatchedDaemon(*alive(), *GPUS, mine, mode=mode).observe(*seen)


def test_an_xid_that_needs_a_reset_or_reboot_prevents_a_restart(subtests: pytest.Subtests) -> None:
    for number in [46, 62, 64, 79, 95, 110, 119, 120, 136, 140, 143, 156, 158]:
        with subtests.test(number=number):
            post = on(xid(number), *dies(DEATH + 1))
            post.until(DEATH + 600)
            assert (post.actions, post.watch.phase) == ([], WatchdogPhase.QUARANTINED)
            assert [name for name, _ in post.reported(*QUARANTINE)] == ["daemon_quarantined"]


def test_other_xids_do_not_prevent_a_restart(subtests: pytest.Subtests) -> None:
    for number in [8, 13, 31, 43, 45, 48, 63, 74, 92, 94, 109, 154, 155, 157, 999]:
        with subtests.test(number=number):
            post = on(xid(number), *dies(DEATH + 1))
            assert (post.kinds, post.reported(*QUARANTINE)) == ([("restart", "down")], [])


def test_the_recovery_action_of_the_driver_decides(subtests: pytest.Subtests) -> None:
    for action, quarantined in [
        ("0x1 (GPU Reset Required)", True),
        ("0x1 (PF FLR)", True),
        ("0x2 (Node Reboot Required)", True),
        ("0x2 (OS Reboot)", True),
        ("0x0 (None)", False),
        ("0x3 (Drain P2P)", False),
        ("0x4 (Drain and Reset)", False),
        ("anything", False),
    ]:
        with subtests.test(action=action, quarantined=quarantined):
            post = on(recovery(action))
            assert bool(post.watch.quarantine) is quarantined


def test_ignores_the_gpu_of_another_daemon() -> None:
    post = on(xid(79, gpu=OTHER_GPU), *dies(DEATH + 1))
    assert post.kinds == [("restart", "down")]


def test_reports_the_reason_of_a_quarantine() -> None:
    post = on(xid(79))
    (event,) = (each for each in post.events if each.event is EventName.DAEMON_QUARANTINED)
    assert (event.xid, event.gpu) == (79, GPU)
    assert event.reason == Reason(ReasonCode.GPU_NEEDS_REBOOT, xid=79, gpu=GPU)
    assert post.watch.reason == event.reason


def test_ends_no_hung_daemon_in_quarantine() -> None:
    post = on(xid(79), *hangs())
    post.until(DEATH + 600)
    assert post.actions == []


def released(post: WatchedDaemon, then: Iterable[Observation] = ()) -> WatchedDaemon:
    post.until(DEATH + 60)
    post.resume()
    post.observe(look("log", at=DEATH + 61), *then)
    return post


def test_resume_ends_a_quarantine_until_the_next_xid() -> None:
    post = released(on(xid(79), *dies(DEATH + 1)))
    assert [name for name, _ in post.reported(*QUARANTINE)] == ["daemon_quarantined", "daemon_released"]
    assert (post.kinds, post.watch.quarantine) == ([("restart", "down")], None)
    post.observe(xid(79, at=DEATH + 70))
    assert post.watch.quarantine is not None


def test_a_quarantine_outlives_the_exporter() -> None:
    post = on(xid(79))
    post.restarted()
    post.observe(*alive(at=DEATH + 5), *dies(DEATH + 10))
    assert (post.actions, post.watch.phase) == ([], WatchdogPhase.QUARANTINED)


def test_reports_a_quarantine_in_observe_mode() -> None:
    post = on(xid(79), *dies(DEATH + 1), mode=Mode.OBSERVE)
    assert post.watch.phase is WatchdogPhase.QUARANTINED
    assert post.action_counts == {}


def test_a_daemon_without_visible_devices_uses_each_gpu() -> None:
    post = WatchedDaemon(*alive(), *GPUS).observe(xid(95, gpu=OTHER_GPU))
    assert post.node.watches[DAEMON].quarantine is not None


def test_names_the_latest_xid_and_what_the_gpu_needs() -> None:
    post = WatchedDaemon(*alive(), *GPUS)
    post.node = reduce(reduce(post.node, xid(79, at=DEATH))[0], xid(95, at=DEATH + 1, gpu=OTHER_GPU))[0]
    post.evaluate(DEATH + 2)
    assert post.watch.reason == Reason(ReasonCode.GPU_NEEDS_RESET, xid=95, gpu=OTHER_GPU)


def test_resume_of_a_daemon_hides_no_gpu_that_another_one_uses() -> None:
    post = on(xid(79), xid(95, gpu=OTHER_GPU))
    post.resume()
    assert [each.gpu for each in unresolved(post.node)] == [OTHER_GPU]
    assert [each.xid for each in post.events if each.event is EventName.DAEMON_RELEASED] == [79]


def test_an_xid_before_a_resume_is_no_new_quarantine() -> None:
    post = on(xid(79))
    post.resume()
    post.node = replace(post.node, xids=on(xid(79)).node.xids)
    post.evaluate(post.at + 1)
    assert post.watch.quarantine is None


@pytest.mark.parametrize(
    ("seen", "well_at"),
    [
        (returns(AT + 500), AT + 500),
        *(
            ((*seen, suspended(at=DEATH + 60, state="S"), *alive(at=DEATH + 60)), DEATH + 60)
            for seen in (silences(), hangs(), (suspended(state="D"), *silences()))
        ),
    ],
    ids=["replaced", "unresponsive", "suspended", "stuck in the driver"],
)
def test_the_circuit_closes_once_the_daemon_is_well_for_a_whole_window(
    seen: tuple[Observation, ...], well_at: float
) -> None:
    post = WatchedDaemon()
    post.node = replace(post.node, watches={DAEMON: replace(post.watch, circuit_opened_at=AT)})
    post.observe(*seen)
    post.until(well_at + 890, every=10.0)
    assert (post.condition, post.watch.circuit_opened_at) == (Condition.WELL, AT)
    post.until(well_at + 910, every=10.0)
    assert post.watch.circuit_opened_at is None
    assert post.reported(*BREAKER) == [("circuit_closed", Reason(ReasonCode.WELL_FOR_WINDOW, seconds=900.0))]
