"""Commands that fix a problem, for the daemon they name."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from shlex import join, quote
from typing import Any

from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import GpuUuid, UnitState
from exporter.model.settings import PIPE_DIRECTORY
from exporter.model.watchdog import Quarantine, WatchdogPhase, WatchdogState
from exporter.parse.printable import printable
from exporter.parse.unit_name import is_service_name
from exporter.parse.xid_catalogue import RESET, xid_meaning
from exporter.report.problems import of_watch_state
from exporter.report.text import short_gpu
from exporter.view import gpu_name
from exporter.watchdog.context import DaemonPolicy, Policy
from exporter.watchdog.restart import start_environment

_SUSPENDED = (WatchdogPhase.CIRCUIT_OPEN, WatchdogPhase.QUARANTINED, WatchdogPhase.STATE_LOST)


def pause_answer(*, before: bool) -> Mapping[str, Any]:
    """Return what `pause` has done; `before` is whether the driver was paused already."""
    return {"message": f"{'already ' if before else ''}paused: no handle on the driver is open until you say resume"}


def resume_answer(node: Node, *, before: bool) -> Mapping[str, Any]:
    """Return what `resume` without a name has done; `before` is whether the driver was paused.

    The exit code is 1 if nothing was paused and restarts of a daemon are suspended: these need their names.
    """
    suspended = list(_suspended(node))
    line_of = "resumed: the driver is in use again" if before else "the driver was not paused"
    lines = (line_of, *(["restarts are suspended; nothing was changed for:"] if suspended else []), *suspended)
    return {"message": "\n".join(lines), "exit_code": int(bool(suspended) and not before)}


def _suspended(node: Node) -> Iterable[str]:
    for name, watch in sorted(node.watches.items()):
        if watch.phase in _SUSPENDED and name in node.daemons:
            command = command_to_resume(name)
            how = "" if command is None else f": {command}"
            yield f"  {printable(name)} ({of_watch_state(watch.phase).label}){how}"


def resume_daemon_answer(name: str, watch: WatchdogState) -> Mapping[str, Any]:
    """Return what `resume NAME` has done, where the watchdog knew this of the daemon."""
    shown = printable(name)
    if watch.phase in _SUSPENDED:
        return {"message": f"resumed: {shown} may be restarted again"}
    if watch.restarts or watch.failures:
        return {"message": f"restarts of {shown} were not suspended; its restarts are counted from 0 again"}
    return {"message": f"restarts of {shown} were not suspended; nothing has changed"}


PROGRAM = "nvidia-cuda-mps-control"

DOCTOR = "cuda-mps-exporter doctor"

LONGEST_COMMAND = 4096
"""Longer commands are not shown: no terminal takes more in one line (N_TTY_BUF_SIZE)."""

_START_LIMIT = "start-limit-hit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """How a command reaches a daemon: by its pipe directory, with this `program`.

    If the directory is a container's, `process` is the PID whose mount namespace has it. `own_pids` says whether the
    daemon uses this machine's PIDs.
    """

    pipe_directory: str
    program: str = PROGRAM
    process: int | None = None
    own_pids: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualStep:
    """One of several things to do in order; `commands` do it."""

    text: str
    commands: tuple[str, ...] = ()


AddressOf = Callable[[str], Address | None]
"""Finds the address of a daemon by its name; None if no command reaches it."""


def address_of(node: Node, name: str, policy: Policy | None = None) -> Address | None:
    """Return how a command reaches the daemon; None if it is not known, or in a container and without a process."""
    daemon = node.daemons.get(name)
    if daemon is None:
        return None
    program = PROGRAM if policy is None else policy.program
    if not _in_container(daemon):
        return Address(pipe_directory=daemon.pipe_directory, program=program)
    pid = None if daemon.runtime.process is None else daemon.runtime.process.pid
    if pid is None or pid <= 1:
        return None
    return Address(pipe_directory=daemon.pipe_directory, process=pid, own_pids=not daemon.runtime.in_foreign_namespace)


def command_to_kill(pid: int) -> str | None:
    """Return what ends a client: SIGKILL. None without a PID here: `kill` takes a negative number for a group.

    MPS itself is not asked: after `terminate_client` for a client that a fault has hit, the control daemon does not
    answer until that client has ended by other means (measured, R580).
    """
    return None if pid <= 1 else f"kill -KILL {pid}"


def command_to_end_server(server: int, address: Address | None) -> str | None:
    """Return what ends a server that does not recover although its clients have left: nothing gentler did (R580).

    None if the daemon would understand another PID, or cannot be reached.
    """
    if server <= 1 or address is None or not address.own_pids:
        return None
    return control_command(f"shutdown_server {server} -f", address)


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
    return _line(f'echo "{command}" | {" ".join(words)}')


def commands_to_start(
    daemon: Daemon,
    watch: WatchdogState | None = None,
    daemon_policy: DaemonPolicy | None = None,
    *,
    program: str = PROGRAM,
    unit: UnitState | None = None,
) -> tuple[str, ...]:
    """Return what starts a daemon: its unit, or else what the watchdog would run, as the daemon's own user.

    The same as what the watchdog does (`watchdog/restart.py`). Empty if a container ran it, or if no line can
    be written. `unit` is what systemd last told of the unit. A daemon that was never seen may lack its directories.
    """
    watch, daemon_policy = watch or WatchdogState(), daemon_policy or DaemonPolicy()
    name = daemon_policy.unit or (None if daemon_policy.command else daemon.declared.unit)
    if name is not None:
        return _unit_commands(name, unit)
    if _in_container(daemon):
        return ()
    process = daemon.runtime.process or watch.process
    uid = None if process is None else process.uid
    environment = start_environment(daemon, watch, daemon_policy)
    variables = " ".join(f"{key}={quote(value)}" for key, value in environment.items() if value)
    line = f"{variables} {join(daemon_policy.command or (program, '-d'))}"
    own = "" if uid in (None, 0) else f"sudo -u '#{uid}' "
    line = f"{own}env {line}" if own else line
    if not daemon.lifecycle.ever_ran:
        directories = [each for each in (daemon.pipe_directory, daemon.log_directory) if each]
        line = f"{own}mkdir -p {join(directories)} && {line}"
    shown = _line(line)
    return () if shown is None else (shown,)


def start_commands_of(node: Node, daemon: Daemon, policy: Policy | None) -> tuple[str, ...]:
    """Return what starts a daemon of the node, as far as the node and the `policy` tell."""
    watch = node.watches.get(daemon.name)
    if policy is None:
        return commands_to_start(daemon, watch)
    daemon_policy = policy.daemon_policy_of(daemon)
    unit = None if daemon_policy.unit is None else node.units.get(daemon_policy.unit)
    return commands_to_start(daemon, watch, daemon_policy, program=policy.program, unit=unit)


def commands_to_stop(
    daemon: Daemon, daemon_policy: DaemonPolicy | None = None, address: Address | None = None
) -> tuple[str, ...]:
    """Return what stops a daemon, and with it its servers and clients."""
    name = (None if daemon_policy is None else daemon_policy.unit) or daemon.declared.unit
    if name is not None:
        return (f"systemctl stop {quote(name)}",) if is_service_name(name) else ()
    quits = control_command("quit", address)
    return () if quits is None else (quits,)


def commands_to_restart(node: Node, daemon: Daemon, policy: Policy | None) -> tuple[str, ...]:
    """Return what ends a daemon that runs, with its clients, and starts another one in its place."""
    start = start_commands_of(node, daemon, policy)
    if not start or start[-1].startswith("systemctl restart "):
        return start
    daemon_policy = None if policy is None else policy.daemon_policy_of(daemon)
    return (*commands_to_stop(daemon, daemon_policy, address_of(node, daemon.name, policy)), *start)


def command_to_resume(daemon: str) -> str | None:
    """Return what lets the watchdog restart a daemon again; None if its name cannot be written in one line."""
    return _line(f"cuda-mps-exporter resume {'-- ' if daemon.startswith('-') else ''}{quote(daemon)}")


def resume_text(daemon: str) -> str:
    """Return the same within a sentence."""
    command = command_to_resume(daemon)
    return "an operator resumes it" if command is None else f"`{command}`"


def _unit_commands(name: str, unit: UnitState | None) -> tuple[str, ...]:
    """`restart` also starts a unit that has ended, and one that systemd takes to run. A start limit comes first."""
    if not is_service_name(name):
        return ()
    limited = unit is not None and unit.result == _START_LIMIT
    first = (f"systemctl reset-failed {quote(name)}",) if limited else ()
    return (*first, f"systemctl restart {quote(name)}")


def _in_container(daemon: Daemon) -> bool:
    """Return whether the daemon runs in a container; `collectors/discovery.py` then adds its location to its name."""
    return daemon.runtime.in_foreign_namespace or (
        daemon.discovered and daemon.name.startswith(f"{daemon.pipe_directory}@")
    )


def _line(text: str) -> str | None:
    """What a shell reads as one line, and a terminal shows as it is; else None."""
    return text if text.isprintable() and len(text) <= LONGEST_COMMAND else None


_UUID = re.compile(r"GPU-[0-9a-f-]{8,64}")


def gpu_text(node: Node, gpu: GpuUuid) -> str:
    """Name a GPU by its index, if that is known, and by its UUID."""
    index, uuid = printable(gpu_name(node, gpu)), short_gpu(gpu)
    return f"GPU {index}" if index == printable(gpu) else f"GPU {index} ({uuid})"


def needed(action: str) -> str:
    """Return what a GPU needs, by NVIDIA's word for it."""
    return "a reset" if action == RESET else "a reboot of the machine"


def cause(node: Node, quarantine: Quarantine) -> str:
    """Return which Xid asks for what."""
    known = xid_meaning(quarantine.xid)
    told = f"Xid {quarantine.xid}" if known is None else f"Xid {quarantine.xid} ({known.meaning})"
    return f"{told}: {gpu_text(node, quarantine.gpu)} needs {needed(quarantine.action)}"


def steps(
    node: Node, gpu: GpuUuid, action: str, daemon: Daemon | None = None, policy: Policy | None = None
) -> tuple[ManualStep, ...]:
    """Return all that is to be done, in order. Without a `daemon`, what ends its quarantine is left out."""
    return tuple(_steps(node, gpu, action, daemon, policy))


def _steps(node: Node, gpu: GpuUuid, action: str, daemon: Daemon | None, policy: Policy | None) -> Iterable[ManualStep]:
    yield ManualStep(text="Take the node out of scheduling, and let the work on its other GPUs end.")
    if action == RESET:
        if daemon is None or not daemon.ended:
            text = "Stop the daemon, which ends its clients, and every other process on that GPU."
            yield ManualStep(text=text, commands=() if daemon is None else _stop(node, daemon, policy))
        yield ManualStep(text="Have the exporter release the driver.", commands=("cuda-mps-exporter pause",))
        reset = (f"nvidia-smi --gpu-reset -i {gpu}",) if _UUID.fullmatch(gpu) else ()
        yield ManualStep(text=f"Reset {gpu_text(node, gpu)}. If that fails, reboot the machine.", commands=reset)
        yield ManualStep(text="Have the exporter open the driver again.", commands=("cuda-mps-exporter resume",))
    else:
        yield ManualStep(text="Reboot the machine.", commands=("systemctl reboot",))
    if daemon is not None:
        yield ManualStep(
            text="Start the daemon, unless it runs again.", commands=start_commands_of(node, daemon, policy)
        )
        resume = command_to_resume(daemon.name)
        text = "End the quarantine: then the watchdog may restart the daemon again."
        yield ManualStep(text=text, commands=() if resume is None else (resume,))


def _stop(node: Node, daemon: Daemon, policy: Policy | None) -> tuple[str, ...]:
    daemon_policy = None if policy is None else policy.daemon_policy_of(daemon)
    return commands_to_stop(daemon, daemon_policy, address_of(node, daemon.name, policy))
