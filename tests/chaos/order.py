"""When all is as it should be again."""

import time

from tests.chaos.stage import Stage

LOOK_SECONDS = 0.05
BREAKER_LOOK_SECONDS = 0.3


def await_order(stage: Stage) -> None:
    """Wait until the daemon answers; AssertionError if it never does. A breaker that had to open is closed."""
    since, looked_at = _disturbed_at(stage), time.time()
    while not _answers(stage, since):
        now = time.time()
        if now - looked_at > BREAKER_LOOK_SECONDS:
            looked_at = now
            if stage.circuit_open():
                close_breaker(stage)
                since = time.time()
        assert now < since + stage.patience, f"no daemon answers {now - since:.1f} s after it was disturbed"
        time.sleep(LOOK_SECONDS)


def _answers(stage: Stage, since: float) -> bool:
    """Whether the daemon has answered since it was disturbed."""
    answered_at = stage.limits.answered_at
    return answered_at is not None and answered_at > since


def close_breaker(stage: Stage) -> None:
    """As an operator does who has seen why it opened."""
    assert _may_open(stage), "the breaker is open, and there were too few restarts for that"
    answer = stage.resume()
    assert not answer.startswith("failed"), answer


def _disturbed_at(stage: Stage) -> float:
    """When the last thing happened that takes the daemon away, or keeps anybody from bringing it back.

    A server is one: the end of one that was stopped lets a daemon go on that waited for it.
    """
    ends = [life.ended for life in stage.onlooker.ended() if life.ended is not None]
    return max([stage.ready_at, stage.deeds.last("SIGCONT", "resume", "hold"), *ends])


def _may_open(stage: Stage) -> bool:
    """Return whether the budget was spent at the last restart, or three restarts can have failed in a row."""
    starts = [at for at in stage.starts() if at > stage.deeds.last("resume")]
    within = [at for at in starts if at > starts[-1] - stage.terms.window]
    return len(within) >= stage.terms.restarts or len(starts) >= MOST_FAILURES


MOST_FAILURES = 3
