"""What `pause` and `resume` say that they have done, and how they exit."""

from dataclasses import replace

import pytest

from exporter.model.node import Node
from exporter.model.watchdog import Quarantine, WatchdogPhase, WatchdogState
from exporter.report import remedy
from tests.builders import AT, DAEMON, GPU, circuit_open, idle

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
