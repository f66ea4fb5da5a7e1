"""Hangs: a daemon whose commands get no answer is unresponsive, or held by another process, or the program hangs."""

from exporter.model.daemon import Daemon, DaemonState
from exporter.model.event import Step
from exporter.model.node import Node
from exporter.state import lifecycle, processes
from exporter.state.processes import probes

PROBES = 2  # Commands, and connections of the exporter itself, without an answer that indicate a hang.

PROBES_ALONE = 5
ALONE_SECONDS = 30.0
"""Without any other indication, this many unanswered commands in this time confirm a hang."""

SAME_MOMENT_SECONDS = 0.1
"""A command that was sent at most this long before the first one failed counts as sent after it."""


def resolve_hang(step: Step, node: Node, at: float) -> None:
    """Change the daemon to unresponsive, to held by another process, or to up if only the control program hangs."""
    daemon = step.daemon
    if daemon.ended or daemon.has_lost_directory or not _unanswered(daemon, at):
        return
    known = probes(daemon)
    others = False if known is None else known.others
    since, asked_at = daemon.commands.unanswered_since, daemon.commands.unanswered_at
    # If only commands were collected, as by another recorder, two in sequence without an answer suffice.
    in_sequence = since is not None and asked_at is not None and asked_at >= since - SAME_MOMENT_SECONDS
    confirmed = is_established(node, daemon, at) or (known is None and in_sequence)
    if confirmed or others is None or (not others and _long_enough(daemon, at)):
        lifecycle.enter_state(step, at, DaemonState.UNRESPONSIVE)
    elif others:
        lifecycle.enter_state(step, at, DaemonState.HELD)
    elif program_hangs(daemon, at) and daemon.state is DaemonState.UNRESPONSIVE:
        lifecycle.enter_state(step, at, DaemonState.UP)


def is_established(node: Node, daemon: Daemon, at: float) -> bool:
    """Return whether the indications of a hang suffice to end the daemon.

    Any user can connect to a daemon and send nothing. Then neither commands nor the exporter's own connections get an
    answer (measured, R580), so both count only if it is known that no other process is connected. A recording may have
    commands alone.
    """
    no_connections = probes(daemon) is None and _long_enough(daemon, at)
    return _unanswered(daemon, at) and (_is_confirmed(node, daemon) or no_connections)


def program_hangs(daemon: Daemon, at: float) -> bool:
    """Return whether commands get no answer but connections do: then the control program is at fault."""
    known = probes(daemon)
    return known is not None and known.answered and not daemon.ended and _unanswered(daemon, at)


def _is_confirmed(node: Node, daemon: Daemon) -> bool:
    """Return whether another indication confirms the hang, and existed when the last command was sent."""
    asked_at, known = daemon.commands.unanswered_at, probes(daemon)
    if asked_at is None:
        return False
    if daemon.commands.listening is False and daemon.runtime.process is not None:
        return True
    if known is not None and known.unanswered >= PROBES:
        return True
    answered_at = known.answered_at if known is not None and known.answered else None
    of_servers = (processes.state_of_server(node, pid) for pid in daemon.servers)
    states = (processes.state_of_daemon(node, daemon), *of_servers)
    return any(
        (processes.is_suspended(state) or processes.is_stuck(state))
        and state.at <= asked_at
        and (answered_at is None or answered_at < state.at)
        for state in states
        if state is not None
    )


def _unanswered(daemon: Daemon, at: float) -> bool:
    since = daemon.commands.unanswered_since
    return since is not None and daemon.commands.unanswered >= PROBES and at - since >= lifecycle.SECOND_PROBE_SECONDS


def _long_enough(daemon: Daemon, at: float) -> bool:
    """Return whether commands get no answer for so long that the daemon is unresponsive, whatever the reason."""
    known, since = probes(daemon), daemon.commands.unanswered_since
    if since is None or (known is not None and known.answered):
        return False
    return daemon.commands.unanswered >= PROBES_ALONE and at - since >= ALONE_SECONDS
