"""When all is as it should be again, and how long that may take."""

import time

from tests.chaos.slowness import slowness
from tests.chaos.stage import Stage

BACK_SECONDS = 2.5
"""Within this a daemon that crashed is back, while the breaker is closed and somebody watches."""

LATER_SECONDS = 1.25
"""A back-off has up to a quarter more by chance."""

LOOK_SECONDS = 0.05
BREAKER_LOOK_SECONDS = 0.3


def await_order(stage: Stage) -> None:
    """Until the daemon answers; AssertionError if that takes too long. A breaker that had to open is closed."""
    since, looked_at = _disturbed_at(stage), time.time()
    while not _answers(stage, since):
        now = time.time()
        if now - looked_at > BREAKER_LOOK_SECONDS:
            looked_at = now
            if stage.circuit_open():
                close_breaker(stage)
                since = time.time()
        assert now < since + patience(stage), f"no daemon answers {now - since:.1f} s after it was disturbed"
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


def patience(stage: Stage) -> float:
    """How long the daemon may be away: the first restart comes at once, one that did not last is backed off from."""
    again = len(_recent(stage)) > 0
    return BACK_SECONDS * slowness() + (stage.terms.longest_backoff * LATER_SECONDS if again else 0.0)


def _disturbed_at(stage: Stage) -> float:
    """When the last thing happened that takes the daemon away, or keeps anybody from bringing it back.

    A server is one: the end of one that was stopped lets a daemon go on that waited for it.
    """
    ends = [life.ended for life in stage.onlooker.ended() if life.ended is not None]
    return max([stage.ready_at, stage.deeds.last("SIGCONT", "resume", "hold"), *ends])


def _recent(stage: Stage) -> list[float]:
    """The starts that are still counted."""
    begin = max(time.time() - stage.terms.window, stage.deeds.last("resume"))
    return [at for at in stage.starts() if at > begin]


def _may_open(stage: Stage) -> bool:
    """Its budget was spent when it was last restarted, or the last three restarts did not help."""
    starts = [at for at in stage.starts() if at > stage.deeds.last("resume")]
    within = [at for at in starts if at > starts[-1] - stage.terms.window]
    return len(within) >= min(stage.terms.restarts, MOST_FAILURES)


MOST_FAILURES = 3
