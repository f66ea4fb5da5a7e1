"""Wait until the daemon works again."""

import time

from tests.chaos.harness import Harness
from tests.chaos.terms import RULES

LOOK_SECONDS = 0.05
CIRCUIT_LOOK_SECONDS = 0.3
MOST_FAILURES = 3


def await_recovery(harness: Harness) -> None:
    """Wait until the daemon answers; AssertionError if it never does. It closes a circuit that had to open."""
    since, looked_at = _disturbed_at(harness), time.time()
    while not _answers(harness, since):
        now = time.time()
        if now - looked_at > CIRCUIT_LOOK_SECONDS:
            looked_at = now
            if harness.circuit_open():
                close_circuit(harness)
                since = time.time()
        assert now < since + harness.patience, f"no daemon answers {now - since:.1f} s after it was disturbed"
        time.sleep(LOOK_SECONDS)


def _answers(harness: Harness, since: float) -> bool:
    """Whether the daemon has answered since it was disturbed."""
    answered_at = harness.limits.answered_at
    return answered_at is not None and answered_at > since


def close_circuit(harness: Harness) -> None:
    """As an operator does who has seen why it opened."""
    assert _may_open(harness), "the circuit is open, and there were too few restarts for that"
    answer = harness.resume()
    assert not answer.startswith("failed"), answer


def _disturbed_at(harness: Harness) -> float:
    """Return when the last thing happened that takes the daemon away, or delays its return.

    A server is one: the end of one that was stopped lets a daemon go on that waited for it.
    """
    ends = [process.ended for process in harness.processes.ended() if process.ended is not None]
    return max([harness.ready_at, harness.actions.last("SIGCONT", "resume", "hold"), *ends])


def _may_open(harness: Harness) -> bool:
    """Return whether the budget was spent at the last restart, or three restarts can have failed in a row."""
    starts = [at for at in harness.starts() if at > harness.actions.last("resume")]
    within = [at for at in starts if at > starts[-1] - RULES.window]
    return len(within) >= RULES.restarts or len(starts) >= MOST_FAILURES
