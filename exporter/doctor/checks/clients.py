"""Checks of CUDA processes, namespaces and containers."""

from collections.abc import Iterator

from exporter.doctor.facts import INITIAL_PID_NAMESPACE, TEMPORARY, Area, DaemonFacts, Facts, ProcessFacts
from exporter.doctor.finding import Check, Found, Severity, found
from exporter.doctor.words import gpu_name, quoted, restart_commands, shown, who, with_everybodys_tmp
from exporter.model.daemon import Daemon
from exporter.model.settings import DEFAULT_PIPE_DIRECTORY, PIPE_DIRECTORY
from exporter.report.problem import FindingCode
from exporter.state.gpus import serving_daemon

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
        for pid in (*daemon.clients, *daemon.connections.queued):
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

CONTAINERS_CHECKS = (
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


def pipe_directory_differs(facts: Facts) -> Iterator[Found]:
    """A CUDA process looks for its daemon in another directory than that of its GPU's daemon."""
    for daemon, each, process, gpu in beside_mps(facts):
        if process.pipe_directory == each.process.pipe_directory or process.pipe == each.process.pipe:
            continue
        named = PIPE_DIRECTORY in (process.variables or {})
        where_it_looks = shown(process.pipe_directory) if named else f"{DEFAULT_PIPE_DIRECTORY}, as it is told nothing"
        yield Found(
            severity=Severity.ERROR,
            what=f"a process bypasses MPS, since it looks for its daemon in {where_it_looks}; that of {gpu} is in "
            f"{shown(each.process.pipe_directory)}",
            where=(who(process),),
            mend=f"Give it the daemon's directory, in its {_home(process)}, and start it again",
            commands=(f"{PIPE_DIRECTORY}={quoted(daemon.pipe_directory)}",),
        )


def private_tmp(facts: Facts) -> Iterator[Found]:
    """A CUDA process has a /tmp of its own, so that the daemon's directory is another there."""
    for _, each, process, gpu in beside_mps(facts):
        path = process.pipe_directory
        if not _hidden(each, process) or not path.startswith(TEMPORARY) or process.container is not None:
            continue
        unit = f"its unit {shown(process.unit)}" if process.unit is not None else "it"
        yield Found(
            severity=Severity.ERROR,
            what=f"a process bypasses MPS, since {unit} has a {path.split('/')[1]} of its own (PrivateTmp=): "
            f"{shown(path)} is not that of the daemon of {gpu} there",
            where=(who(process),),
            mend="Move the daemon out of /tmp, with CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps for it and its clients; or "
            "let the unit have everybody's /tmp, and start it again",
            commands=(with_everybodys_tmp(process.unit),) if process.unit else (),
        )


def container_without_directory(facts: Facts) -> Iterator[Found]:
    """A CUDA process in a container does not see the daemon's directory."""
    for _, each, process, gpu in beside_mps(facts):
        path = process.pipe_directory
        if not _hidden(each, process) or (path.startswith(TEMPORARY) and process.container is None):
            continue
        mine, theirs = quoted(each.process.pipe_directory), quoted(path)
        yield Found(
            severity=Severity.ERROR,
            what=f"a process bypasses MPS, since the directory of the daemon of {gpu} is not {shown(path)} where it "
            "is: its container has another one there, or none",
            where=(f"{who(process)}, container {shown(process.container or 'unknown')[:12]}",),
            mend="Mount the daemon's directory into the container, with its /dev/shm, and start it again",
            commands=(f"docker run --ipc=host -v {mine}:{theirs} -e {PIPE_DIRECTORY}={theirs} …",),
        )


def process_beside_mps(facts: Facts) -> Iterator[Found]:
    """A CUDA process would find the daemon, and bypasses it all the same."""
    for daemon, each, process, gpu in beside_mps(facts):
        if process.pipe is not None and process.pipe == each.process.pipe and not _of_another(daemon, process):
            yield found(
                FindingCode.PROCESS_BYPASSING,
                detail=f"On {gpu}, a process has the daemon's directory: it started while no daemon ran.",
                where=(who(process),),
                fix="To make such a process fail instead, set the compute mode to EXCLUSIVE_PROCESS.",
            )


def daemon_of_another_user(facts: Facts) -> Iterator[Found]:
    """A CUDA process meets a daemon that serves its own user alone."""
    for daemon, _, process, gpu in beside_mps(facts):
        if _of_another(daemon, process):
            owner = None if daemon.runtime.process is None else daemon.runtime.process.uid
            yield Found(
                severity=Severity.ERROR,
                what=f"a process bypasses MPS: the daemon of {gpu} is an ordinary user's (UID {owner}), and serves "
                "that user alone",
                where=(who(process),),
                mend="Run the daemon as root, by its unit, where several users share the GPU",
                commands=("systemctl enable --now nvidia-cuda-mps",),
            )


def users_wait(facts: Facts) -> Iterator[Found]:
    """Users wait for each other, since the daemon serves one at a time."""
    for daemon, each in facts.running():
        waiting = [pid for pid in facts.waiting.get(daemon.name, ()) if pid not in daemon.clients]
        if not waiting or each.for_all_users or not daemon.clients:
            continue
        yield found(
            FindingCode.CLIENTS_WAITING,
            where=tuple(who(facts.processes[pid]) for pid in waiting),
            commands=restart_commands(facts, daemon, option="-multiuser-server"),
        )


def beside_mps(facts: Facts) -> Iterator[tuple[Daemon, DaemonFacts, ProcessFacts, str]]:
    """Who runs beside MPS, as far as it may be looked into, with the daemon that runs for that GPU, and its name."""
    for gpu in facts.node.gpus.values():
        daemon = serving_daemon(facts.node, gpu.reading)
        running = facts.daemons_of(daemon.name) if daemon is not None else ()
        for pid in gpu.bypassing if running else ():
            process = facts.processes.get(pid)
            looked_into = process is not None and process.variables is not None and running[0].process.pipe is not None
            if daemon is not None and process is not None and looked_into:
                yield daemon, running[0], process, gpu_name(gpu)


def _hidden(each: DaemonFacts, process: ProcessFacts) -> bool:
    """Whether the path is the daemon's, and leads to another directory, or to none, from where the process stands."""
    return process.pipe_directory == each.process.pipe_directory and process.pipe != each.process.pipe


def _of_another(daemon: Daemon, process: ProcessFacts) -> bool:
    """Whether the daemon may serve one user alone, and this is somebody else."""
    owner = None if daemon.runtime.process is None else daemon.runtime.process.uid
    return bool(owner) and process.uid not in (None, owner)


def _home(process: ProcessFacts) -> str:
    if process.container is not None:
        return "container or pod"
    return "environment" if process.unit is None else f"unit {shown(process.unit)} (Environment=)"


CHECKS = (
    Check(
        pipe_directory_differs,
        fine="CUDA processes look for their daemon where it is",
        mend="give them the daemon's `CUDA_MPS_PIPE_DIRECTORY`",
        needs=_NEEDS,
    ),
    Check(
        private_tmp,
        fine="no CUDA process has a /tmp of its own in between",
        mend="a directory in /run; or `PrivateTmp=no` in its unit",
        needs=_NEEDS,
        doc="docs/systemd.md",
    ),
    Check(
        container_without_directory,
        fine="containers see the daemon's directory",
        mend="mount it, and share /dev/shm",
        needs=_NEEDS,
    ),
    Check(
        process_beside_mps,
        fine="no process that would find the daemon bypasses MPS",
        code=FindingCode.PROCESS_BYPASSING,
        needs=_NEEDS,
    ),
    Check(
        daemon_of_another_user,
        fine="daemons serve whoever is on their GPUs",
        mend="run the daemon as root",
        needs=_NEEDS,
    ),
    Check(
        users_wait,
        fine="no user waits for another",
        code=FindingCode.CLIENTS_WAITING,
        needs=(Area.DAEMONS,),
    ),
)
