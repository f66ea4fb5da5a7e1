"""Problems of clients: full servers, memory, limits, slow neighbours, no way to a daemon, and bypassing processes."""

from collections.abc import Iterable
from functools import cache
from math import inf
from operator import add

from exporter.model.daemon import Daemon
from exporter.model.node import CollectorName, Node
from exporter.model.observation import DirectoryReading
from exporter.model.server import RefusalReason
from exporter.model.settings import PIPE_DIRECTORY, Mode
from exporter.parse.printable import printable
from exporter.parse.proc import MpsProgram, is_on_network, mps_program
from exporter.report.daemon_findings import FULL_RATIO
from exporter.report.document import ManualStep
from exporter.report.finding import MOST_COMMANDS, Finding
from exporter.report.problems import DaemonProblem, NodeProblem
from exporter.report.process_status import described
from exporter.report.reasons import reason_text
from exporter.report.remedy import (
    DOCTOR,
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
from exporter.state.devices import serves_gpu, usable_gpus
from exporter.state.gpus import used_bytes
from exporter.state.known_daemons import named_pids
from exporter.state.processes import workload_of
from exporter.usage.accounting import memory_by_workload
from exporter.usage.capacity import gpu_sharing
from exporter.view import View, clients_of, gpu_name
from exporter.watchdog.context import Policy
from exporter.watchdog.limit_enforcement import LimitStatus, check_limits

REFUSED_SECONDS = 60.0
"""For how long the alert of a refused client fires, if Prometheus scrapes every 15 s."""

LARGE_RATIO = 0.5
"""The part of a full GPU's memory above which a workload fills it."""


def full_servers(node: Node, at: float) -> Iterable[Finding]:
    """Yield each server without a free client slot, with its idle clients, and the other daemons that refused one."""
    full, sharing = set(), cache(lambda: gpu_sharing(node))
    for daemon, server in View(node).servers():
        clients, limit = clients_of(daemon, server), limits.clients_limit(node, daemon, server)
        if limit is None or len(clients) < limit:
            continue
        pids = {each.pid for each in clients}
        # A client on several GPUs is idle if it is so on each of them.
        uses = [each for gpu in sharing().values() for each in gpu.clients]
        states = {pid: {each.is_idle for each in uses if each.client.pid == pid} for pid in pids}
        held = {pid: sum(each.memory_used_bytes or 0 for each in uses if each.client.pid == pid) for pid in pids}
        found = sorted(pid for pid in pids if states[pid] == {True} and held[pid])
        facts = [f"{described(node, pid)} is idle and holds {mebibytes(held[pid])}" for pid in found]
        if unknown := sum(False not in state and state != {True} for state in states.values()):
            what = counted(unknown, "client is", "clients are")
            facts.append(
                f"it is unknown whether {what} idle, because their SM time in the last minute is unknown or uncertain"
            )
        elif not found:
            facts = ["no client is idle"]
        kills = known(*(command_to_end(node, pid) for pid in found[:MOST_COMMANDS]))
        full.add(daemon.name)
        yield Finding(
            NodeProblem.CLIENT_SLOTS_FULL,
            daemon=daemon.name,
            server=server.pid,
            values={"clients": str(len(clients)), "limit": str(limit)},
            affected=f"new clients; {daemon.totals.refused.get(RefusalReason.LIMIT, 0)} were refused so far",
            facts=tuple(facts),
            outlook="A slot becomes free when a client exits.",
            steps=(
                ManualStep(
                    text="End clients that are idle, or start new work later.", commands=kills, ends=len(kills) or None
                ),
            ),
        )
    for daemon in View(node).daemons():
        refused_at = daemon.connections.refused_at
        if refused_at is not None and at - refused_at < REFUSED_SECONDS and daemon.name not in full:
            yield Finding(NodeProblem.CLIENTS_REFUSED, since=refused_at, daemon=daemon.name)


def filled_memory(node: Node) -> Iterable[Finding]:
    """Yield GPUs with little free memory, most of which one of several workloads has, as the alert defines it."""
    for uuid, held in memory_by_workload(node).items():
        reading = node.gpus[uuid].reading
        used, total = reading.memory_used_bytes, reading.memory_total_bytes
        if used is None or not total or used / total <= FULL_RATIO or len(held) < 2:
            continue
        workload = max(held, key=lambda each: held[each])
        if held[workload] / total > LARGE_RATIO:
            values = {
                "gpu": printable(gpu_name(node, uuid)),
                "workload": workload_name(workload, node.pods),
                "part": percent(held[workload] / total),
                "free": mebibytes(max(0, total - used)),
            }
            order = sorted(used_bytes(reading).items(), key=lambda each: (-each[1], each[0]))
            facts = tuple(f"{described(node, pid)} holds {mebibytes(size)}" for pid, size in order)
            own = [pid for pid, _ in order if workload_of(node.processes.get(pid)) == workload]
            clients = {pid for each in node.daemons.values() for pid in each.clients}
            others = [pid for pid, _ in order if pid in clients and pid not in own]
            yield Finding(
                NodeProblem.WORKLOAD_FILLS_MEMORY,
                gpu=uuid,
                values=values,
                affected=counted(len(others), "client of another workload", "clients of other workloads"),
                affected_names=tuple(described(node, pid) for pid in others),
                facts=facts,
                steps=(
                    ManualStep(text=NodeProblem.WORKLOAD_FILLS_MEMORY.definition.remedy),
                    step_to_rerun(node, own, "If the others cannot wait, restart the workload."),
                ),
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
    bypassed = {pid: gpu.bypassing_processes[pid].daemon or "" for gpu in gpus.values() for pid in gpu.bypassing}
    daemons = [node.daemons[name] for name in dict.fromkeys(bypassed.values()) if name in node.daemons]
    # With a directory that was removed, or is another daemon's, a process would not reach the daemon.
    reachable = {each.name: each for each in daemons if not each.has_lost_directory}
    cause = DaemonProblem.DIRECTORY_LOST if len(reachable) < len(daemons) else DaemonProblem.DAEMON_DOWN
    follows = len(reachable) < len(daemons) or any(each.ended for each in daemons)
    remedy, steps = NodeProblem.PROCESS_BYPASSING.definition.remedy, list[ManualStep]()
    for daemon in list(reachable.values())[:MOST_COMMANDS]:
        those = [described(node, pid) for pid, name in bypassed.items() if name == daemon.name]
        text = remedy if len(daemons) == 1 else f"{remedy} These are {listed(those, MOST_NAMED)}."
        steps.append(ManualStep(text=text, commands=known(command_to_set(PIPE_DIRECTORY, daemon.pipe_directory))))
    restartable = [pid for pid, name in bypassed.items() if name in reachable]
    rerun = step_to_rerun(node, restartable, "If their units, pods or jobs set the variable, restart these.")
    yield Finding(
        NodeProblem.PROCESS_BYPASSING,
        since=min(since.values()),
        client=min(places) if len(places) == 1 else None,
        values={
            "gpu": ", ".join(printable(gpu_name(node, uuid)) for uuid in gpus),
            "processes": described(node, min(places))
            if len(places) == 1
            else counted(len(places), "process", "processes"),
        },
        affected=f"{counted(len(places), 'process', 'processes')} without limits, and the MPS clients of the same GPUs",
        affected_names=tuple(
            f"{described(node, pid)} on {', '.join(on)}, for {duration_text(at - since[pid])}"
            for pid, on in places.items()
        ),
        outlook="They do not change to MPS while they run.",
        follows=cause.definition.label if follows else None,
        steps=(
            ManualStep(text="Find out why they bypass MPS.", commands=(DOCTOR,)),
            *steps,
            *((rerun,) if rerun.commands else ()),
        ),
    )


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
            settable = [check.command for check in drifted if check.command][:MOST_COMMANDS]
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
                steps=(
                    ManualStep(
                        text="Set the limit again.",
                        commands=known(*(control_command(command, address) for command in settable)),
                        ends=0,
                    ),
                ),
            )


SETTLED_SECONDS = 10.0
"""After this time, the daemon of a client or server is known, and NVML lists no clients of a daemon that ended."""

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
            yield Finding(NodeProblem.MPS_WITHOUT_DAEMON, values=values, facts=processes)


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
        end = ManualStep(
            text=f"End the daemon. {start}",
            commands=commands,
            ends=clients_beside(node, daemon, policy) if commands else None,
        )
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
