"""The watchdog's state as text: diagnosis, indications, actions and remedies."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.model.action import ActionKind, ActionReason
from exporter.model.identity import ProcessIdentity
from exporter.model.node import Node
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Mode
from exporter.model.watchdog import (
    BlockReason,
    Condition,
    Diagnosis,
    LastAction,
    OngoingAction,
    Quarantine,
    WatchdogPhase,
    WatchdogState,
)
from exporter.report import remedy
from exporter.report.document import FindingStatus
from exporter.report.finding import Finding
from exporter.report.node_findings import findings
from exporter.report.node_status import document_of, summary_line
from exporter.report.reasons import reason_text
from exporter.report.remedy import SUSPENDED
from exporter.report.status_text import watchdog_lines
from exporter.report.watchdog_text import watchdog_text
from exporter.view import View
from exporter.watchdog.context import DaemonPolicy, Policy
from tests.builders import (
    AT,
    CRASHED,
    DAEMON,
    GPU,
    SERVER,
    backing_off,
    circuit_open,
    daemon_down,
    faulted,
    idle,
    node,
    reduced,
    suspended,
    three_clients,
    watched,
)
from tests.status import commands_of, status_json, status_table

ACTING = Policy(mode=Mode.ACT)


def text_lines(present: Node) -> list[str]:
    return [line.text for line in watchdog_lines(document_of(present))]


def first(present: Node, policy: Policy | None = None) -> FindingStatus:
    return document_of(present, policy).findings[0]


def down(**known: Any) -> Node:
    """Return a node with a dead daemon and these fields of the watchdog's state."""
    return watched(daemon_down(), **{"diagnosis": CRASHED, **known})


def diagnosed(condition: Condition, **known: Any) -> Node:
    return watched(three_clients(), diagnosis=Diagnosis(condition=condition, since=AT, **known))


# -- below the table of `status`


@pytest.mark.parametrize("condition", [Condition.WELL, Condition.STARTING, Condition.UNKNOWN])
def test_shows_nothing_if_the_daemon_is_well(condition: Condition) -> None:
    assert text_lines(diagnosed(condition)) == text_lines(three_clients()) == []
    assert status_table(diagnosed(condition)) == status_table(three_clients())


def test_names_the_process_of_the_diagnosis() -> None:
    assert first(suspended()).facts[0] == f"PID {SERVER} (nvidia-cuda-mps-server of root)"


@pytest.mark.parametrize("pid", [SERVER, 4711])
def test_does_not_name_another_process_with_the_same_pid(pid: int) -> None:
    process = ProcessIdentity(pid=pid, start_ticks=1)
    assert first(diagnosed(Condition.HELD, process=process)).facts == (f"PID {pid}",)


def test_shows_the_indications() -> None:
    shown = "indications: process 441 has exited; nvidia-cuda-mps-control finds no daemon"
    assert first(backing_off()).facts[-1] == shown


def test_shows_the_time_of_the_next_restart() -> None:
    waits = "The watchdog: restarted 1 time without success; next restart in 5.0 s or later."
    assert first(backing_off(), ACTING).outlook == waits
    assert first(backing_off(), ACTING).steps[0].text == "Wait for the restart."
    assert first(replace(backing_off(), at=AT + 21)).outlook.endswith("next restart now.")


def test_shows_why_the_last_action_failed() -> None:
    refused = Reason(ReasonCode.UNIT_NOT_RESTARTED, unit="a.service", text="no\n")
    known = replace(circuit_open().watches[DAEMON], problem=refused)
    shown = first(replace(circuit_open(), watches={DAEMON: known}))
    failed = (
        "the last action of the watchdog failed: systemctl could not restart a.service: no\N{REPLACEMENT CHARACTER}"
    )
    assert failed in shown.facts


def test_shows_an_open_circuit() -> None:
    shown = "The watchdog: restarts suspended for 9.0 s (circuit open), until an operator resumes it."
    assert first(circuit_open()).outlook == shown
    assert first(circuit_open(), ACTING).outlook == shown


def test_shows_an_open_circuit_of_a_daemon_that_is_well() -> None:
    """Otherwise an operator would not know that the next crash is not repaired."""
    well = Diagnosis(condition=Condition.WELL, since=AT)
    shown = first(watched(idle(), phase=WatchdogPhase.CIRCUIT_OPEN, diagnosis=well))
    assert (shown.code, "circuit open" in shown.outlook) == ("circuit_open", True)


def test_shows_a_quarantine_with_its_cause() -> None:
    quarantine = Quarantine(at=AT, xid=79, gpu=GPU, action="RESTART_BM")
    present = down(phase=WatchdogPhase.QUARANTINED, quarantine=quarantine)
    shown, of_daemon, *_ = document_of(present).findings
    assert shown.text == (
        f"MPS daemon {DAEMON} has been quarantined for 15 s: Xid 79 (GPU fell off the bus): GPU 0 (GPU-1efa3f60) needs "
        "a reboot of the machine"
    )
    assert of_daemon.text.startswith(f"MPS daemon {DAEMON} has been down for 10 s")
    assert of_daemon.outlook.endswith("restarts suspended (GPU quarantined), until an operator resumes it.")


def test_shows_an_action_in_progress_and_one_not_verified() -> None:
    acting = OngoingAction(kind=ActionKind.RESTART, reason=ActionReason.DOWN, began_at=AT + 14)
    under_way = down(phase=WatchdogPhase.ACTING, acting=acting)
    assert first(under_way).outlook == "The watchdog: restart the daemon (down): in progress for 1.0 s."
    done = down(phase=WatchdogPhase.ACTING, acting=replace(acting, done_at=AT + 14.5))
    assert first(done).outlook.startswith("The watchdog: restart the daemon (down): done 0.5 s ago")
    well = Diagnosis(condition=Condition.WELL, since=AT)
    up = watched(idle(), phase=WatchdogPhase.ACTING, acting=replace(acting, done_at=AT - 0.5), diagnosis=well)
    assert text_lines(up)[0].startswith(f"MPS daemon {DAEMON}; watchdog: restart the daemon (down): done ")


def test_shows_a_restart_left_to_systemd() -> None:
    shown = first(down(phase=WatchdogPhase.DEFERRED_TO_SYSTEMD))
    assert "to systemd" in shown.outlook
    assert not shown.steps[0].commands


def test_states_what_will_happen_in_the_mode_and_the_budget_in_force(subtests: pytest.Subtests) -> None:
    would = LastAction(kind=ActionKind.RESTART, reason=ActionReason.DOWN, begun=False)
    cannot = Reason(ReasonCode.NO_RESTART_METHOD)
    recent = Reason(ReasonCode.HANG_TOO_RECENT, seconds=90.0)
    hung = diagnosed(Condition.UNRESPONSIVE)
    spent = {"reason": recent, "restarts": (AT,) * ACTING.thresholds.restarts}
    observes = 'The watchdog will not restart it: it only observes (watchdog.mode = "observe").'
    lock = replace(ACTING, locks={DAEMON: BlockReason.NO_LOCK})
    other = replace(ACTING, locks={DAEMON: BlockReason.ANOTHER_EXPORTER})
    for present, policy, outlook in [
        (down(), Policy(), observes),
        (down(), Policy(locks={}), observes),
        (down(last_action=would), Policy(), f"{observes} In act mode, it would restart the daemon now."),
        (down(), None, ""),
        (down(), lock, "The watchdog will not restart it: it cannot lock the daemon."),
        (down(), other, "Another exporter of this machine watches the daemon."),
        (down(reason=cannot), ACTING, f"The watchdog waits: {reason_text(cannot)}."),
        (watched(hung, diagnosis=hung.watches[DAEMON].diagnosis), Policy(), observes),
        (watched(hung, diagnosis=hung.watches[DAEMON].diagnosis, reason=recent), ACTING,
         "The watchdog waits: the daemon may answer again; it is restarted after 90 s at the earliest."),
        (watched(hung, diagnosis=hung.watches[DAEMON].diagnosis, **spent), ACTING,
         "The watchdog will not restart it: the budget of restarts is used up."),
    ]:  # fmt: skip
        with subtests.test(outlook=outlook):
            shown = [each for each in document_of(present, policy).findings if each.code.startswith("daemon_")]
            assert [each.outlook for each in shown] == [outlook]


# -- on one line, for the service manager -----------------------------------------------------------------------------


def line(present: Node, policy: Policy | None = ACTING) -> str:
    return summary_line(View(present), policy)


def test_line_without_a_watchdog() -> None:
    assert line(idle(), None) == "1 of 1 daemons up, 0 clients"


def test_line_starts_with_the_mode() -> None:
    assert line(idle()) == "watchdog acts; 1 of 1 daemons up, 0 clients"
    assert line(idle(), Policy()).startswith("watchdog observes; ")
    assert line(Node()).startswith("watchdog acts; 0 of 0 ")


def test_line_counts_the_daemons_for_which_the_watchdog_acts() -> None:
    two = reduced(start=node(DAEMON, "/run/other")).node
    mixed = Policy(mode=Mode.ACT, daemon_policies={DAEMON: DaemonPolicy(mode=Mode.OBSERVE)})
    assert line(two, mixed).startswith("watchdog acts for 1 of 2; ")


# -- as an object, for a program --------------------------------------------------------------------------------------


def object_of(present: Node, policy: Policy | None = ACTING) -> Any:
    (daemon,) = status_json(present, policy)["daemons"]
    return daemon["watchdog"]


def test_object_is_null_without_a_watchdog() -> None:
    assert object_of(idle(), None) is None


def test_object_has_codes_times_and_words() -> None:
    found = object_of(backing_off())
    assert (found["mode"], found["state"], found["label"]) == ("act", "backoff", "waiting to restart")
    assert (found["condition"], found["since"], found["process"]) == ("down", AT + 5, None)
    assert [(each["code"], each["parameters"]) for each in found["indications"]] == [
        ("process_gone", {"pid": 441}),
        ("no_daemon_found", {}),
    ]
    assert (found["restarts"], found["restarts_left"], found["not_before"]) == ([AT + 5], 4, AT + 20)
    assert found["counts"] == [{"action": "restart", "reason": "down", "result": "failed", "count": 1}]
    assert found["text"] == "restarted 1 time without success; next restart in 5.0 s or later"


def test_object_has_the_process_and_the_action() -> None:
    acting = OngoingAction(kind=ActionKind.KILL_CLIENTS, reason=ActionReason.FAULT, began_at=AT)
    quarantine = Quarantine(at=AT, xid=79, gpu=GPU, action="RESTART_BM")
    found = object_of(watched(faulted(), diagnosis=CRASHED, acting=acting, quarantine=quarantine))
    action = {"action": "kill_clients", "reason": "fault", "begun": True, "began_at": AT, "done_at": None}
    assert found["action"] == action
    assert [found[f"quarantine{name}"] for name in ("d_at", "_xid", "_gpu")] == [AT, 79, GPU]
    assert object_of(suspended())["process"] == SERVER


def test_mode_is_null_without_a_policy() -> None:
    assert object_of(backing_off(), None)["mode"] is None


def test_reasons_and_problems_are_codes() -> None:
    waits = Reason(ReasonCode.HANG_TOO_RECENT, seconds=90.0)
    would = LastAction(kind=ActionKind.RESTART, reason=ActionReason.HUNG, begun=False)
    found = object_of(watched(idle(), reason=waits, problem=Reason(ReasonCode.NO_RESULT), last_action=would))
    assert (found["reason"]["code"], found["reason"]["parameters"]) == ("hang_too_recent", {"seconds": 90.0})
    assert (found["problem"]["code"], found["problem"]["parameters"]) == ("no_result", {})
    assert (found["action"]["action"], found["action"]["begun"]) == ("restart", False)


# What `pause` and `resume` say that they have done, and how they exit.


QUARANTINED = WatchdogState(
    phase=WatchdogPhase.QUARANTINED, quarantine=Quarantine(at=AT, xid=95, gpu=GPU, action="RESET_GPU")
)


@pytest.mark.parametrize(("before", "begins"), [(False, "paused: "), (True, "already paused: ")])
def test_pause_reports_whether_it_was_paused_before(before: bool, begins: str) -> None:
    assert remedy.pause_answer(before=before)["message"].startswith(begins)


def test_resume_fails_if_the_driver_was_not_paused() -> None:
    answer = remedy.resume_answer(idle(), before=False)
    assert answer == {"message": "nothing to resume: the driver was not paused", "exit_code": 1}


def test_resume_reports_a_paused_driver() -> None:
    answer = remedy.resume_answer(idle(), before=True)
    assert answer == {"message": "resumed: the driver is in use again", "exit_code": 0}


@pytest.mark.parametrize(
    ("present", "why"),
    [(circuit_open(), "circuit open"), (replace(idle(), watches={DAEMON: QUARANTINED}), "quarantined")],
    ids=["circuit open", "quarantine"],
)
def test_resume_without_a_name_lists_suspended_daemons_with_their_command_and_fails(present: Node, why: str) -> None:
    shown = remedy.resume_answer(present, before=False)

    assert shown["exit_code"] == 1
    assert shown["message"].splitlines() == [
        "nothing to resume: the driver was not paused",
        "restarts are suspended; nothing was changed for:",
        f"  {DAEMON} ({why}): cuda-mps-exporter resume {DAEMON}",
    ]


def test_resume_of_a_paused_driver_lists_suspended_daemons_and_succeeds() -> None:
    shown = remedy.resume_answer(circuit_open(), before=True)

    assert (shown["exit_code"], f"resume {DAEMON}" in shown["message"]) == (0, True)


def test_removed_daemons_are_not_listed() -> None:
    assert "suspended" not in remedy.resume_answer(replace(circuit_open(), daemons={}), before=False)["message"]


@pytest.mark.parametrize(
    ("watch", "message", "exit_code"),
    [
        (circuit_open().watches[DAEMON], f"resumed: {DAEMON} may be restarted again", 0),
        (QUARANTINED, f"resumed: {DAEMON} may be restarted again", 0),
        (WatchdogState(), f"nothing to resume: restarts of {DAEMON} were not suspended", 1),
        (
            WatchdogState(restarts=(AT,)),
            f"restarts of {DAEMON} were not suspended; they are counted from 0 again",
            0,
        ),
    ],
    ids=["circuit open", "quarantine", "idle", "restarted"],
)
def test_resume_of_a_daemon_reports_whether_it_was_suspended(
    watch: WatchdogState, message: str, exit_code: int
) -> None:
    answer = remedy.resume_daemon_answer(DAEMON, watch)
    assert (answer["message"], answer.get("exit_code", 0)) == (message, exit_code)


# `status` names what prevents the watchdog from acting in mode `act`, and the remedy.


def found(block: BlockReason | None, mode: Mode = Mode.ACT, watch: WatchdogState | None = None) -> tuple[Finding, ...]:
    """Return the findings if the exporter does not hold the daemon's lock for this reason."""
    present = replace(idle(), watches={DAEMON: watch or WatchdogState()})
    return tuple(findings(present, AT, Policy(mode=mode, locks={DAEMON: block})))


@pytest.mark.parametrize(
    ("block", "what", "then"),
    [
        (BlockReason.ANOTHER_EXPORTER, "Another exporter acts for MPS daemon", "Stop one of the two exporters"),
        (BlockReason.NO_LOCK, "cannot lock MPS daemon", "/run/cuda-mps-exporter"),
    ],
)
def test_names_the_reason_and_the_remedy(block: BlockReason, what: str, then: str) -> None:
    (one,) = found(block)
    assert (what in one.text, then in one.remedy, one.daemon) == (True, True, DAEMON)


def test_reports_nothing_if_the_lock_is_held_or_the_watchdog_observes() -> None:
    assert found(None) == ()
    assert found(BlockReason.ANOTHER_EXPORTER, Mode.OBSERVE) == ()


LOST = WatchdogState(phase=WatchdogPhase.STATE_LOST, state_lost_at=AT - 60)


def test_reports_a_lost_state_although_the_daemon_answers() -> None:
    (one,) = found(None, watch=LOST)

    assert one.text == f"The watchdog's state of MPS daemon {DAEMON} has been lost for 1 min 0 s"
    assert commands_of(one) == (f"cuda-mps-exporter resume {DAEMON}",)
    text = watchdog_text(replace(idle(), watches={DAEMON: LOST}), idle().daemons[DAEMON])
    assert "state directory has not been readable and writable" in (text or "")
    assert LOST.phase in SUSPENDED


def test_resume_lists_a_lost_state_and_ends_it() -> None:
    present = replace(idle(), watches={DAEMON: LOST})

    assert f"{DAEMON} (watchdog state lost)" in remedy.resume_answer(present, before=False)["message"]
    assert remedy.resume_daemon_answer(DAEMON, LOST) == {"message": f"resumed: {DAEMON} may be restarted again"}
