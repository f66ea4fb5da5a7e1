"""Namespaces: what a container must share with the daemon, and the exporter with the node."""

from collections.abc import Iterator

from exporter.doctor.checks.clients import beside_mps
from exporter.doctor.facts import INITIAL_PID_NAMESPACE, Area, DaemonFacts, Facts, ProcessFacts
from exporter.doctor.finding import Check, Found, Severity
from exporter.doctor.words import shown, who

_APART = "the exporter is in a PID namespace of its own: of processes outside it knows no user, command or end"


def shared_memory_differs(facts: Facts) -> Iterator[Found]:
    """A CUDA process that finds the daemon has another /dev/shm."""
    for each, process in _met(facts):
        ours, theirs = each.process.shared_memory, process.shared_memory
        if None not in (ours, theirs) and ours != theirs and process.pid not in facts.node.daemons[each.name].clients:
            yield Found(
                severity=Severity.WARNING,
                what="a process finds the daemon, and has another /dev/shm than it: MPS' server and its client meet "
                "there, so that the client hangs as it connects, or is refused",
                where=(who(process),),
                mend="Share the IPC namespace, or mount the daemon's /dev/shm: hostIPC: true in a pod",
                commands=("docker run --ipc=host …",),
            )


def pid_namespace_differs(facts: Facts) -> Iterator[Found]:
    """A client lives in a PID namespace into which its daemon cannot look."""
    for each, process in _met(facts):
        own = each.process.pid_namespaces[:1]
        if own and process.pid_namespaces and own[0] not in process.pid_namespaces:
            yield Found(
                severity=Severity.WARNING,
                what="a client is in a PID namespace that its daemon, in a container of its own, does not see: the "
                "daemon knows it as PID 0, and can neither name nor end it",
                where=(f"{who(process)}, of {shown(each.name)}",),
                mend="Run the daemon in the host's PID namespace: hostPID: true (with NVIDIA's device plugin, "
                "mps.enableHostPID), --pid=host",
            )


def exporter_pid_namespace(facts: Facts) -> Iterator[Found]:
    """The exporter is in a PID namespace of its own."""
    own = facts.watcher.pid_namespaces[:1]
    if not own or own[0] == INITIAL_PID_NAMESPACE:
        return
    unknown = len(_on_gpus(facts) - set(facts.processes))
    hidden = tuple(shown(name) for name in facts.directories if facts.hidden(name))
    told = [f"{unknown} that use GPUs are not to be seen"] if unknown else []
    told += ["whether a daemon runs cannot be told"] if hidden else []
    yield Found(
        severity=Severity.WARNING if told else Severity.ADVICE,
        what="; ".join((_APART, *told)),
        where=hidden,
        mend="Let it see the node's processes: hostPID: true in a pod; where all that matters is in this container, "
        "nothing is to be done",
        commands=("docker run --pid=host …",),
    )


def _met(facts: Facts) -> Iterator[tuple[DaemonFacts, ProcessFacts]]:
    """Processes that would find a daemon, or have found it."""
    for daemon, each in facts.running():
        for pid in (*daemon.clients, *daemon.connections.pending):
            if pid in facts.processes:
                yield each, facts.processes[pid]
    for _, each, process, _ in beside_mps(facts):
        if process.pipe is not None and process.pipe == each.process.pipe:
            yield each, process


def _on_gpus(facts: Facts) -> set[int]:
    readings = [gpu.reading for gpu in facts.node.gpus.values()]
    listed = {each.pid for reading in readings for each in (reading.compute_processes or ()) if each.pid > 0}
    return listed - {pid for daemon in facts.node.daemons.values() for pid in daemon.servers}


_NEEDS = (Area.GPUS, Area.DAEMONS, Area.PROCESSES)

CHECKS = (
    Check(
        shared_memory_differs,
        fine="clients share /dev/shm with their daemon",
        mend="`--ipc=host`, `hostIPC: true`",
        needs=_NEEDS,
    ),
    Check(
        pid_namespace_differs,
        fine="daemons see their clients' PIDs",
        mend="run the daemon in the host's PID namespace",
        needs=_NEEDS,
    ),
    Check(
        exporter_pid_namespace,
        fine="the exporter sees the node's processes",
        mend="`hostPID: true`",
        needs=(Area.RIGHTS,),
    ),
)
