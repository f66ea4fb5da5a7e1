"""`status` names what prevents the watchdog from acting in mode `act`, and the remedy."""

from dataclasses import replace

import pytest

from exporter.model.settings import Mode
from exporter.model.watchdog import BlockReason, WatchdogPhase, WatchdogState
from exporter.report import remedy, status_text
from exporter.report.finding import Finding
from exporter.report.findings import findings
from exporter.report.remedy import SUSPENDED
from exporter.report.watchdog_text import watchdog_summary
from exporter.watchdog.context import Policy
from tests.builders import AT, DAEMON, idle


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
    assert (what in one.text, then in one.remedy, one.fails, one.daemon) == (True, True, True, DAEMON)


def test_status_fails_while_the_watchdog_is_blocked() -> None:
    blocked = Policy(mode=Mode.ACT, locks={DAEMON: BlockReason.NO_LOCK})
    assert status_text.status_answer(idle(), blocked)["exit_code"] == 1
    assert status_text.status_answer(idle(), Policy(mode=Mode.ACT, locks={DAEMON: None}))["exit_code"] == 0


def test_reports_nothing_if_the_lock_is_held_or_the_watchdog_observes() -> None:
    assert found(None) == ()
    assert found(BlockReason.ANOTHER_EXPORTER, Mode.OBSERVE) == ()


LOST = WatchdogState(phase=WatchdogPhase.STATE_LOST, state_lost_at=AT - 60)


def test_reports_a_lost_state_although_the_daemon_answers() -> None:
    (one,) = found(None, watch=LOST)

    assert one.text == f"The watchdog's state of MPS daemon {DAEMON} has been lost for 1 min 0 s"
    assert one.commands == (f"cuda-mps-exporter resume {DAEMON}",)
    summary = watchdog_summary(replace(idle(), watches={DAEMON: LOST}), idle().daemons[DAEMON])
    assert summary is not None
    assert "state directory has not been readable and writable" in (summary.action or "")
    assert LOST.phase in SUSPENDED


def test_resume_lists_a_lost_state_and_ends_it() -> None:
    present = replace(idle(), watches={DAEMON: LOST})

    assert f"{DAEMON} (watchdog state lost)" in remedy.resume_answer(present, before=False)["message"]
    assert remedy.resume_daemon_answer(DAEMON, LOST) == {"message": f"resumed: {DAEMON} may be restarted again"}
