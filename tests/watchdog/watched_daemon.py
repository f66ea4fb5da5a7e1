"""A watchdog at its post: what it sees and when is up to the test, what it decides is written down."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

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
from exporter.model.watchdog import Condition, Diagnosis, WatchdogState
from exporter.serialization import build, plain
from exporter.state.reducer import reduce
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
"""The PID of the daemon that comes after."""

DEATH = AT + 10

NOTHING: frozenset[AllowedAction] = frozenset()
KILL = frozenset({AllowedAction.KILL_CLIENTS})
SHUT_DOWN = KILL | {AllowedAction.SHUT_DOWN_SERVER}
LADDER = SHUT_DOWN | {AllowedAction.RESTART_DAEMON}
HUNG = frozenset({AllowedAction.END_HUNG_SERVER})
"""What the watchdog may be allowed to do."""


def alive(*clients: int, at: float = AT) -> tuple[Observation, ...]:
    """A daemon whose log is followed, with a server and these clients; all are known by their identity."""
    return (
        daemon_process(at=at),
        LogFile(at=at, daemon=DAEMON, file="control.log"),
        *at_work(*clients, at=at),
        process(SERVER, at=at, uid=0, user="root", command="nvidia-cuda-mps", parent=CONTROL),
        *(process(pid, at=at) for pid in clients),
    )


def dies(at: float = DEATH, pid: int = CONTROL) -> tuple[Observation, ...]:
    """Its process ends, and its log has no last words."""
    return exited(pid, at=at), look("log", at=at + 0.5)


def returns(at: float, pid: int = NEXT) -> tuple[Observation, ...]:
    """Another one is there, and answers."""
    return daemon_process(pid, at=at), *at_work(at=at)


def quits(at: float = DEATH) -> tuple[Observation, ...]:
    """An operator's `quit` ends it, which removes the pid file."""
    return (*control_log("NEW UI", "Cmd:quit", at=at), exited(CONTROL, at=at), daemon_process(None, left=False, at=at))


def suspended(pid: int = CONTROL, *, at: float = DEATH, state: str = "T") -> ProcessState:
    """A process is seen to stand so."""
    return ProcessState(at=at, pid=pid, start_ticks=pid * 100, state=state)


def asks_a_server(command: str = f"get_server_status {SERVER}", at: float = DEATH) -> tuple[Observation, ...]:
    """The daemon answers one command, and not the next one, for which it has to ask a server."""
    return servers(SERVER, at=at - 1), silence(at=at + 4.5, command=command)


def silences(at: float = DEATH) -> tuple[Observation, ...]:
    """Two commands in a row get no answer, nor do two connections of the exporter's own."""
    return silence(at=at + 5), probe(False, at=at + 7), probe(False, at=at + 9), silence(at=at + 11)


def hangs(at: float = DEATH) -> tuple[Observation, ...]:
    """It is stopped by a signal, and answers nobody."""
    return suspended(at=at), *silences(at)


def unit(active: str, *, at: float = DEATH + 0.5, **known: Any) -> UnitState:
    """Systemd tells how the unit is."""
    usual: Mapping[str, Any] = {"load": "loaded", "restart": "on-failure", "result": "success"}
    return UnitState(at=at, unit=UNIT, active=active, **{**usual, **known})


def deaf(at: float) -> ControlSocket:
    """Nobody listens on its socket."""
    return ControlSocket(at=at, daemon=DAEMON, listening=False)


def left(at: float, *, behind: bool = True) -> DaemonProcess:
    """No daemon runs behind the pid file, which is still there, or is not."""
    return DaemonProcess(at=at, daemon=DAEMON, pid=None, pid_file_left=behind)


def holder(at: float, pid: int | None = 700) -> SessionHolder:
    """Somebody is seen to have a session open."""
    return SessionHolder(at=at, daemon=DAEMON, pid=pid, start_ticks=70000, uid=1001, user="alice")


def _begun(daemon_policy: DaemonPolicy) -> Node:
    """A node that has seen nothing yet of its daemon, which is its unit's, if it has one."""
    seen = node()
    daemon = replace(
        seen.daemons[DAEMON],
        runtime=replace(seen.daemons[DAEMON].runtime, unit=daemon_policy.unit),
        declared=replace(seen.daemons[DAEMON].declared, unit=daemon_policy.unit),
    )
    return replace(seen, daemons={DAEMON: daemon})


class Post:
    """Sees, judges, and writes down. Time is a number, chance is none."""

    def __init__(
        self,
        *seen: Observation,
        daemon_policy: DaemonPolicy = BY_COMMAND,
        mode: Mode = Mode.ACT,
        **rules: Any,
    ) -> None:
        self.policy = Policy(mode=mode, thresholds=Thresholds(**rules), daemon_policies={DAEMON: daemon_policy})
        self.node = _begun(daemon_policy)
        self.at = AT
        self.events: list[Event] = []
        self.actions: list[Action] = []
        self.see(*(seen or alive()))

    @property
    def daemon(self) -> Daemon:
        """As the core knows it."""
        return self.node.daemons[DAEMON]

    @property
    def watch(self) -> WatchdogState:
        """What the watchdog knows."""
        return self.node.watches[DAEMON]

    @property
    def diagnosis(self) -> Diagnosis:
        """What is the matter."""
        assert self.watch.diagnosis is not None
        return self.watch.diagnosis

    @property
    def condition(self) -> Condition:
        """What is the matter, in a word."""
        return self.diagnosis.condition

    def see(self, *seen: Observation) -> None:
        """These are seen, one after the other."""
        for each in seen:
            self.node, events = reduce(self.node, each)
            self.events.extend(events)
            self.judge(max(self.at, each.at))

    def judge(self, at: float) -> None:
        """It is this time now."""
        self.at = at
        self.node, events, actions = evaluate(self.node, self.policy, at=at, chance=0.0)
        self.events.extend(events)
        self.actions.extend(actions)

    def until(self, at: float, every: float = 0.5) -> None:
        """Nothing happens until then: the logs have nothing new, as often as they are looked at."""
        while self.at < at:
            self.see(look("log", at=min(at, self.at + every)))

    def did(self, problem: Reason | None = None, after: float = 0.1, evidence: str | None = None) -> None:
        """The last action has been carried out, or could not be."""
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
        self.see(done)

    def resume(self) -> None:
        """An operator says so."""
        self.see(Resumed(at=self.at, daemon=DAEMON))

    def restarted(self) -> None:
        """The exporter itself ends and begins anew: all that it knows is what it has written down."""
        kept = build(WatchdogState, plain(self.watch))
        self.node = replace(_begun(self.policy.daemon_policies[DAEMON]), at=self.at, watches={DAEMON: kept})

    def told(self, *names: EventName) -> list[tuple[str, str | None]]:
        """What was told of these kinds, with the reason, or what came of it."""
        return [(each.event.value, each.result or each.reason) for each in self.events if each.event in names]

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """The actions so far, and their reasons."""
        return [(each.kind.value, each.reason) for each in self.actions]

    @property
    def action_counts(self) -> dict[tuple[str, str, str], int]:
        """How often what was done, and with which result."""
        return {(each.kind.value, each.reason, each.result.value): each.count for each in self.watch.action_counts}
