"""Whether a control daemon that does not answer hangs: two commands in a row failed, and a second witness says so.

One slow answer is no diagnosis, nor are two: the machine may be busy.
"""

from exporter.core import life, process_states
from exporter.core.step import Step, quiet
from exporter.model.daemon import Daemon, DaemonState
from exporter.model.node import Node

PROBES = 2

PROBES_ALONE = 5
ALONE_SECONDS = 30.0
"""Where nobody else could tell, this many commands in so many seconds are enough."""

STARTING_SECONDS = 60.0
"""A daemon answers within 0.1 s of its start (measured, R580), and is found to hang within half of this time.

Whatever has neither answered nor been found to hang by then is not starting: its state is unknown.
"""


def settle(node: Node, daemon: Daemon, at: float) -> Step:
    """The daemon as it now is to be called."""
    since = daemon.unanswered_since
    if since is None or daemon.unanswered < PROBES or at - since < life.SECOND_PROBE_SECONDS:
        return quiet(daemon)
    if daemon.gone or not (_witnessed(node, daemon) or _long_enough(daemon, at - since)):
        return quiet(daemon)
    return life.enter(daemon, at, DaemonState.UNRESPONSIVE)


def _witnessed(node: Node, daemon: Daemon) -> bool:
    """Whether anything but the silence itself tells, and did so already when the last command was given.

    A daemon that is stopped writes nothing into its log, not even that somebody connects (measured, R580).
    """
    asked_at = daemon.unanswered_at
    if asked_at is None:
        return False
    hangs = any(state.at <= asked_at for state in process_states.hung(node, daemon))
    is_mute = daemon.log_followed and daemon.spoke_at is not None and daemon.spoke_at < asked_at
    is_deaf = daemon.listening is False and daemon.process is not None
    return hangs or is_mute or is_deaf


def _long_enough(daemon: Daemon, seconds: float) -> bool:
    """Whether silence alone must do: a log that can be read would have told."""
    return not daemon.log_followed and daemon.unanswered >= PROBES_ALONE and seconds >= ALONE_SECONDS


def start_overdue(daemon: Daemon, at: float) -> Step:
    """Make the state of a daemon unknown that has not answered for long after its start."""
    since = daemon.state_since
    if daemon.state is not DaemonState.STARTING or since is None or at - since <= STARTING_SECONDS:
        return quiet(daemon)
    return quiet(life.unasked(daemon, at))
