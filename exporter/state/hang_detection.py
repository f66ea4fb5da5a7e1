"""Hang detection: whether a daemon hangs, or the control program does."""

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import Node
from exporter.state import lifecycle, process_states
from exporter.state.process_states import probes
from exporter.state.transition import Transition, without_events

PROBES = 2
"""So many commands, and so many of the exporter's own connections, without an answer."""

PROBES_ALONE = 5
ALONE_SECONDS = 30.0
"""If there is no other witness, this many commands in so many seconds are enough."""

SAME_MOMENT_SECONDS = 0.1
"""A command that was given so soon before the first one failed was given after it."""

STARTING_SECONDS = 60.0
"""A daemon answers within 0.1 s of its start (measured, R580), and is found to hang within half of this time.

Whatever has neither answered nor been found to hang by then is not starting: its state is unknown.
"""


def resolve_pending(node: Node, daemon: Daemon, at: float) -> Transition:
    """Return the daemon with its state: it hangs, or it responds although commands get no answer."""
    if daemon.ended or not _unanswered(daemon, at):
        return without_events(daemon)
    if is_witnessed(node, daemon) or _long_enough(daemon, at) or _not_looked_at(daemon):
        return lifecycle.enter_state(daemon, at, DaemonState.UNRESPONSIVE)
    if program_hangs(daemon, at) and daemon.state is DaemonState.UNRESPONSIVE:
        return lifecycle.enter_state(daemon, at, DaemonState.UP)
    return without_events(daemon)


def is_established(node: Node, daemon: Daemon, at: float) -> bool:
    """Whether so much says that it hangs that it may be ended for it."""
    return _unanswered(daemon, at) and (is_witnessed(node, daemon) or _long_enough(daemon, at))


def program_hangs(daemon: Daemon, at: float) -> bool:
    """Whether commands get no answer, and the daemon answers connections: then the control program is at fault."""
    known = probes(daemon)
    return known is not None and known.answered and not daemon.ended and _unanswered(daemon, at)


def is_witnessed(node: Node, daemon: Daemon) -> bool:
    """Whether anything but the silence itself says so, and did so already when the last command was given."""
    asked_at, known = daemon.commands.unanswered_at, probes(daemon)
    if asked_at is None:
        return False
    if daemon.commands.listening is False and daemon.runtime.process is not None:
        return True
    if known is not None and known.unanswered >= PROBES:
        return True
    answered_at = known.answered_at if known is not None and known.answered else None
    states = process_states.hung(node, daemon)
    return any(state.at <= asked_at and (answered_at is None or answered_at < state.at) for state in states)


def _unanswered(daemon: Daemon, at: float) -> bool:
    since = daemon.commands.unanswered_since
    return since is not None and daemon.commands.unanswered >= PROBES and at - since >= lifecycle.SECOND_PROBE_SECONDS


def _long_enough(daemon: Daemon, at: float) -> bool:
    """Whether silence alone must do, as no connection could be made."""
    known, since = probes(daemon), daemon.commands.unanswered_since
    if since is None or (known is not None and known.answered):
        return False
    return daemon.commands.unanswered >= PROBES_ALONE and at - since >= ALONE_SECONDS


def _not_looked_at(daemon: Daemon) -> bool:
    """Whether nothing but commands is seen of the daemon, as in a recording by another program, and nothing answers.

    The second command was given after the first had failed.
    """
    since, asked_at = daemon.commands.unanswered_since, daemon.commands.unanswered_at
    if since is None or asked_at is None or probes(daemon) is not None:
        return False
    return asked_at >= since - SAME_MOMENT_SECONDS


def start_overdue(daemon: Daemon, at: float) -> Transition:
    """Make the state of a daemon unknown that has not answered for long after its start."""
    since = daemon.lifecycle.state_since
    if daemon.state is not DaemonState.STARTING or since is None or at - since <= STARTING_SECONDS:
        return without_events(daemon)
    return without_events(lifecycle.unasked(daemon, at))
