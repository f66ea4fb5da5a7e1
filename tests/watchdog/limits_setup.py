"""A daemon whose limits are enforced, with the events and actions that follow from observations."""

from dataclasses import replace

from exporter.model.action import Action, GiveCommand
from exporter.model.event import Event, EventName
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.settings import Limits, Mode
from exporter.model.watchdog import WatchdogState
from exporter.watchdog import limit_enforcement
from tests.builders import AT, DAEMON, daemon_process, node, reduced, reply, server_log, servers

GIB = 1 << 30
ALL = Limits(active_thread_percentage=40.0, pinned_memory={0: 2 * GIB}, client_priority=1)
MEMORY = Limits(pinned_memory={0: 2 * GIB})
SET_MEMORY = "set_default_device_pinned_mem_limit 0 2G"


def start_block(share: float = 40.0, memory: int | None = 2 * GIB, priority: int = 0) -> tuple[str, ...]:
    """Return the lines that a server logs when it starts (R580)."""
    limit = () if memory is None else (f"Device pinned memory limit for device 0 set to {memory:#x} bytes",)
    return (
        f"Active Threads Percentage set to {share}",
        *limit,
        f"Server Priority set to {priority}",
        "Server has started",
    )


def defaults(share: float = 40.0, memory: str = "2G", priority: int = 1, *, at: float = AT) -> tuple[Observation, ...]:
    """Return replies with the default limits of the daemon."""
    return (
        reply("get_default_active_thread_percentage", f"{share}\n", at=at),
        reply("get_default_device_pinned_mem_limit 0", f"{memory}\n" if memory else "", at=at),
        reply("get_default_client_priority", f"{priority}\n", at=at),
    )


def up(*pids: int, at: float = AT, process: int = 441) -> tuple[Observation, ...]:
    """Return a daemon with this PID that answers, with these servers."""
    return (daemon_process(process, at=at), servers(*pids, at=at))


def server(pid: int, *told_by_it: str, at: float = AT) -> tuple[Observation, ...]:
    """Return a server that logs these lines."""
    return (servers(pid, at=at), *server_log(*told_by_it, server=pid, at=at))


class LimitedDaemon:
    """A node with one daemon, evaluated after each observation. `events` and `actions` are in their order."""

    def __init__(self, configured: Limits, mode: Mode = Mode.ACT, watch: WatchdogState | None = None) -> None:
        self.configured = configured
        self.mode = mode
        self.watch = watch or WatchdogState()
        self.node: Node = node()
        self.events: list[Event] = []
        self.actions: list[Action] = []

    def observe(self, *seen: Observation, at: float | None = None) -> list[str]:
        """Reduce these observations and evaluate. Return the commands that set limits."""
        self.node = reduced(*seen, start=self.node).node
        return self.evaluate(self.node.at if at is None else at)

    def evaluate(self, at: float) -> list[str]:
        """Evaluate at a time without an observation."""
        daemon = self.node.daemons[DAEMON]
        self.watch, events, action = limit_enforcement.enforce(
            self.node, daemon, self.watch, self.configured, self.mode, at
        )
        self.node = replace(self.node, at=at, watches={DAEMON: self.watch})
        self.events += events
        if action is not None:
            self.actions.append(action)
        return [] if action is None else [each for each in commands_of(action) if each.startswith("set_")]

    def of(self, name: EventName) -> list[Event]:
        return [event for event in self.events if event.event is name]


def commands_of(action: Action) -> list[str]:
    assert all(isinstance(step, GiveCommand) for step in action.steps)
    return [step.command for step in action.steps if isinstance(step, GiveCommand)]
