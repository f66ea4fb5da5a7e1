"""What must hold, whatever is done. Each rule looks at all that has happened, and yields what breaks it, in words."""

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from tests.chaos.claims import JUDGEMENTS, Judged
from tests.chaos.onlooker import Life, Role, is_brief
from tests.chaos.stage import ClientEnd, Stage
from tests.chaos.tenant import How
from tests.standin.mps import is_alive

LIMITS_SECONDS = 2.0
"""For so long a server may be without its limits, on a machine at rest."""

TOGETHER_SECONDS = 10.0
"""A daemon that finds another at work says so and ends. One that stays is there for ever."""

CLOCKS_SECONDS = 0.3
"""How far the times of different witnesses may be apart, beside the longest pause of the onlooker."""

COMMAND_SECONDS = 2.0
"""How much later than another a restart command may begin after it was decided on."""

KNOWN_AFTER_SECONDS = 3.0
"""After this, all that can be known of a process's end is known."""

Rule = Callable[[Stage], Iterator[str]]


def those_who_look_are_well(stage: Stage) -> Iterator[str]:
    """A rule that nobody looks after holds of everything."""
    for each in (stage.onlooker, stage.limits, stage.driver):
        if each.problem is not None:
            yield f"{type(each).__name__}: {each.problem!r}"


def one_daemon_at_a_time(stage: Stage) -> Iterator[str]:
    """On one pipe directory."""
    for pids, seen in groupby(stage.onlooker.twins(), key=lambda each: each[1]):
        times = [at for at, _ in seen]
        if times[-1] - times[0] > TOGETHER_SECONDS:
            yield f"daemons {pids} together for {times[-1] - times[0]:.2f} s"


def none_is_started_beside_one_that_lives(stage: Stage) -> Iterator[str]:
    """Which would only find it there."""
    apart, known = _apart(stage), time.time() - KNOWN_AFTER_SECONDS
    daemons = [life for life in stage.onlooker.ended() if life.role is Role.DAEMON]
    for at in (at for at in stage.starts() if at < known):
        for life in (*daemons, *stage.onlooker.living(Role.DAEMON)):
            if life.began < at - apart and (life.ended is None or at + apart < life.ended):
                yield f"a start at {at:.2f} beside daemon {life.pid}, which lives since {life.began:.2f}"


def no_start_over_budget(stage: Stage) -> Iterator[str]:
    """In no window more than there may be, but for an operator's `resume`."""
    released = [deed.at for deed in stage.deeds.all if deed.what == "resume"]
    starts = stage.starts()
    for last in starts:
        begin = max([last - stage.terms.window + COMMAND_SECONDS, *(at for at in released if at < last)])
        spent = sum(begin < at <= last for at in starts)
        if spent > stage.terms.restarts:
            yield f"{spent} starts in {last - begin:.1f} s, the last at {last:.2f}"


def no_server_is_long_without_its_limits(stage: Stage) -> Iterator[str]:
    """While somebody is there who can put them in force."""
    for lapse in stage.limits.lapses:
        if lapse.seconds > LIMITS_SECONDS * lapse.slowness:
            yield f"server {lapse.server} was without its limits for {lapse.seconds:.2f} s: it had {lapse.had}"


def no_daemon_ends_unexplained(stage: Stage) -> Iterator[str]:
    """It was killed by chaos, stopped by an operator, found another there, or hung for long enough."""
    for life in (each for each in _ended(stage, Role.DAEMON) if not is_brief(each)):
        ours = stage.deeds.done_to(life.pid, "SIGKILL", "SIGTERM", "quit")
        if not ours and life.status != 1 and not _hung(stage, life):
            yield f"daemon {life.pid} ended at {life.ended:.2f} ({life.status}), stopped for {life.stopped_for:.2f} s"


def no_server_ends_unexplained(stage: Stage) -> Iterator[str]:
    """It was killed by chaos, left by itself, ended with its daemon, or hung for long where such are to be ended."""
    truth = {(each.what, each.server) for each in stage.mps.truth}
    for life in _ended(stage, Role.SERVER):
        left = ("left", life.pid) in truth
        told = ("forced", life.pid) in truth and stage.deeds.done_to(life.parent, "quit")
        ours = stage.deeds.done_to(life.pid, "SIGKILL")
        hung = stage.terms.ends and _hung(stage, life)
        if not (ours or left or told or hung or _was_orphan(stage, life)):
            yield f"server {life.pid} ended at {life.ended:.2f}, stopped for {life.stopped_for:.2f} s"


def _was_orphan(stage: Stage, server: Life) -> bool:
    """Whether its daemon had gone by its end, or already as it was first seen."""
    daemons = [each for each in (*stage.onlooker.living(Role.DAEMON), *stage.onlooker.ended()) if each is not server]
    daemon = next((each for each in daemons if each.pid == server.parent), None)
    if daemon is None:
        return True
    return daemon.ended is not None and daemon.ended < (server.ended or 0.0) + _apart(stage)


def no_healthy_client_is_ended(stage: Stage) -> Iterator[str]:
    """Only by chaos, with its server, or as a victim that stays too long, where such are to be ended."""
    late = stage.terms.fault - CLOCKS_SECONDS
    for end in stage.client_ends():
        if end.at > time.time() - KNOWN_AFTER_SECONDS:
            break
        if stage.deeds.done_to(end.pid, "kill_client"):
            continue
        if end.how in (How.ENDED, How.SIGNAL) and not (stage.terms.ends and _struck_long_ago(stage, end, late)):
            yield f"client {end.pid} was ended ({end.how}) at {end.at:.2f}, {end.struck_for:.2f} s after it saw a fault"
        if end.how is How.LOST and _outlived(stage, end):
            yield f"client {end.pid} lost server {end.server}, which lived on, at {end.at:.2f}"


def nothing_happens_to_the_neighbour(stage: Stage) -> Iterator[str]:
    """Its daemon, its server and their clients live through it all."""
    for pid in stage.neighbours:
        if not is_alive(pid):
            yield f"process {pid} of the neighbour was ended"


def what_is_claimed_is_true(stage: Stage) -> Iterator[str]:
    """By what the onlooker and the stand-in know."""
    judged = Judged(
        claims=stage.read_claims(),
        ended=stage.onlooker.ended(),
        truth=stage.mps.truth,
        watched=[*stage.watched, *([(stage.ready_at, time.time())] if stage.ready_at else [])],
        apart=stage.onlooker.longest_pause,
        slowness=stage.slowness.since(0.0),
    )
    for judgement in JUDGEMENTS:
        for what in judgement(judged):
            yield f"{judgement.__name__}: {what}"


def _struck_long_ago(stage: Stage, end: ClientEnd, seconds: float) -> bool:
    faults = [deed.at for deed in stage.deeds.all if deed.what in ("fault", "kill_client") and deed.at < end.at]
    return any(end.at - at >= seconds for at in faults[-1:])


def _outlived(stage: Stage, end: ClientEnd) -> bool:
    """Whether the client's server, and the daemon of that, lived on after the client's end."""
    lives = [*stage.onlooker.living(Role.SERVER), *stage.onlooker.living(Role.DAEMON), *stage.onlooker.ended()]
    until = end.at + _apart(stage)
    lived_on = {life.pid: life for life in lives if life.began < end.at and (life.ended is None or life.ended > until)}
    server = lived_on.get(end.server)
    return server is not None and server.parent in lived_on


def _apart(stage: Stage) -> float:
    """How far a time of the onlooker may be from another witness's."""
    return CLOCKS_SECONDS + stage.onlooker.longest_pause


def _ended(stage: Stage, role: Role) -> Iterable[Life]:
    known = time.time() - KNOWN_AFTER_SECONDS
    return [life for life in stage.onlooker.ended() if life.role is role and (life.ended or 0.0) < known]


def _hung(stage: Stage, life: Life) -> bool:
    return life.stopped_for + _apart(stage) >= stage.terms.hung_after


RULES: tuple[Rule, ...] = (
    those_who_look_are_well,
    one_daemon_at_a_time,
    none_is_started_beside_one_that_lives,
    no_start_over_budget,
    no_server_is_long_without_its_limits,
    no_daemon_ends_unexplained,
    no_server_ends_unexplained,
    no_healthy_client_is_ended,
    nothing_happens_to_the_neighbour,
    what_is_claimed_is_true,
)


def broken(stage: Stage) -> list[str]:
    """What breaks a rule."""
    return [f"{rule.__name__}: {what}" for rule in RULES for what in rule(stage)]
