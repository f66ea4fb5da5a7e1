"""How the processes of MPS stand with the scheduler: which of them were stopped, or sleep and cannot be woken."""

from collections.abc import Iterable, Iterator

from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.observation import ProcessExit
from exporter.model.replace import replace
from exporter.model.witnesses import ProcessState

_SUSPENDED = frozenset("Tt")
"""By a signal, or by a debugger (proc_pid_stat(5))."""

_STUCK = frozenset("D")


def state_read(node: Node, seen: ProcessState) -> Node:
    """A process was looked at. What has not changed is as old as it was: its time is since when."""
    known = node.states.get(seen.pid)
    if known is not None and known.start_ticks == seen.start_ticks:
        ended = known.children_page_faults is not None and known.children_page_faults != seen.children_page_faults
        ended_at = seen.at if ended else known.child_ended_at
        if known.state == seen.state:
            seen = replace(known, children_page_faults=seen.children_page_faults, child_ended_at=ended_at)
        else:
            seen = replace(seen, child_ended_at=ended_at)
    return node if seen == known else replace(node, states={**node.states, seen.pid: seen})


def exited(node: Node, seen: ProcessExit) -> Node:
    """A process has gone."""
    known = node.states.get(seen.pid)
    if known is None or known.start_ticks != seen.start_ticks:
        return node
    return replace(node, states={pid: state for pid, state in node.states.items() if pid != seen.pid})


def forget(node: Node, wanted: frozenset[int]) -> Node:
    """Let go of all but these."""
    if node.states.keys() <= wanted:
        return node
    return replace(node, states={pid: state for pid, state in node.states.items() if pid in wanted})


def of_daemon(node: Node, daemon: Daemon) -> ProcessState | None:
    """How the control daemon itself stands; None where that is not known."""
    process = daemon.runtime.process
    state = None if process is None or process.pid is None else node.states.get(process.pid)
    return state if process is not None and state is not None and state.start_ticks == process.start_ticks else None


def of_server(node: Node, pid: int) -> ProcessState | None:
    """How a server stands; None where that is not known, or the PID was another process's then."""
    state, process = node.states.get(pid), node.processes.get(pid)
    return None if state is None or (process and process.start_ticks != state.start_ticks) else state


def is_suspended(state: ProcessState | None) -> bool:
    """Whether it was stopped, and may be made to go on."""
    return state is not None and state.state in _SUSPENDED


def is_stuck(state: ProcessState | None) -> bool:
    """Whether it sleeps in the kernel, where no signal reaches it; for a moment everybody does."""
    return state is not None and state.state in _STUCK


def hung(node: Node, daemon: Daemon) -> Iterator[ProcessState]:
    """The control daemon and those of its servers that were stopped, or sleep and cannot be woken."""
    states: Iterable[ProcessState | None] = (of_daemon(node, daemon), *(of_server(node, pid) for pid in daemon.servers))
    return (each for each in states if each is not None and (is_suspended(each) or is_stuck(each)))


def askable(node: Node, server: int) -> bool:
    """Whether the daemon can be asked about a server: one that was stopped would hang it for everybody (R580)."""
    return not is_suspended(of_server(node, server))
