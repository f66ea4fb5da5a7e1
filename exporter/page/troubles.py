"""What is the matter with the node, the gravest first, and what to do about each."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from exporter.core.watchdog.drift import Demand, Standing, demands
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.incident import Incident
from exporter.model.server import ServerState
from exporter.model.watch import Watch, WatchState
from exporter.page.daemons import level_of
from exporter.page.level import Level
from exporter.page.sight import Sight
from exporter.parse.printable import LONGEST_PROBLEM, printable
from exporter.telling.moment import lasting
from exporter.telling.remedy import command_to_end, command_to_end_server, command_to_tell
from exporter.telling.short import counted
from exporter.telling.verdict import verdict
from exporter.telling.watchdog_text import plight
from exporter.view import View, clients_limit, clients_of, directory_of, gpu_name

MOST_COMMANDS = 4

_SEE_WHY, _DOCTOR = "this tells what that needs", "cuda-mps-exporter doctor"

_REFUSES = (WatchState.CIRCUIT_OPEN, WatchState.QUARANTINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something that is the matter: `next` is what to do, or that nothing need be done; `commands` do it."""

    level: Level
    what: str
    next: str
    commands: tuple[str, ...] = ()


def troubles(sight: Sight) -> tuple[Trouble, ...]:
    """All of them. Where the exporter itself stands still, nothing else that it knows is current."""
    if sight.stood_still is not None:
        return (_standing_still(sight.stood_still),)
    if not sight.node.sources:
        return (Trouble(level=Level.UNKNOWN, what="nothing has been seen yet", next="wait some seconds"),)
    found = [
        *_faults(sight),
        *_daemons(sight),
        *_demands(sight),
        *_full(sight),
        *_beside(sight),
        *_limits(sight),
        *_unseen(sight),
    ]
    return tuple(sorted(found, key=lambda each: -each.level.rank))


def _standing_still(seconds: float) -> Trouble:
    return Trouble(
        level=Level.GRAVE,
        what=f"the exporter has stood still for {lasting(seconds)}, so that nothing below is current",
        next="restart it",
        commands=("systemctl restart cuda-mps-exporter",),
    )


def _faults(sight: Sight) -> Iterable[Trouble]:
    """Those that somebody can end first."""
    open_ones = [each for each in sight.node.incidents.values() if each.open]
    yield from (_fault(sight, each) for each in sorted(open_ones, key=lambda each: not (each.blockers or each.stuck)))
    told = {(each.daemon, each.server) for each in open_ones}
    for daemon, server in View(sight.node).servers():
        if server.state is ServerState.FAULT and (daemon.name, server.pid) not in told:
            where = f"server {server.pid} of {printable(daemon.name)}"
            yield Trouble(level=Level.GRAVE, what=f"{where} is in FAULT", next="see below who is on it")


def _fault(sight: Sight, incident: Incident) -> Trouble:
    blockers = tuple(incident.blockers)
    commands = [command_to_end(pid) for pid in blockers]
    if incident.stuck:
        held = ", though all of its clients have gone"
        commands = [command_to_end_server(incident.server, directory_of(sight.node, incident.daemon))]
    else:
        held = f", held up by {counted(len(blockers), 'client')}" if blockers else ""
    since = lasting(max(0.0, sight.at - incident.started_at))
    where = f"server {incident.server} of {printable(incident.daemon)}"
    return Trouble(
        level=Level.GRAVE,
        what=f"{where} has been in FAULT for {since}{held}; suspected: {verdict(incident)}",
        next=_against_fault(incident),
        commands=tuple(each for each in commands if each is not None)[:MOST_COMMANDS],
    )


def _against_fault(incident: Incident) -> str:
    if incident.stuck:
        return "nobody can use it until it is ended; the daemon starts another"
    if incident.blockers:
        return "nobody else can use it until these have exited; end them"
    return "wait: its clients are being ended"


def _daemons(sight: Sight) -> Iterable[Trouble]:
    for daemon in View(sight.node).daemons():
        watch = sight.node.watches.get(daemon.name, Watch())
        level = level_of(daemon)
        if level is not Level.WELL:
            yield _not_up(sight, daemon, watch, level)
        elif watch.state in _REFUSES:
            yield _left_alone(sight, daemon)
        elif daemon.waiting:
            yield _waiting(daemon)


def _not_up(sight: Sight, daemon: Daemon, watch: Watch, level: Level) -> Trouble:
    name, found = printable(daemon.name), plight(sight.node, daemon)
    since = "" if daemon.state_since is None else f" for {lasting(max(0.0, sight.at - daemon.state_since))}"
    told = f"{daemon.state or 'in a state not known'}{since}" if found is None else found.matter
    commands = _brings_back(sight, daemon, watch)
    by_hand = "; this does it by hand" if commands and watch.state is WatchState.IDLE else ""
    says = _unless_watched(daemon) if found is None or found.says is None else f"the watchdog {_speaking(found.says)}"
    return Trouble(level=level, what=f"daemon {name}: {told}", next=f"{says}{by_hand}", commands=commands)


def _speaking(says: str) -> str:
    return f"only observes; it {says}" if says.startswith("would ") else f"says: {says}"


def _unless_watched(daemon: Daemon) -> str:
    match daemon.state:
        case DaemonState.HELD:
            return "whoever has nvidia-cuda-mps-control open there must close it"
        case DaemonState.STARTING | None:
            return "wait some seconds"
        case _:
            return "start it again" if daemon.expected else "nobody expects it: nothing, unless you miss it"


def _brings_back(sight: Sight, daemon: Daemon, watch: Watch) -> tuple[str, ...]:
    """What starts one that is gone, as far as it is known how; while the watchdog is at it, nobody else need be."""
    if sight.orders is None or not daemon.expected or not daemon.gone:
        return ()
    if watch.state in _REFUSES:
        return (_resume(daemon),)
    mandate = sight.orders.mandate_of(daemon)
    if watch.state is not WatchState.IDLE:
        return ()
    if mandate.unit is not None:
        return (f"systemctl restart {shlex.quote(printable(mandate.unit))}",)
    return (printable(shlex.join(mandate.command), LONGEST_PROBLEM),) if mandate.command else ()


def _left_alone(sight: Sight, daemon: Daemon) -> Trouble:
    found = plight(sight.node, daemon)
    return Trouble(
        level=Level.CARE,
        what=f"daemon {printable(daemon.name)} answers, but would not be restarted any more",
        next="find out why it needed that, then resume" if found is None or found.says is None else found.says,
        commands=(_resume(daemon),),
    )


def _resume(daemon: Daemon) -> str:
    return f"cuda-mps-exporter resume {shlex.quote(printable(daemon.name))}"


def _waiting(daemon: Daemon) -> Trouble:
    return Trouble(
        level=Level.CARE,
        what=f"{counted(len(daemon.waiting), 'client')} of another user must wait at {printable(daemon.name)}",
        next="nothing, unless it lasts: the present user's last client has to leave first",
    )


def _demands(sight: Sight) -> Iterable[Trouble]:
    for gpu, demand in sight.node.xids.demands.items():
        yield Trouble(
            level=Level.GRAVE,
            what=f"GPU {printable(gpu_name(sight.node, gpu))} needs {printable(demand.action)}, as its last Xid says",
            next="drain it, and do that: restarting MPS does not mend it",
        )


def _full(sight: Sight) -> Iterable[Trouble]:
    taken = (
        (daemon, server, len(clients_of(daemon, server)), clients_limit(daemon, server))
        for daemon, server in View(sight.node).servers()
    )
    found = [
        f"server {server.pid} of {printable(daemon.name)} has {clients} of {limit} clients"
        for daemon, server, clients, limit in taken
        if limit is not None and clients >= limit
    ]
    if found:
        more = f", and {counted(len(found) - 1, 'other')} as many as they take" if len(found) > 1 else ""
        yield Trouble(
            level=Level.CARE,
            what=f"{found[0]}{more}: whoever comes next is turned away",
            next="end clients that nobody needs, or have newcomers wait",
        )


def _beside(sight: Sight) -> Iterable[Trouble]:
    on = {uuid: gpu.bypassing for uuid, gpu in sight.node.gpus.items() if gpu.bypassing}
    if on:
        processes = len({pid for pids in on.values() for pid in pids})
        runs = "process runs" if processes == 1 else "processes run"
        where = ", ".join(f"GPU {printable(gpu_name(sight.node, uuid))}" for uuid in on)
        yield Trouble(
            level=Level.CARE,
            what=f"{processes} {runs} beside MPS on {where}: without limits, and taking turns with all others",
            next="whoever owns it has it start again where the daemon's pipe directory is set",
        )


def _limits(sight: Sight) -> Iterable[Trouble]:
    for daemon in View(sight.node).daemons():
        watch = sight.node.watches.get(daemon.name)
        if watch is None or watch.wanted is None or not daemon.answers:
            continue
        drifted = [each for each in demands(daemon, watch.wanted, sight.at) if each.standing is Standing.DRIFTED]
        if drifted:
            yield _drifted(sight, daemon, drifted)


def _drifted(sight: Sight, daemon: Daemon, drifted: Sequence[Demand]) -> Trouble:
    directory = directory_of(sight.node, daemon.name)
    commands = (command_to_tell(each.command, directory) for each in drifted[:MOST_COMMANDS])
    return Trouble(
        level=Level.CARE,
        what=f"{counted(len(drifted), 'limit')} not in force at {printable(daemon.name)}: {drifted[0].words}",
        next="the watchdog sets what it may; by hand, this does",
        commands=tuple(each for each in commands if each is not None),
    )


def _unseen(sight: Sight) -> Iterable[Trouble]:
    if sight.paused:
        yield Trouble(
            level=Level.CARE,
            what="the driver was let go of, so that nothing is known of the GPUs",
            next="when the work on them is done, resume",
            commands=("cuda-mps-exporter resume",),
        )
    for name, source in sorted(sight.node.sources.items()):
        problem = source.last.problem
        if problem is not None and not (sight.paused and problem == "paused"):
            yield _blind(f"{printable(name)}: {printable(problem, LONGEST_PROBLEM)}")
    for uuid, gpu in sight.node.gpus.items():
        if gpu.reading.problem is not None and not sight.paused:
            name = printable(gpu_name(sight.node, uuid))
            yield _blind(f"GPU {name}: {printable(gpu.reading.problem, LONGEST_PROBLEM)}")
    for daemon in View(sight.node).daemons():
        for file, problem in sorted(daemon.log_problems.items()):
            if problem is not None and daemon.state is DaemonState.UP:
                yield _blind(f"log of {printable(daemon.name)}: {printable(problem or file, LONGEST_PROBLEM)}")


def _blind(what: str) -> Trouble:
    return Trouble(level=Level.CARE, what=f"not all can be seen: {what}", next=_SEE_WHY, commands=(_DOCTOR,))
