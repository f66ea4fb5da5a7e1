"""`status` says what keeps the watchdog from acting, though the configuration says `act`, and what to do about it."""

from dataclasses import replace

import pytest

from exporter.core.watchdog.orders import Orders
from exporter.model.settings import Mode
from exporter.model.watch import Block, Watch, WatchState
from exporter.telling import resuming
from exporter.telling.troubles import Trouble, troubles
from exporter.telling.watchdog_text import account
from tests.builders import AT, DAEMON, idle


def findings(block: Block | None, mode: Mode = Mode.ACT, watch: Watch | None = None) -> tuple[Trouble, ...]:
    """Return what is found if this keeps the exporter from having the daemon's lock."""
    present = replace(idle(), watches={DAEMON: watch or Watch()})
    return tuple(troubles(present, AT, Orders(mode=mode, locks={DAEMON: block})))


@pytest.mark.parametrize(
    ("block", "what", "then"),
    [
        (Block.ANOTHER_EXPORTER, "another exporter of this machine acts for it", "stop one of the two exporters"),
        (Block.NO_LOCK, "the watchdog cannot take its lock", "/run/cuda-mps-exporter"),
    ],
)
def test_names_the_reason_and_the_remedy(block: Block, what: str, then: str) -> None:
    (found,) = findings(block)
    assert (what in found.what, then in found.next, found.fails, found.daemon) == (True, True, True, DAEMON)


def test_says_nothing_if_the_lock_is_held_or_the_watchdog_is_to_observe() -> None:
    assert findings(None) == ()
    assert findings(Block.ANOTHER_EXPORTER, Mode.OBSERVE) == ()


LOST = Watch(state=WatchState.STATE_LOST, lost_at=AT - 60)


def test_a_lost_state_is_a_finding_although_the_daemon_answers() -> None:
    (found,) = findings(None, watch=LOST)

    assert found.what == f"daemon {DAEMON} answers, but would not be restarted any more"
    assert found.commands == (f"cuda-mps-exporter resume {DAEMON}",)
    said = account(replace(idle(), watches={DAEMON: LOST}), idle().daemons[DAEMON])
    assert said is not None
    assert said.given_up
    assert "state directory has not been readable and writable" in (said.says or "")


def test_resume_lists_it_and_ends_it() -> None:
    present = replace(idle(), watches={DAEMON: LOST})

    assert f"{DAEMON} (the watchdog's state was lost)" in resuming.resumed(present, before=False)["said"]
    assert resuming.resumed_daemon(DAEMON, LOST) == {"said": f"resumed: {DAEMON} may be restarted again"}
