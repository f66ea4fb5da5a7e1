"""What any user can do to a daemon's control socket never ends the daemon."""

from itertools import count
from random import Random

from exporter.model.daemon import DaemonState
from exporter.model.observation import ControlSocket, Observation
from exporter.model.reason import Reason, ReasonCode
from exporter.model.values import replace
from exporter.model.watchdog import Condition
from tests.builders import SERVER, probe, refusal, servers, silence
from tests.watchdog.watched_daemon import DEATH, WatchedDaemon, hangs, holder, silences, suspended

TRIALS = 100


def _step(chance: Random, at: float) -> tuple[Observation, ...]:
    """What a query shows while users connect, stay, and leave. One moment in ten shows nobody."""
    kind = chance.randrange(10)
    if kind == 0:
        return (servers(SERVER, at=at),)
    if kind == 1:
        return (refusal(at=at),)
    others = chance.choice((True, True, None))
    return silence(at=at), _connection(at + 2, others), holder(at + 2.1, chance.choice((700, 701, None)))


def _connection(at: float, others: bool | None) -> ControlSocket:
    return replace(probe(False, at=at), others=others)


def test_idle_and_slow_connections_restart_nothing() -> None:
    wrong = []
    for trial in range(TRIALS):
        chance, post = Random(trial), WatchedDaemon(hung_after=15.0)
        for number in count():
            at = DEATH + 7.5 * number
            if number == 40:
                break
            post.observe(*_step(chance, at))
            post.until(at + 7)
        if post.kinds:
            wrong.append((trial, post.kinds))
    assert not wrong


def test_a_hold_is_shown_with_its_process_and_user() -> None:
    post = WatchedDaemon()
    for number in range(3):
        at = DEATH + 10 * number
        post.observe(silence(at=at), _connection(at + 2, True), holder(at + 3))
    assert (post.daemon.state, post.condition) == (DaemonState.HELD, Condition.HELD)
    assert post.diagnosis.indications[0] == Reason(ReasonCode.SESSION_OPEN, pid=700, user="alice")


def test_a_user_who_also_stops_an_own_server_restarts_nothing() -> None:
    post = WatchedDaemon(hung_after=15.0)
    for number in range(30):
        at = DEATH + 7.5 * number
        state = suspended(SERVER, at=at - 0.5, state="ST"[number // 3 % 2])
        post.observe(state, silence(at=at), _connection(at + 2, True), holder(at + 2.1))
        post.until(at + 6.5)
    assert post.kinds == []


def test_a_connected_user_delays_no_restart_of_a_suspended_daemon() -> None:
    """Only root and the daemon's user can suspend it."""
    post = WatchedDaemon()
    post.observe(*(replace(each, others=True) if isinstance(each, ControlSocket) else each for each in hangs()))
    post.until(DEATH + 110)
    assert post.kinds == [("restart", "hung")]


def test_a_hang_remains_confirmed_when_the_queue_is_full_later() -> None:
    post = WatchedDaemon()
    post.observe(*silences(), _connection(DEATH + 80, None))
    post.until(DEATH + 110)
    assert post.kinds == [("restart", "hung")]


def test_who_connects_after_a_hang_was_suspected_holds_the_daemon() -> None:
    post = WatchedDaemon()
    post.observe(*silences(), _connection(DEATH + 80, True))
    post.until(DEATH + 400)
    assert (post.kinds, post.daemon.state) == ([], DaemonState.HELD)
