"""What must hold in every run. Each rule looks at all that has happened, and yields a text for each breach."""

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from tests.chaos.claims import CLAIM_RULES, Evidence
from tests.chaos.client_loop import Outcome
from tests.chaos.harness import ClientEnd, Harness
from tests.chaos.process_watch import MpsProcess, Role, is_brief
from tests.chaos.terms import RULES
from tests.standin.mps import is_alive

LIMITS_SECONDS = 2.0
"""For so long a server may be without its limits, on a machine at rest."""

TOGETHER_SECONDS = 10.0
"""A daemon that finds another one reports it and ends. A second daemon that stays longer is an error."""

CLOCKS_SECONDS = 0.3
"""How far the times of different witnesses may be apart, beside the longest pause of the processes."""

COMMAND_SECONDS = 2.0
"""How much later than another a restart command may begin after it was decided on."""

KNOWN_AFTER_SECONDS = 3.0
"""After this, all that can be known of a process's end is known."""

Rule = Callable[[Harness], Iterator[str]]


def observers_have_no_problem(harness: Harness) -> Iterator[str]:
    """Without its observers a run would break no rule."""
    for each in (harness.processes, harness.limits, harness.driver):
        if each.problem is not None:
            yield f"{type(each).__name__}: {each.problem!r}"


def one_daemon_at_a_time(harness: Harness) -> Iterator[str]:
    """On one pipe directory."""
    for pids, seen in groupby(harness.processes.duplicate_daemons(), key=lambda each: each[1]):
        times = [at for at, _ in seen]
        if times[-1] - times[0] > TOGETHER_SECONDS:
            yield f"daemons {pids} together for {times[-1] - times[0]:.2f} s"


def none_is_started_beside_one_that_lives(harness: Harness) -> Iterator[str]:
    """Which would only find it there."""
    apart, known = _apart(harness), time.time() - KNOWN_AFTER_SECONDS
    daemons = [process for process in harness.processes.ended() if process.role is Role.DAEMON]
    for at in (at for at in harness.starts() if at < known):
        for process in (*daemons, *harness.processes.living(Role.DAEMON)):
            if process.began < at - apart and (process.ended is None or at + apart < process.ended):
                yield f"a start at {at:.2f} beside daemon {process.pid}, which runs since {process.began:.2f}"


def no_start_over_budget(harness: Harness) -> Iterator[str]:
    """In no window more than there may be, but for an operator's `resume`."""
    released = [action.at for action in harness.actions.all if action.what == "resume"]
    starts = harness.starts()
    for last in starts:
        begin = max([last - RULES.window + COMMAND_SECONDS, *(at for at in released if at < last)])
        spent = sum(begin < at <= last for at in starts)
        if spent > RULES.restarts:
            yield f"{spent} starts in {last - begin:.1f} s, the last at {last:.2f}"


def no_server_is_long_without_its_limits(harness: Harness) -> Iterator[str]:
    """While the exporter can set them."""
    for lapse in harness.limits.lapses:
        if lapse.seconds > LIMITS_SECONDS * lapse.slowness:
            yield f"server {lapse.server} was without its limits for {lapse.seconds:.2f} s: it had {lapse.had}"


def no_daemon_ends_unexplained(harness: Harness) -> Iterator[str]:
    """It was killed by chaos, stopped by an operator, found another there, or hung for long enough."""
    for process in (each for each in _ended(harness, Role.DAEMON) if not is_brief(each)):
        ours = harness.actions.done_to(process.pid, "SIGKILL", "SIGTERM", "quit")
        if not ours and process.status != 1 and not _hung(harness, process):
            how = f"{process.status}, stopped for {process.stopped_for:.2f} s"
            yield f"daemon {process.pid} ended at {process.ended:.2f} ({how})"


def no_server_ends_unexplained(harness: Harness) -> Iterator[str]:
    """It was killed by chaos, left by itself, ended with its daemon, or hung for long where such are to be ended."""
    truth = {(each.what, each.server) for each in harness.mps.truth}
    for process in _ended(harness, Role.SERVER):
        left = ("left", process.pid) in truth
        told = ("forced", process.pid) in truth and harness.actions.done_to(process.parent, "quit")
        ours = harness.actions.done_to(process.pid, "SIGKILL")
        hung = harness.may_end and _hung(harness, process)
        if not (ours or left or told or hung or _was_orphan(harness, process)):
            yield f"server {process.pid} ended at {process.ended:.2f}, stopped for {process.stopped_for:.2f} s"


def _was_orphan(harness: Harness, server: MpsProcess) -> bool:
    """Whether its daemon had gone by its end, or already as it was first seen."""
    daemons = [
        each for each in (*harness.processes.living(Role.DAEMON), *harness.processes.ended()) if each is not server
    ]
    daemon = next((each for each in daemons if each.pid == server.parent), None)
    if daemon is None:
        return True
    return daemon.ended is not None and daemon.ended < (server.ended or 0.0) + _apart(harness)


def no_healthy_client_is_ended(harness: Harness) -> Iterator[str]:
    """Only by chaos, with its server, or as a victim that stays too long, where such are to be ended."""
    late = RULES.fault - CLOCKS_SECONDS
    for end in harness.client_ends():
        if end.at > time.time() - KNOWN_AFTER_SECONDS:
            break
        if harness.actions.done_to(end.pid, "kill_client"):
            continue
        if end.how in (Outcome.ENDED, Outcome.SIGNAL) and not (
            harness.may_end and _struck_long_ago(harness, end, late)
        ):
            yield f"client {end.pid} was ended ({end.how}) at {end.at:.2f}, {end.struck_for:.2f} s after it saw a fault"
        if end.how is Outcome.LOST and _outlived(harness, end):
            yield f"client {end.pid} lost server {end.server}, which lived on, at {end.at:.2f}"


def nothing_happens_to_the_neighbour(harness: Harness) -> Iterator[str]:
    """Its daemon, its server and their clients live through it all."""
    for pid in harness.neighbours:
        if not is_alive(pid):
            yield f"process {pid} of the neighbour was ended"


def what_is_claimed_is_true(harness: Harness) -> Iterator[str]:
    """By what the processes and the stand-in know."""
    evidence = Evidence(
        claims=harness.read_claims(),
        ended=harness.processes.ended(),
        truth=harness.mps.truth,
        watched=[*harness.watched, *([(harness.ready_at, time.time())] if harness.ready_at else [])],
        apart=harness.processes.longest_pause,
        slowness=harness.slowness.since(0.0),
    )
    for rule in CLAIM_RULES:
        for what in rule(evidence):
            yield f"{rule.__name__}: {what}"


def _struck_long_ago(harness: Harness, end: ClientEnd, seconds: float) -> bool:
    faults = [
        action.at for action in harness.actions.all if action.what in ("fault", "kill_client") and action.at < end.at
    ]
    return any(end.at - at >= seconds for at in faults[-1:])


def _outlived(harness: Harness, end: ClientEnd) -> bool:
    """Whether the client's server, and the daemon of that, lived on after the client's end."""
    watch = harness.processes
    until = end.at + _apart(harness)
    lived_on = {
        process.pid: process
        for process in (*watch.living(Role.SERVER), *watch.living(Role.DAEMON), *watch.ended())
        if process.began < end.at and (process.ended is None or process.ended > until)
    }
    server = lived_on.get(end.server)
    return server is not None and server.parent in lived_on


def _apart(harness: Harness) -> float:
    """How far a time of the processes may be from another witness's."""
    return CLOCKS_SECONDS + harness.processes.longest_pause


def _ended(harness: Harness, role: Role) -> Iterable[MpsProcess]:
    known = time.time() - KNOWN_AFTER_SECONDS
    return [process for process in harness.processes.ended() if process.role is role and (process.ended or 0.0) < known]


def _hung(harness: Harness, process: MpsProcess) -> bool:
    return process.stopped_for + _apart(harness) >= RULES.hung_after


ALL: tuple[Rule, ...] = (
    observers_have_no_problem,
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


def broken(harness: Harness) -> list[str]:
    """What breaks a rule."""
    return [f"{rule.__name__}: {what}" for rule in ALL for what in rule(harness)]
