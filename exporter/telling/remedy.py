"""What a person can do, as commands for a shell. Every command for a control daemon that is shown is made here.

The reader is taken to be root, as for `systemctl`, `kill` and the service's socket. A daemon obeys root, whoever runs
it (measured, R580). Only who starts a daemon matters, since the daemon then belongs to that user.
"""

from collections.abc import Callable
from dataclasses import dataclass
from shlex import join, quote

from exporter.core.watchdog.orders import Mandate, Orders
from exporter.core.watchdog.restarting import start_environment
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.variables import PIPE_DIRECTORY
from exporter.model.watch import Watch
from exporter.model.witnesses import UnitState
from exporter.parse.systemd import is_service_name

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


def address_of(node: Node, name: str, orders: Orders | None = None) -> Address | None:
    """Return how a command reaches the daemon; None if it is not known, or in a container and without a process."""
    daemon = node.daemons.get(name)
    if daemon is None:
        return None
    program = PROGRAM if orders is None else orders.program
    if not _in_container(daemon):
        return Address(pipe_directory=daemon.pipe_directory, program=program)
    pid = None if daemon.runtime.process is None else daemon.runtime.process.pid
    if pid is None or pid <= 1:
        return None
    return Address(pipe_directory=daemon.pipe_directory, process=pid, own_pids=not daemon.runtime.in_foreign_namespace)


def command_to_end(pid: int) -> str | None:
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
    return command_to_tell(f"shutdown_server {server} -f", address)


def command_to_tell(command: str, address: Address | None, *, deadline: int | None = None) -> str | None:
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
    watch: Watch | None = None,
    mandate: Mandate | None = None,
    *,
    program: str = PROGRAM,
    unit: UnitState | None = None,
) -> tuple[str, ...]:
    """Return what starts a daemon: its unit, or else what the watchdog would run, as the daemon's own user.

    The same as what the watchdog does (`core/watchdog/restarting.py`). Empty if a container ran it, or if no line can
    be written. `unit` is what systemd last told of the unit. A daemon that was never seen may lack its directories.
    """
    watch, mandate = watch or Watch(), mandate or Mandate()
    name = mandate.unit or (None if mandate.command else daemon.declared.unit)
    if name is not None:
        return _unit_commands(name, unit)
    if _in_container(daemon):
        return ()
    process = daemon.runtime.process or watch.process
    uid = None if process is None else process.uid
    environment = start_environment(daemon, watch, mandate)
    variables = " ".join(f"{key}={quote(value)}" for key, value in environment.items() if value)
    line = f"{variables} {join(mandate.command or (program, '-d'))}"
    own = "" if uid in (None, 0) else f"sudo -u '#{uid}' "
    line = f"{own}env {line}" if own else line
    if not daemon.lifecycle.seen:
        directories = [each for each in (daemon.pipe_directory, daemon.log_directory) if each]
        line = f"{own}mkdir -p {join(directories)} && {line}"
    shown = _line(line)
    return () if shown is None else (shown,)


def start_of(node: Node, daemon: Daemon, orders: Orders | None) -> tuple[str, ...]:
    """Return what starts a daemon of the node, as far as the node and the `orders` tell."""
    watch = node.watches.get(daemon.name)
    if orders is None:
        return commands_to_start(daemon, watch)
    mandate = orders.mandate_of(daemon)
    unit = None if mandate.unit is None else node.units.get(mandate.unit)
    return commands_to_start(daemon, watch, mandate, program=orders.program, unit=unit)


def commands_to_stop(daemon: Daemon, mandate: Mandate | None = None, address: Address | None = None) -> tuple[str, ...]:
    """Return what stops a daemon, and with it its servers and clients."""
    name = (None if mandate is None else mandate.unit) or daemon.declared.unit
    if name is not None:
        return (f"systemctl stop {quote(name)}",) if is_service_name(name) else ()
    quits = command_to_tell("quit", address)
    return () if quits is None else (quits,)


def commands_to_renew(node: Node, daemon: Daemon, orders: Orders | None) -> tuple[str, ...]:
    """Return what ends a daemon that runs, with its clients, and starts another one in its place."""
    start = start_of(node, daemon, orders)
    if not start or start[-1].startswith("systemctl restart "):
        return start
    mandate = None if orders is None else orders.mandate_of(daemon)
    return (*commands_to_stop(daemon, mandate, address_of(node, daemon.name, orders)), *start)


def command_to_resume(daemon: str) -> str | None:
    """Return what lets the watchdog restart a daemon again; None if its name cannot be written in one line."""
    return _line(f"cuda-mps-exporter resume {'-- ' if daemon.startswith('-') else ''}{quote(daemon)}")


def words_to_resume(daemon: str) -> str:
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
    """Whether its path is a container's: such a daemon is named by its path and its place (`sources/finder.py`)."""
    return daemon.runtime.in_foreign_namespace or (
        daemon.discovered and daemon.name.startswith(f"{daemon.pipe_directory}@")
    )


def _line(text: str) -> str | None:
    """What a shell reads as one line, and a terminal shows as it is; else None."""
    return text if text.isprintable() and len(text) <= LONGEST_COMMAND else None
