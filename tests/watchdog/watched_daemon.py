"""A daemon with a watchdog. Tests provide the observations and the time; events and actions are recorded."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from exporter.model.action import Action
from exporter.model.daemon import Daemon
from exporter.model.event import Event, EventName
from exporter.model.node import Node
from exporter.model.observation import (
    ActionDone,
    ControlSocket,
    DaemonProcess,
    LogFile,
    Observation,
    ProcessState,
    Resumed,
    SessionHolder,
    UnitState,
)
from exporter.model.reason import Reason
from exporter.model.settings import AllowedAction, Mode, Thresholds
from exporter.model.values import build, plain
from exporter.model.watchdog import Condition, Diagnosis, WatchdogState
from exporter.reducer import reduce
from exporter.watchdog.context import DaemonPolicy, Policy
from exporter.watchdog.evaluation import evaluate
from tests.builders import (
    AT,
    CONTROL,
    DAEMON,
    SERVER,
    at_work,
    control_log,
    daemon_process,
    exited,
    look,
    node,
    probe,
    process,
    servers,
    silence,
)

COMMAND = ("nvidia-cuda-mps-control", "-d")
UNIT = "nvidia-cuda-mps.service"
BY_COMMAND = DaemonPolicy(command=COMMAND)
BY_UNIT = DaemonPolicy(unit=UNIT)
NEXT = 900
"""PID of the next daemon."""

DEATH = AT + 10

NOTHING: frozenset[AllowedAction] = frozenset()
KILL = frozenset({AllowedAction.KILL_CLIENTS})
SHUT_DOWN = KILL | {AllowedAction.SHUT_DOWN_SERVER}
ALL_STEPS = SHUT_DOWN | {AllowedAction.RESTART_DAEMON}
HUNG = frozenset({AllowedAction.END_HUNG_SERVER})
"""Sets of permitted actions."""


def alive(*clients: int, at: float = AT) -> tuple[Observation, ...]:
    """Return a daemon with a followed log, a server and these clients, with all processes known."""
    return (
        daemon_process(at=at),
        LogFile(at=at, daemon=DAEMON, file="control.log"),
        *at_work(*clients, at=at),
        process(SERVER, at=at, uid=0, user="root", command="nvidia-cuda-mps", parent=CONTROL),
        *(process(pid, at=at) for pid in clients),
    )


def dies(at: float = DEATH, pid: int = CONTROL) -> tuple[Observation, ...]:
    """Return the exit of the daemon's process, without a quit in the log. Its directory cannot show how it ended."""
    return exited(pid, at=at), daemon_process(None, at=at), look("log", at=at + 0.5)


def returns(at: float, pid: int = NEXT) -> tuple[Observation, ...]:
    """Return another daemon that answers."""
    return daemon_process(pid, at=at), *at_work(at=at)


def quits(at: float = DEATH) -> tuple[Observation, ...]:
    """An operator's `quit` ends it, which removes the pid file."""
    return (*control_log("NEW UI", "Cmd:quit", at=at), exited(CONTROL, at=at), daemon_process(None, left=False, at=at))


def suspended(pid: int = CONTROL, *, at: float = DEATH, state: str = "T") -> ProcessState:
    return ProcessState(at=at, pid=pid, start_ticks=pid * 100, state=state)


def asks_a_server(command: str = f"get_server_status {SERVER}", at: float = DEATH) -> tuple[Observation, ...]:
    """Return an answered command, and an unanswered one that queries a server."""
    return servers(SERVER, at=at - 1), silence(at=at + 4.5, command=command)


def silences(at: float = DEATH) -> tuple[Observation, ...]:
    """Two commands in a row get no answer, nor do two connections of the exporter's own."""
    return silence(at=at + 5), probe(False, at=at + 7), probe(False, at=at + 9), silence(at=at + 11)


def hangs(at: float = DEATH) -> tuple[Observation, ...]:
    """Return a suspended daemon that answers no command."""
    return suspended(at=at), *silences(at)


def unit(active: str, *, at: float = DEATH + 0.5, **known: Any) -> UnitState:
    usual: Mapping[str, Any] = {"load": "loaded", "restart": "on-failure", "result": "success"}
    return UnitState(at=at, unit=UNIT, active=active, **{**usual, **known})


def deaf(at: float) -> ControlSocket:
    """Return that no process listens on the daemon's socket."""
    return ControlSocket(at=at, daemon=DAEMON, listening=False)


def left(at: float, *, behind: bool = True) -> DaemonProcess:
    """Return that no daemon runs, and whether the pid file remains."""
    return DaemonProcess(at=at, daemon=DAEMON, pid=None, pid_file_left=behind)


def holder(at: float, pid: int | None = 700) -> SessionHolder:
    """Return the process that holds a session."""
    if pid is None:
        return SessionHolder(at=at, daemon=DAEMON)
    return SessionHolder(at=at, daemon=DAEMON, pid=pid, start_ticks=70000, uid=1001, user="alice")


def begun(daemon_policy: DaemonPolicy) -> Node:
    """Return a node without observations of its daemon, which runs in the unit of its policy."""
    seen = node()
    daemon = replace(
        seen.daemons[DAEMON],
        runtime=replace(seen.daemons[DAEMON].runtime, unit=daemon_policy.unit),
        declared=replace(seen.daemons[DAEMON].declared, unit=daemon_policy.unit),
    )
    return replace(seen, daemons={DAEMON: daemon})


class WatchedDaemon:
    """A daemon and its watchdog, evaluated after each observation, without jitter."""

    def __init__(
        self,
        *seen: Observation,
        daemon_policy: DaemonPolicy = BY_COMMAND,
        mode: Mode = Mode.ACT,
        **rules: Any,
    ) -> None:
        self.policy = Policy(mode=mode, thresholds=Thresholds(**rules), daemon_policies={DAEMON: daemon_policy})
        self.node = begun(daemon_policy)
        self.at = AT
        self.events: list[Event] = []
        self.actions: list[Action] = []
        self.observe(*(seen or alive()))

    @property
    def daemon(self) -> Daemon:
        """Return the daemon's state."""
        return self.node.daemons[DAEMON]

    @property
    def watch(self) -> WatchdogState:
        """Return the watchdog's state."""
        return self.node.watches[DAEMON]

    @property
    def diagnosis(self) -> Diagnosis:
        assert self.watch.diagnosis is not None
        return self.watch.diagnosis

    @property
    def condition(self) -> Condition:
        return self.diagnosis.condition

    def observe(self, *seen: Observation) -> Self:
        """Reduce these observations, evaluate after each, and return the daemon itself."""
        for each in seen:
            self.node, events = reduce(self.node, each)
            self.events.extend(events)
            self.evaluate(max(self.at, each.at))
        return self

    def evaluate(self, at: float) -> None:
        self.at = at
        self.node, events, actions = evaluate(self.node, self.policy, at=at, chance=0.0)
        self.events.extend(events)
        self.actions.extend(actions)

    def until(self, at: float, every: float = 0.5) -> None:
        """Let time pass until then, with readings of logs that have nothing new."""
        while self.at < at:
            self.observe(look("log", at=min(at, self.at + every)))

    def finish_action(self, problem: Reason | None = None, after: float = 0.1, evidence: str | None = None) -> None:
        """Report the end of the last action."""
        last = self.actions[-1]
        done = ActionDone(
            at=self.at + after,
            daemon=DAEMON,
            kind=last.kind,
            reason=last.reason,
            seconds=after,
            problem=problem,
            evidence=evidence,
        )
        self.observe(done)

    def resume(self) -> None:
        """Report an operator's `resume`."""
        self.observe(Resumed(at=self.at, daemon=DAEMON))

    def restarted(self) -> None:
        """Restart the exporter with only its stored state."""
        stored = build(WatchdogState, plain(self.watch))
        self.node = replace(begun(self.policy.daemon_policies[DAEMON]), at=self.at, watches={DAEMON: stored})

    def reported(self, *names: EventName) -> list[tuple[str, str | None]]:
        """Return the events with these names, with their results or reasons."""
        return [(each.event.value, each.result or each.reason) for each in self.events if each.event in names]

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """Return the actions so far, with their reasons."""
        return [(each.kind.value, each.reason) for each in self.actions]

    @property
    def action_counts(self) -> dict[tuple[str, str, str], int]:
        """Return the counts of actions by kind, reason and result."""
        return {(each.kind.value, each.reason, each.result.value): each.count for each in self.watch.action_counts}
