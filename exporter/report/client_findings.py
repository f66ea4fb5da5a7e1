"""Problems of clients: full servers, memory, limits, slow neighbours, no way to a daemon, and bypassing processes."""

from collections.abc import Iterable, Sequence
from math import inf
from operator import add

from exporter.model.daemon import Daemon
from exporter.model.event import EventName
from exporter.model.node import CollectorName, Node
from exporter.model.observation import DirectoryReading
from exporter.model.server import Client, RefusalReason, Server
from exporter.model.settings import PIPE_DIRECTORY, Mode
from exporter.parse.printable import printable
from exporter.parse.proc import MpsProgram, is_on_network, mps_program
from exporter.report.document import ManualStep
from exporter.report.finding import COUNTED_SECONDS, MOST_COMMANDS, SETTLED_SECONDS, Finding, observed, with_most
from exporter.report.incident_findings import PAGED_SECONDS
from exporter.report.problems import DaemonProblem, NodeProblem
from exporter.report.process_status import described
from exporter.report.reasons import reason_text
from exporter.report.remedy import (
    DOCTOR,
    HOW_TO_END,
    MOST_GROUPED,
    address_of,
    clients_beside,
    command_to_end,
    command_to_set,
    commands_to_restart,
    commands_to_stop,
    control_command,
    known,
    step_to_rerun,
)
from exporter.report.sharing_text import MOST_NAMED
from exporter.report.text import counted, duration_text, listed, mebibytes, percent, workload_name
from exporter.report.watchdog_text import OBSERVES
from exporter.state import limits
from exporter.state.devices import device_count, serves_all_gpus_of, serves_gpu, usable_gpus
from exporter.state.gpus import used_bytes
from exporter.state.known_daemons import named_pids
from exporter.state.processes import workload_of
from exporter.usage.capacity import CONTEXT_BYTES
from exporter.usage.lasting import filled_gpus
from exporter.view import View, clients_of, gpu_name, memory_by_process
from exporter.watchdog.context import Policy
from exporter.watchdog.limit_enforcement import LimitStatus, check_limits

DEATH_SECONDS = 86400.0
"""For how long after a daemon's death the processes that bypass it are more urgent, as the alert defines it."""


def full_servers(view: View, at: float) -> Iterable[Finding]:
    """Yield each server without a free client slot, with its clients, and the other daemons that refused one."""
    full, node, held = set[str](), view.node, memory_by_process(view.node)
    slots, text = dict[str, str](), NodeProblem.CLIENT_SLOTS_FULL.definition.remedy
    for daemon, server in view.servers():
        limit, (clients, where) = limits.device_limit(node, daemon, server), _on_fullest_gpu(view, daemon, server)
        slots[daemon.name] = f"{len(clients)} of {'an unknown number of' if limit is None else limit}{where}"
        if limit is None or len(clients) < limit:
            continue
        pids, most = {each.pid for each in clients}, 0 if full else MOST_LISTED
        # A client on several GPUs is idle if it is so on each of them.
        states = {pid: set[bool | None]() for pid in pids}
        for each in (each for gpu in view.sharing.values() for each in gpu.clients if each.client.pid in pids):
            states[each.client.pid].add(each.is_idle)
        memory = {pid: sum(held[pid].values()) if pid in held else None for pid in pids}
        idle = {pid for pid in pids if states[pid] == {True} and memory[pid]}
        order = sorted(pids, key=lambda pid: (pid not in idle, False in states[pid], -(memory[pid] or 0), pid))
        facts = [_held(node, at, pid, memory[pid], idle=pid in idle) for pid in order[:most]]
        facts += [f"the table lists {len(order) - most} more"] if len(order) > most > 0 else []
        if unknown := sum(False not in state and state != {True} for state in states.values()):
            what = counted(unknown, "client is", "clients are")
            why = "because their SM time in the last minute is unknown or uncertain"
            facts.insert(0, f"it is unknown whether {what} idle, {why}")
        elif not idle:
            facts.insert(0, "no client is idle")
        kills = known(*(command_to_end(node, pid) for pid in order[: min(len(idle), MOST_COMMANDS)]))
        full.add(daemon.name)
        yield Finding(
            NodeProblem.CLIENT_SLOTS_FULL,
            since=observed(node, max(each.connected_at for each in clients)),
            daemon=daemon.name,
            server=server.pid,
            values={"clients": str(len(clients)), "limit": f"{limit}{where}"},
            affected=f"new clients; {daemon.totals.refused.get(RefusalReason.LIMIT, 0)} were refused so far",
            facts=tuple(facts),
            outlook="A slot becomes free when a client exits.",
            steps=(ManualStep(text=text if kills else _ASK_OWNERS, commands=kills, ends=len(kills) or None),),
        )
    for daemon in view.daemons():
        refused_at = daemon.connections.refused_at
        if refused_at is not None and at - refused_at < COUNTED_SECONDS and daemon.name not in full:
            values = {"slots": slots[daemon.name]} if daemon.name in slots else {}
            yield Finding(NodeProblem.CLIENTS_REFUSED, since=refused_at, daemon=daemon.name, values=values)


def _on_fullest_gpu(view: View, daemon: Daemon, server: Server) -> tuple[Sequence[Client], str]:
    """Return the clients of a server, of several GPUs those on the one that has most of them, and its name."""
    if device_count(view.node, daemon) <= 1:
        return clients_of(daemon, server), ""
    own = (daemon.name, server.pid)
    on = {
        uuid: [each.client for each in gpu.clients if (each.daemon, each.client.server) == own]
        for uuid, gpu in view.sharing.items()
    }
    fullest = max(on, key=lambda uuid: len(on[uuid]), default=None)
    return ((), "") if fullest is None else (on[fullest], f" on GPU {printable(gpu_name(view.node, fullest))}")


MOST_LISTED = 6
"""So many clients of the first full server are facts, first those that are idle or hold most. The table has all."""

_ASK_OWNERS = "Ask the owners which of the clients can end, or start new work later."
"""What to do if no idle client is known."""


def _held(node: Node, at: float, pid: int, held: int | None, *, idle: bool) -> str:
    """Return how much memory a client holds, and how old its process is."""
    memory = "an unknown amount of memory" if held is None else mebibytes(held)
    context = ", no more than a context needs" if held is not None and held <= CONTEXT_BYTES else ""
    age = f"; it started {duration_text(at - process.started)} ago" if (process := node.processes.get(pid)) else ""
    return f"{described(node, pid)} {'is idle and ' if idle else ''}holds {memory}{context}{age}"


def filled_memory(node: Node) -> Iterable[Finding]:
    """Yield GPUs with little free memory, most of which one of several workloads has, as the alert defines it."""
    for uuid, (workload, size) in filled_gpus(node).items():
        reading, begun = node.gpus[uuid].reading, node.lasting.get((EventName.MEMORY_FILLED, uuid, None))
        total = reading.memory_total_bytes or size
        values = {
            "gpu": printable(gpu_name(node, uuid)),
            "workload": workload_name(workload, node.pods),
            "part": percent(size / total),
            "free": mebibytes(max(0, total - (reading.memory_used_bytes or 0))),
        }
        order = sorted(used_bytes(reading).items(), key=lambda each: (-each[1], each[0]))
        own = [pid for pid, _ in order if workload_of(node.processes.get(pid)) == workload]
        clients = {pid for each in node.daemons.values() for pid in each.clients}
        others = [pid for pid, _ in order if pid in clients and pid not in own]
        restart = step_to_rerun(node, own, "If the others cannot wait, restart the workload.")
        if not restart.commands:
            kill = known(command_to_end(node, own[0]))
            text = f"If the others cannot wait, end the workload's largest client. {HOW_TO_END}"
            restart = ManualStep(text=text, commands=kill, ends=len(kill) or None)
        yield Finding(
            NodeProblem.WORKLOAD_FILLS_MEMORY,
            since=observed(node, begun.at if begun else None),
            gpu=uuid,
            values=values,
            affected=counted(len(others), "client of another workload", "clients of other workloads"),
            affected_names=tuple(described(node, pid) for pid in others),
            facts=tuple(f"{described(node, pid)} holds {mebibytes(size)}" for pid, size in order),
            steps=(ManualStep(text=NodeProblem.WORKLOAD_FILLS_MEMORY.definition.remedy), restart),
        )


_FIND_OUT = ManualStep(text="Find out why they bypass MPS.", commands=(DOCTOR,))
_MORE_GPUS = (
    "No daemon has all GPUs of {}. A client sees only its daemon's GPUs: start such a process on GPUs of one daemon."
)


def bypassing(node: Node, at: float) -> Iterable[Finding]:
    """Yield one problem for all processes that bypass MPS."""
    gpus = {uuid: gpu for uuid, gpu in node.gpus.items() if gpu.bypassing}
    if not gpus:
        return
    places: dict[int, list[str]] = {}
    since: dict[int, float] = {}
    for uuid, gpu in gpus.items():
        for pid in sorted(gpu.bypassing):
            size, seen = used_bytes(gpu.reading).get(pid), gpu.bypassing_processes[pid].first_seen
            held = "" if size is None else f" ({mebibytes(size)})"
            places.setdefault(pid, []).append(f"GPU {printable(gpu_name(node, uuid))}{held}")
            since[pid] = min(seen, since.get(pid, seen))
    bypassed = {(pid, gpu.bypassing_processes[pid].daemon) for gpu in gpus.values() for pid in gpu.bypassing}
    daemons = [each for name, each in node.daemons.items() if any(name == bypassing for _, bypassing in bypassed)]
    # With a directory that was removed, or is another daemon's, a process would not reach the daemon.
    reachable = [each for each in daemons if not each.has_lost_directory]
    cause = DaemonProblem.DIRECTORY_LOST if len(reachable) < len(daemons) else DaemonProblem.DAEMON_DOWN
    follows = len(reachable) < len(daemons) or any(each.ended for each in daemons)
    remedy, steps, restartable = NodeProblem.PROCESS_BYPASSING.definition.remedy, [_FIND_OUT], set[int]()
    near = {each.name: [pid for pid in places if (pid, each.name) in bypassed] for each in reachable}
    for daemon in reachable:
        those = [pid for pid in near[daemon.name] if serves_all_gpus_of(node, daemon, pid)]
        restartable.update(those)
        if those and len(steps) <= MOST_COMMANDS:
            these = f" These are {listed([described(node, pid) for pid in those], MOST_NAMED)}."
            text = remedy if near == {daemon.name: those} else f"{remedy}{these}"
            steps.append(ManualStep(text=text, commands=known(command_to_set(PIPE_DIRECTORY, daemon.pipe_directory))))
    if others := {pid for pids in near.values() for pid in pids} - restartable:
        names = listed([described(node, pid) for pid in sorted(others)], MOST_NAMED)
        steps.append(ManualStep(text=_MORE_GPUS.format(names)))
    rerun = step_to_rerun(node, restartable, "If their units, pods or jobs set the variable, restart these.")
    steps += [rerun] if rerun.commands else []
    after_death = any(_died_briefly(each, at) for each in daemons)
    count, alone = counted(len(places), "process", "processes"), min(places) if len(places) == 1 else None
    numbers = ", ".join(printable(gpu_name(node, uuid)) for uuid in gpus)
    yield Finding(
        NodeProblem.PROCESS_BYPASSING_AFTER_DEATH if after_death else NodeProblem.PROCESS_BYPASSING,
        since=observed(node, min(since.values())),
        client=alone,
        values={"gpu": numbers, "processes": count if alone is None else described(node, alone)},
        affected=f"{count} without limits, and the MPS clients of the same GPUs",
        affected_names=tuple(
            f"{described(node, pid)} on {', '.join(on)}, for {duration_text(at - since[pid])}"
            for pid, on in places.items()
        ),
        outlook="They do not change to MPS while they run.",
        follows=cause.definition.label if follows else None,
        steps=tuple(steps),
    )


def _died_briefly(daemon: Daemon, at: float) -> bool:
    """Return whether a daemon died within a day and was back before its alert paged."""
    process, lost_at = daemon.runtime.process, daemon.lifecycle.last_loss_at
    if process is None or process.started is None or lost_at is None:
        return False
    return at - lost_at < DEATH_SECONDS and process.started - lost_at <= PAGED_SECONDS


def drifted_limits(node: Node, at: float, policy: Policy | None) -> Iterable[Finding]:
    """Yield one problem for all limits of a daemon that differ from the configuration."""
    for daemon in View(node).daemons():
        watch = node.watches.get(daemon.name)
        if watch is None or watch.wanted_limits is None or not daemon.answers:
            continue
        drifted = [each for each in check_limits(daemon, watch.wanted_limits, at) if each.status is LimitStatus.DRIFTED]
        if drifted:
            address = address_of(node, daemon.name, policy)
            texts = [
                f"{reason_text(each.reason)} {'for new servers' if each.server is None else f'on server {each.server}'}"
                for each in drifted
            ]
            drifts = [watch.enforcement.drifts.get(each.command) for each in drifted]
            times = [None if each is None else each.since for each in drifts]
            lasting = ["" if each is None else f", for {duration_text(at - each)}" for each in times]
            more = f", and {len(drifted) - 1} more" if len(drifted) > 1 else ""
            settable = [check.command for check in drifted if check.command]
            commands = known(*(control_command(command, address) for command in settable))
            acts = settable and policy is not None and policy.mode_of(daemon) is Mode.ACT
            servers = {each.server for each in drifted}
            clients = sorted(client.pid for client in daemon.clients.values() if client.server in servers)
            will = "The watchdog sets it again." if acts else f"The watchdog will not set it again: {OBSERVES}."
            yield Finding(
                NodeProblem.LIMITS_DRIFTED,
                since=min((each for each in times if each is not None), default=None),
                daemon=daemon.name,
                server=drifted[0].server,
                values={"limits": f"{texts[0]}{more}"},
                affected=counted(len(clients), "client") if clients else "new clients",
                affected_names=tuple(described(node, pid) for pid in clients),
                facts=tuple(map(add, texts, lasting)),
                outlook="" if policy is None else will,
                steps=(with_most(ManualStep(text="Set the limit again.", commands=commands, ends=0), MOST_GROUPED),),
            )


LISTED_SECONDS = 600.0  # After this time, a daemon has listed a client of its own (`PollIntervals.lists`, twice).


def mps_without_daemon(node: Node, at: float) -> Iterable[Finding]:
    """Yield the GPUs with MPS clients in NVML, or with a server, for which no daemon is known that may have them."""
    search = node.sources.get(CollectorName.DISCOVERY)
    if search is None or search.problems:
        return
    known = set().union(*(named_pids(each) for each in node.daemons.values()))
    for uuid, reading in usable_gpus(node).items():
        daemons = [each for each in node.daemons.values() if serves_gpu(node, each, reading) is not False]
        if reading.problem is not None or not all(_has_settled(each, at) for each in daemons):
            continue
        since = dict(node.gpus[uuid].mps_since)
        for process in (node.processes.get(each.pid) for each in reading.compute_processes or ()):
            is_server = process is not None and mps_program(process.executable) is MpsProgram.SERVER
            if process and (is_server or since.get(process.pid, inf) - (node.began_at or at) < SETTLED_SECONDS):
                since[process.pid] = process.started  # It may be older than the first reading.
        wait = SETTLED_SECONDS if all(each.ended for each in daemons) else LISTED_SECONDS
        latest = min(at - wait, search.last.at - search.last.seconds)
        pids = [pid for pid, began in sorted(since.items()) if began <= latest and pid not in known]
        if pids:
            values = {"gpu": printable(gpu_name(node, uuid))}
            processes = tuple(described(node, pid) for pid in pids)
            first = observed(node, min(node.gpus[uuid].mps_since.get(pid, since[pid]) for pid in pids))
            yield Finding(NodeProblem.MPS_WITHOUT_DAEMON, since=first, values=values, facts=processes)


def _has_settled(daemon: Daemon, at: float) -> bool:
    """Return whether all clients of a daemon are known, or it has ended so long ago that NVML lists none."""
    since, runtime = daemon.lifecycle.state_since, daemon.runtime
    has_pids = runtime.process is not None and not runtime.in_foreign_namespace
    hidden = any(server.has_hidden_pids for server in daemon.servers.values())
    known = daemon.answers and daemon.clients_known and has_pids and not hidden
    return (daemon.ended or known) and (since is None or at - since >= SETTLED_SECONDS)


def lost_directories(node: Node, policy: Policy | None) -> Iterable[Finding]:
    """Yield the daemons that new clients do not reach: the pipe directory was removed, or is another daemon's."""
    for daemon in View(node).present():
        directory, taken = daemon.runtime.directory, daemon.directory_taken
        if directory is None or not daemon.has_lost_directory:
            continue
        commands = (commands_to_stop if taken else commands_to_restart)(node, daemon, policy) if daemon.pid else ()
        wait = f"{'Change no file there. ' if taken else ''}Wait until its clients have ended."
        start = "Start it with a directory that only this node has." if taken else "Start it again if it is needed."
        ends = clients_beside(node, daemon, policy) if commands else None
        end = ManualStep(text=f"End the daemon. {start}", commands=commands, ends=ends)
        yield Finding(
            DaemonProblem.DIRECTORY_LOST,
            since=daemon.lifecycle.state_since,
            daemon=daemon.name,
            values={"how": "is another daemon's" if taken else "was removed"},
            affected="new clients",
            facts=(_holder(directory),) if taken else (),
            steps=(ManualStep(text=wait), end) if daemon.pid else (ManualStep(text=start),),
        )


def _holder(directory: DirectoryReading) -> str:
    if directory.other is not None:
        return f"the other daemon is PID {directory.other} on this machine; new clients use it"
    kind = f" ({printable(directory.file_system or '')})" if is_on_network(directory.file_system) else ""
    return (
        f"the other daemon has ended, or nodes share the directory{kind}, and it runs on another node; the PID file "
        f"has PID {directory.pid}, and no process here listens on the socket"
    )
