"""Commands that fix a problem, for the daemon they name."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from operator import itemgetter
from shlex import join, quote
from typing import Any

from exporter.model.action import ActionStep, DeletePod, EndProcess, RestartUnit, RunCommand
from exporter.model.daemon import Daemon, DaemonState, NamedBy
from exporter.model.dialect import is_given_as_arguments
from exporter.model.identity import JobManager, ProcessIdentity, Workload, WorkloadKind, identity_of
from exporter.model.incident import ClientDetails
from exporter.model.node import CollectorName, Node
from exporter.model.observation import DaemonProcess, GpuUuid, ProcessReading
from exporter.model.settings import PIPE_DIRECTORY
from exporter.model.values import frozen
from exporter.model.watchdog import Condition, Diagnosis, Quarantine, WatchdogPhase, WatchdogState
from exporter.parse.cgroup import parse_step
from exporter.parse.kernel_log import RESET, XIDS
from exporter.parse.printable import printable
from exporter.parse.units import is_service_name
from exporter.report.document import ManualStep
from exporter.report.problems import of_phase
from exporter.report.text import short_gpu
from exporter.state.devices import serves_gpu, usable_gpus
from exporter.state.processes import cgroup_of, client_id, pids_to_end, pod_of, pod_uid_of_daemon, workload_of
from exporter.view import gpu_name
from exporter.watchdog import restart
from exporter.watchdog.context import Policy

SUSPENDED = (WatchdogPhase.CIRCUIT_OPEN, WatchdogPhase.QUARANTINED, WatchdogPhase.STATE_LOST)
"""The watchdog does not act until an operator runs `resume`."""


def pause_answer(*, before: bool) -> Mapping[str, Any]:
    """Return what `pause` has done; `before` is whether the driver was paused already."""
    return {"message": f"{'already ' if before else ''}paused: the exporter has closed the driver until you resume it"}


def resume_answer(node: Node, *, before: bool) -> Mapping[str, Any]:
    """Return what `resume` without a name has done; `before` is whether the driver was paused.

    The exit code is 1 if nothing was paused. Daemons whose restarts are suspended need their names.
    """
    lines = ["resumed: the driver is in use again" if before else "nothing to resume: the driver was not paused"]
    suspended = [(name, watch.phase) for name, watch in sorted(node.watches.items()) if watch.phase in SUSPENDED]
    suspended = [each for each in suspended if each[0] in node.daemons]
    if suspended:
        lines.append("restarts are suspended; nothing was changed for:")
    for name, phase in suspended:
        lines.append(": ".join((f"  {printable(name)} ({of_phase(phase).label})", *commands_to_resume(name))))
    return {"message": "\n".join(lines), "exit_code": int(not before)}


def resume_daemon_answer(name: str, watch: WatchdogState) -> Mapping[str, Any]:
    """Return what `resume NAME` has done, with exit code 1 if that is nothing. `watch` is the state before."""
    shown = printable(name)
    if watch.phase in SUSPENDED:
        return {"message": f"resumed: {shown} may be restarted again"}
    if watch.restarts or watch.failures:
        return {"message": f"restarts of {shown} were not suspended; they are counted from 0 again"}
    return {"message": f"nothing to resume: restarts of {shown} were not suspended", "exit_code": 1}


PROGRAM = "nvidia-cuda-mps-control"

DOCTOR = "cuda-mps-exporter doctor"

MOST_GROUPED = 16
"""So many commands a step for several daemons or clients has at most."""

MOST_RERUN = 4
"""How many units, pods and jobs a step restarts at most."""

LONGEST_COMMAND = 4096
"""Longer commands are not shown: no terminal takes more in one line (N_TTY_BUF_SIZE)."""

MOST_PIDS = 500  # The largest PID has 7 digits (PID_MAX_LIMIT).

_START_LIMIT = "start-limit-hit"


@frozen
class Address:
    """How a command reaches a daemon: by its pipe directory, with this `program`.

    If the directory is in a container, `process` is a PID in its mount namespace. `ending` has the running processes
    whose end disconnects a client, by its id, and `server_ends` the commands that end the daemon's servers, by their
    PIDs. No command names another process.
    """

    pipe_directory: str
    program: str = PROGRAM
    process: int | None = None
    server_ends: Mapping[int, str] = field(default_factory=dict)
    ending: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def address_of(node: Node, name: str, policy: Policy | None = None) -> Address | None:
    """Return how a command reaches the daemon; None if it is not known, or in a container and without a process."""
    daemon = node.daemons.get(name)
    if daemon is None or daemon.has_lost_directory:
        return None
    address = Address(
        pipe_directory=daemon.pipe_directory,
        program=PROGRAM if policy is None else policy.program,
        server_ends={
            pid: command
            for pid, server in daemon.servers.items()
            if pid > 1 and (command := daemon.dialect.command_to_end(server, forced=True)) is not None
        },
        ending={
            client_id(client, node.processes.get(pid)): pids
            for pid, client in daemon.clients.items()
            if (pids := pids_to_end(node, pid)) or client.exited_at
        },
    )
    if not _in_container(daemon):
        return address
    pid = None if daemon.runtime.process is None else daemon.runtime.process.pid
    if pid is None or pid <= 1:
        return None
    # In another PID namespace, the daemon would understand other PIDs.
    ends = {} if daemon.runtime.in_foreign_namespace else address.server_ends
    return replace(address, program=PROGRAM, process=pid, server_ends=ends)


def known(*commands: str | None) -> tuple[str, ...]:
    """Return the commands that can be written."""
    return tuple(command for command in commands if command is not None)


def one_line(text: str) -> str | None:
    """Return the text if a shell reads it as one line and a terminal shows it unchanged; otherwise None."""
    return text if text.isprintable() and len(text) <= LONGEST_COMMAND else None


def signal(name: str, pids: Iterable[int]) -> str | None:
    """Return what sends a signal to processes; None if there are none."""
    words = tuple(map(str, pids))
    return f"kill -{name} {' '.join(words)}" if words else None


def as_user(uid: int | None) -> str:
    """Return what runs the rest of a line as another user than root."""
    return "" if uid in (None, 0) else f"sudo -u '#{uid}' "


def control_command(command: str, address: Address | None, *, deadline: int | None = None) -> str | None:
    """Return what gives a control daemon one of our own commands; None if no such line can be written.

    With a `deadline`, in seconds, the command ends by then whatever the daemon does.
    """
    if address is None:
        return None
    limited = [] if deadline is None else ["timeout", str(deadline)]
    words = [f"{PIPE_DIRECTORY}={quote(address.pipe_directory)}", *limited, quote(address.program)]
    if address.process is not None:
        words = ["nsenter", "-t", str(address.process), "-m", "--", "env", *words]
    if is_given_as_arguments(command):
        return one_line(f"{' '.join(words)} {command}")
    return one_line(f'echo "{command}" | {" ".join(words)}')


def lines_of(steps: Iterable[ActionStep]) -> tuple[str, ...]:
    """Return the lines that do the same as steps of the watchdog, except for its evidence.

    One line ends all processes. If the daemon ended first, servers that do not hang would end with it, and other
    processes could get their PIDs.
    """
    steps = tuple(steps)
    pids = (step.identity.pid for step in steps if isinstance(step, EndProcess))
    return known(signal("KILL", pids), *map(_line_of, steps))


def _line_of(step: ActionStep) -> str | None:
    match step:
        case RestartUnit(unit=unit) if is_service_name(unit):
            # `restart` also starts a unit that has ended, or that systemd considers active.
            return f"systemctl restart {quote(unit)}"
        case DeletePod(namespace=namespace, name=name):
            return one_line(join(("kubectl", "delete", "pod", "--namespace", namespace, name)))
        case RunCommand(arguments=arguments, environment=environment, uid=uid):
            sudo = as_user(uid)
            variables = " ".join(f"{key}={quote(value)}" for key, value in environment.items() if value)
            return one_line(f"{sudo}{'env ' if sudo else ''}{variables} {join(arguments)}")
        case _:
            return None


def command_to_kill(client: ClientDetails, address: Address | None) -> str | None:
    """Return what ends a client, or what holds its connection: SIGKILL. None if no process is known to run.

    An incident outlives its processes, and the exporter: another process can have the PID now.
    The command is a signal, not `terminate_client`: after that for a client that a fault affected, the control daemon
    does not answer until that client has ended by other means (measured, R580).
    """
    return None if address is None else signal("KILL", address.ending.get(client.client, ()))


def commands_to_kill(clients: Sequence[ClientDetails], address: Address | None) -> tuple[str, ...]:
    """Return what ends each of these clients. If there are many, one command ends as many as a line has room for."""
    if address is None or len(clients) <= MOST_GROUPED:
        return known(*(command_to_kill(each, address) for each in clients))
    pids = tuple(dict.fromkeys(pid for each in clients for pid in address.ending.get(each.client, ())))
    return known(*(signal("KILL", pids[first : first + MOST_PIDS]) for first in range(0, len(pids), MOST_PIDS)))


HOW_TO_END = (
    "Let its owner end it by its own means. A program that does not handle SIGTERM ends as by SIGKILL: if its kernel "
    "runs then, the other MPS clients on its GPU fault."
)
"""What to say with the command to end a client that may be busy (measured, R580: SIGKILL)."""


def command_to_end(node: Node, pid: int) -> str | None:
    """Return what asks a client to exit; None if its process is not known to run."""
    return signal("TERM", pids_to_end(node, pid))


_RERUN = {
    JobManager.SLURM: "scontrol requeue",
    JobManager.PBS: "qrerun",
    JobManager.TORQUE: "qrerun",
    JobManager.HTCONDOR: "condor_vacate_job",
    JobManager.LSF: "brequeue",
    JobManager.GRID_ENGINE: "qmod -rj",
}
"""What reruns a job. Flux has no such command."""


def step_to_rerun(node: Node, pids: Iterable[int], text: str) -> ManualStep:
    """Return how to restart the units, pods and jobs of processes, and how many MPS clients that ends.

    No command is shown for a process in a plain shell or an unnamed container, or in a place that others share.
    """
    places: dict[tuple[str, str, str], set[int]] = {}
    for pid in pids:
        if (found := _command_to_rerun(node, pid)) is not None:
            places.setdefault(found, set()).add(pid)
    ended: dict[str, set[int]] = {}
    for (command, place, name), own in sorted(places.items(), key=itemgetter(0)):
        there = _ended_with(node, {place: name}) if len(ended) < MOST_RERUN else None
        owners = {each and (workload_of(each), each.uid) for each in map(node.processes.get, own | (there or set()))}
        if there is not None and len(owners) == 1:
            ended[command] = own | there
    if not ended:
        return ManualStep(text=text)
    clients = {pid for daemon in node.daemons.values() for pid in daemon.clients}
    all_ended = set[int]().union(*ended.values())
    beside = f", {others} of them on GPUs without MPS" if (others := len(all_ended - clients)) else ""
    return ManualStep(
        text=f"{text} All of their processes end{beside}.",
        commands=tuple(ended),
        ends=len(all_ended & clients) if clients <= node.processes.keys() else None,
    )


def _command_to_rerun(node: Node, pid: int) -> tuple[str, str, str] | None:
    """Return the command, and the kind and the name of the place of which it ends all processes."""
    process, source = node.processes.get(pid), node.sources.get(CollectorName.PROCESS)
    if process is None:
        return None
    member, pod = cgroup_of(process), pod_of(node, process)
    match workload_of(process):
        case Workload(kind=WorkloadKind.POD, name=name) if pod is not None and parse_step(process.cgroup or "") is None:
            place, command = "pod_uid", _line_of(DeletePod(namespace=pod.namespace, name=pod.name, uid=pod.uid))
        case Workload(kind=WorkloadKind.JOB, name=name) if member.job_manager in _RERUN and name[:1].isdecimal():
            place, command = "job_id", f"{_RERUN[member.job_manager]} {quote(name)}"
        case Workload(kind=WorkloadKind.UNIT, name=name) if process.unit_users and is_service_name(name):
            place, command = "unit", "" if source and source.problems else f"systemctl restart {quote(name)}"
        case _:
            return None
    return (command, place, name) if command and one_line(command) else None


def _ended_with(node: Node, places: Mapping[str, str | None], daemon: Daemon | None = None) -> set[int] | None:
    """Return the processes on GPUs in a place, and the clients of this `daemon` and of those there; None if unknown."""

    def is_there(process: ProcessReading | DaemonProcess | None) -> bool:
        return any(name and getattr(cgroup_of(process), place) == name for place, name in places.items())

    daemons, gpus = node.daemons.values(), node.gpus.values()
    inside = [each for each in daemons if not each.ended and (each is daemon or is_there(each.runtime.last_process))]
    if not all(each.clients_known for each in inside):
        return None
    pids = set[int]().union(*(gpu.bypassing_processes for gpu in gpus), *(each.clients for each in daemons))
    return {pid for pid in pids if is_there(node.processes.get(pid))}.union(*(each.clients for each in inside))


def clients_beside(node: Node, daemon: Daemon, policy: Policy | None = None) -> int | None:
    """Return how many clients end with a daemon's unit or pod, its own included; None if that is unknown.

    The device plugin has a daemon for each resource in one pod.
    """
    unit = (policy or Policy()).daemon_policy_of(daemon).unit
    pod_uid = pod_uid_of_daemon(daemon, node.watches.get(daemon.name))
    ended = _ended_with(node, {"pod_uid": pod_uid, "unit": unit}, daemon)
    return None if ended is None else len(ended)


def command_to_set(variable: str, value: str) -> str | None:
    """Return what sets a variable for the programs that a shell starts."""
    return one_line(f"export {variable}={quote(value)}")


def last_log_lines(daemon: Daemon, first: str = "control.log") -> tuple[str, ...]:
    """Return what shows the last lines of a daemon's logs, of this file `first`; empty if it is unknown where they are.

    The paths of a daemon in a container are those of its root, as long as it runs.
    """
    if daemon.runtime.journal is not None:
        return known(one_line(f"journalctl -n 30 -u {quote(daemon.runtime.journal)}"))
    if not daemon.log_directory or (_in_container(daemon) and daemon.pid is None):
        return ()
    root = f"/proc/{daemon.pid}/root" if _in_container(daemon) else ""
    files = daemon.log.sizes or {"control.log", "server.log"}
    paths = [f"{root}{daemon.log_directory}/{file}" for file in sorted(files, key=lambda file: (file != first, file))]
    return known(one_line(f"tail -n 30 {join(paths)}"))


def is_living(node: Node, process: ProcessIdentity | None) -> bool:
    """Return whether this very process is known to run: by a reading of now, not from the state file."""
    if process is None or process.pid <= 1:
        return False
    holders = (daemon.commands.session_holder for daemon in node.daemons.values())
    daemons = (daemon.runtime.process for daemon in node.daemons.values())
    seen = (node.processes.get(process.pid), node.states.get(process.pid), *holders, *daemons)
    return any(identity_of(each) == process and not getattr(each, "ended", False) for each in seen)


def command_to_end_server(server: int, address: Address | None) -> str | None:
    """Return what ends a server that does not recover although its clients have exited. Nothing gentler did (R580).

    None if the daemon would understand another PID, would not create the server again, or cannot be reached.
    """
    command = None if address is None else address.server_ends.get(server)
    return None if command is None else control_command(command, address)


def commands_to_start(node: Node, daemon: Daemon, policy: Policy | None) -> tuple[str, ...]:
    """Return what starts a daemon, as the watchdog does: its unit, or else a command, as the daemon's own user.

    If a pod ran it, this deletes the pod, and the pod's controller creates another one. Empty if the pod's name is
    unknown, or if another container ran it. Also empty if Kubernetes declares it and no command is configured, if
    another daemon has its directory, or if no line can be written.
    """
    context = restart.context_of(node, daemon, policy or Policy(), at=node.at)
    steps = () if daemon.directory_taken else restart.steps_to_start(context)
    lines = lines_of(steps)
    match steps:
        case (RestartUnit(unit=unit),) if lines and context.unit is not None and context.unit.result == _START_LIMIT:
            return (f"systemctl reset-failed {quote(unit)}", *lines)
        case (RunCommand(),) if _in_container(daemon) or (
            daemon.declared.by in _BY_KUBERNETES and not context.daemon_policy.command
        ):
            return ()
        case (RunCommand(uid=uid),) if lines and (not daemon.lifecycle.ever_ran or daemon.has_lost_directory):
            # A daemon that never ran may lack its directories.
            directories = [each for each in (daemon.pipe_directory, daemon.log_directory) if each]
            return known(one_line(f"{as_user(uid)}mkdir -p {join(directories)} && {lines[0]}"))
    return lines


def step_to_start(node: Node, daemon: Daemon, policy: Policy | None, text: str) -> ManualStep:
    """Return the step that starts a daemon. Without its variables, it would have all GPUs of the node."""
    commands = commands_to_start(node, daemon, policy)
    context = restart.context_of(node, daemon, policy or Policy(), at=node.at)
    own = context.daemon_policy.unit or context.daemon_policy.command or context.watch.process
    if commands and own is None and not all(serves_gpu(node, daemon, each) for each in usable_gpus(node).values()):
        text = f"{text} {_UNKNOWN_GPUS}"
    return ManualStep(text=text, commands=commands)


_UNKNOWN_GPUS = (
    "The exporter does not know the daemon's GPUs. If they are only some of the node's, write "
    f"CUDA_VISIBLE_DEVICES=UUID,UUID with their UUIDs before `{PROGRAM}`."
)

_BY_KUBERNETES = (NamedBy.GKE, NamedBy.DRA, NamedBy.DEVICE_PLUGIN)


def commands_to_stop(node: Node, daemon: Daemon, policy: Policy | None) -> tuple[str, ...]:
    """Return what stops a daemon, with its servers and clients."""
    context = restart.context_of(node, daemon, policy or Policy(), at=node.at)
    unit, process = context.daemon_policy.unit or daemon.declared.unit, daemon.runtime.process
    if unit is not None and daemon.runtime.unit in (None, unit):
        return (f"systemctl stop {quote(unit)}",) if is_service_name(unit) else ()
    if process is not None and (daemon.has_lost_directory or daemon.state is DaemonState.UNRESPONSIVE):
        if not is_living(node, identity_of(process)):
            return ()
        if daemon.has_lost_directory:
            return (f"kill -TERM {process.pid}",)
        return lines_of(step for step in restart.steps_to_end(context) if is_living(node, step.identity))
    return known(control_command(daemon.dialect.quit_now, address_of(node, daemon.name, policy)))


def commands_to_restart(node: Node, daemon: Daemon, policy: Policy | None) -> tuple[str, ...]:
    """Return what ends a running daemon, with its clients, and starts it again. A unit or pod does both by itself."""
    start = commands_to_start(node, daemon, policy)
    context = restart.context_of(node, daemon, policy or Policy(), at=node.at)
    if not start or context.pod_uid is not None or (context.daemon_policy.unit is not None and context.ran_in_unit):
        return start
    return (*commands_to_stop(node, daemon, policy), *start)


def commands_to_resume(daemon: str) -> tuple[str, ...]:
    """Return what lets the watchdog restart a daemon again; empty if its name cannot be written in one line."""
    return known(one_line(f"cuda-mps-exporter resume {quote(daemon)}"))


def commands_to_signal(node: Node, diagnosis: Diagnosis | None) -> tuple[str, ...]:
    """Return what continues or ends the process of a diagnosis; empty if nothing helps, or it is not known to run."""
    if diagnosis is None or diagnosis.process is None or not is_living(node, diagnosis.process):
        return ()
    match diagnosis.condition:
        case Condition.SUSPENDED | Condition.SERVER_SUSPENDED:
            signal = "CONT"
        case Condition.HELD:
            signal = "TERM"
        case Condition.SERVER_UNRESPONSIVE:
            signal = "KILL"
        case _:
            return ()
    return (f"kill -{signal} {diagnosis.process.pid}",)


def _in_container(daemon: Daemon) -> bool:
    return daemon.runtime.in_foreign_namespace or daemon.is_apart


_UUID = re.compile(r"GPU-[0-9a-f-]{8,64}")


def gpu_text(node: Node, gpu: GpuUuid) -> str:
    """Name a GPU by its index, if that is known, and by its UUID."""
    index, uuid = printable(gpu_name(node, gpu)), short_gpu(gpu)
    return f"GPU {index}" if index == printable(gpu) else f"GPU {index} ({uuid})"


def needed(action: str) -> str:
    """Return what a GPU needs; `action` is NVIDIA's term."""
    return "a reset" if action == RESET else "a reboot of the machine"


def quarantine_cause(node: Node, quarantine: Quarantine) -> str:
    """Return the Xid of a quarantine and what the GPU needs."""
    meaning = XIDS.get(quarantine.xid)
    xid = f"Xid {quarantine.xid}" if meaning is None else f"Xid {quarantine.xid} ({meaning.meaning})"
    return f"{xid}: {gpu_text(node, quarantine.gpu)} needs {needed(quarantine.action)}"


def recovery_steps(
    node: Node, gpu: GpuUuid, action: str, daemon: Daemon | None = None, policy: Policy | None = None
) -> tuple[ManualStep, ...]:
    """Return the steps that recover a GPU, in order. Those that end a quarantine are only for a `daemon`."""
    steps = [ManualStep(text="Take the node out of scheduling, and let the work on its other GPUs end.")]
    if action == RESET:
        if daemon is None or not daemon.ended:
            stop = ManualStep(text="Stop MPS and every other process on that GPU.")
            if daemon is not None:
                stop = replace(stop, commands=commands_to_stop(node, daemon, policy))
                stop = replace(stop, ends=clients_beside(node, daemon, policy))
            steps.append(stop)
        reset = (f"nvidia-smi --gpu-reset -i {gpu}",) if _UUID.fullmatch(gpu) else ()
        steps += [
            ManualStep(text="Have the exporter release the driver.", commands=("cuda-mps-exporter pause",)),
            ManualStep(text=f"Reset {gpu_text(node, gpu)}. If that fails, reboot the machine.", commands=reset),
            ManualStep(text="Have the exporter open the driver again.", commands=("cuda-mps-exporter resume",)),
        ]
    else:
        daemons = node.daemons.values()
        ends = sum(len(each.clients) for each in daemons) if all(each.clients_known for each in daemons) else None
        steps.append(ManualStep(text="Reboot the machine.", commands=("systemctl reboot",), ends=ends))
    if daemon is not None:
        text = "End the quarantine: then the watchdog may restart the daemon again."
        steps += [
            step_to_start(node, daemon, policy, "Start the daemon, unless it runs again."),
            ManualStep(text=text, commands=commands_to_resume(daemon.name)),
        ]
    return tuple(steps)
