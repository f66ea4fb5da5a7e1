"""Carries out the watchdog's actions, in one thread for each daemon."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from exporter.actions.evidence import Evidence
from exporter.actions.steps import (
    Deadline,
    command_deadline,
    command_problem,
    end_process,
    give_command,
    restart_unit,
    run_command,
)
from exporter.clock import Clock
from exporter.collectors.child import OWN_USER, User, keep_capabilities_from_children, user
from exporter.collectors.control import ControlClient
from exporter.collectors.pid_files import foreign_user, may_run
from exporter.collectors.pipe_dir import DaemonLocation
from exporter.collectors.proc import Proc
from exporter.collectors.thread import Inbox
from exporter.model.action import Action, ActionStep, EndProcess, GiveCommand, RestartUnit, RunCommand, SaveEvidence
from exporter.model.node import Node
from exporter.model.observation import ActionDone, ControlReply, Observation
from exporter.model.reason import Reason, ReasonCode

MakeClient = Callable[[DaemonLocation, float, User], ControlClient]
"""Makes what gives a command to the daemon in a place, with this deadline in seconds, as this user."""

_BROKEN_OFF = Reason(ReasonCode.EXPORTER_STOPPING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What it takes to act. `path` is where programs are found; without `evidence`, none is saved."""

    clock: Clock
    proc: Proc
    client: MakeClient
    path: str
    evidence: Evidence | None = None
    systemctl: str = "systemctl"


class StepRunner:
    """The steps of one action, at one daemon."""

    def __init__(
        self,
        action: Action,
        node: Node,
        location: DaemonLocation,
        *,
        tools: Tools,
        patience: Deadline,
        tell: Callable[[ControlReply], None],
    ) -> None:
        """`tell` is given each reply of the daemon's."""
        self.evidence: str | None = None
        self._action = action
        self._node = node
        self._location = location
        self._tools = tools
        self._patience = patience
        self._tell = tell
        self._appearing = False

    def do(self) -> Reason | None:
        """Do all steps. Return the problem of the first that fails: it is the last one."""
        for step in self._action.steps:
            if self._patience.over:
                return _BROKEN_OFF
            problem = self._do(step)
            if problem is not None:
                return problem
        return None

    def _do(self, step: ActionStep) -> Reason | None:
        tools, patience = self._tools, self._patience
        match step:
            case SaveEvidence():
                if tools.evidence is not None:
                    self.evidence = tools.evidence.save(self._action, self._node, self._location)
                return None
            case EndProcess():
                return end_process(step, pipe=self._location.pipe, proc=tools.proc, patience=patience)
            case RestartUnit():
                self._appearing = True
                return restart_unit(step, systemctl=tools.systemctl, path=tools.path, patience=patience)
            case RunCommand():
                self._appearing = True
                refused = self._refused(step)
                return refused or run_command(step, path=tools.path, patience=patience)
            case GiveCommand():
                problem = self._give(step.command)
                return problem if step.vital else None

    def _refused(self, step: RunCommand) -> Reason | None:
        """Return why no daemon may be started there: that user controls a daemon in a directory of another user."""
        if not may_run(self._location, step.uid):
            return Reason(ReasonCode.USER_NOT_CONFIGURED, uid=step.uid)
        foreign = foreign_user(self._location)
        if foreign is None:
            return None
        return Reason(ReasonCode.DIRECTORY_OF_OTHER_USER, path=str(self._location.pipe), uid=foreign)

    def _give(self, command: str) -> Reason | None:
        client = self._tools.client(self._location, command_deadline(command), self._asker())
        with self._patience.ended_by(client.close):
            reply = give_command(
                client, command, clock=self._tools.clock, patience=self._patience, appearing=self._appearing
            )
        # It has had its time: if it is not there now, it does not become so by waiting at each further command.
        self._appearing = False
        if self._patience.over:
            return _BROKEN_OFF
        self._tell(reply)
        return command_problem(reply)

    def _asker(self) -> User:
        """The daemon's user; where we may not be him, we ask ourselves, and hear whether that will do."""
        try:
            return user(self._action.uid)
        except PermissionError:
            return OWN_USER


CLOSE_SECONDS = 1.5
MOST_AT_ONCE = 64
"""For how many daemons something may be done at a time."""


class ActionRunner:
    """Does actions, and tells of it in the inbox: each reply of a daemon's, and at last that an action is done."""

    def __init__(self, tools: Tools, *, inbox: Inbox, location: Callable[[str, Node], DaemonLocation]) -> None:
        """`place` says where a daemon of a node is, by its name; it is asked in the thread of who wants it done."""
        self._tools = tools
        self._inbox = inbox
        self._location = location
        self._patience = Deadline(tools.clock)
        self._lock = threading.Lock()
        self._under_way: dict[str, threading.Thread] = {}
        self._log = structlog.get_logger()

    def do(self, action: Action, node: Node) -> None:
        """Begin an action, and return at once. What cannot be begun is told as done, with its problem."""
        try:
            problem = self._begin(action, node, self._location(action.daemon, node))
        except Exception as error:  # noqa: BLE001 (a defect of ours costs this action, not the cycle)
            self._log.exception("action_not_begun", daemon=action.daemon, action=action.kind.value)
            problem = _unexpected(error)
        if problem is not None:
            self._tell_done(action, began=self._tools.clock.monotonic(), problem=problem)

    def break_off(self) -> None:
        """Begin nothing more, and break off what is under way, but for a daemon that is just being started."""
        self._patience.end()

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """The same, and wait until that has ended."""
        self.break_off()
        clock = self._tools.clock
        ends = clock.monotonic() + timeout
        with self._lock:
            threads = tuple(self._under_way.values())
        for thread in threads:
            thread.join(max(0.0, ends - clock.monotonic()))

    def _begin(self, action: Action, node: Node, location: DaemonLocation) -> Reason | None:
        """Begin an action. Return why that is not possible."""
        thread = threading.Thread(target=self._run, args=(action, node, location), name="hand", daemon=True)
        with self._lock:
            if self._patience.over:
                return Reason(ReasonCode.EXPORTER_STOPPING)
            if action.daemon in self._under_way:
                return Reason(ReasonCode.ACTION_UNDER_WAY)
            if len(self._under_way) >= MOST_AT_ONCE:
                return Reason(ReasonCode.TOO_MANY_ACTIONS, count=MOST_AT_ONCE)
            try:
                thread.start()
            except RuntimeError as error:
                return Reason(ReasonCode.NO_THREAD, text=str(error))
            self._under_way[action.daemon] = thread
        return None

    def _run(self, action: Action, node: Node, location: DaemonLocation) -> None:
        began = self._tools.clock.monotonic()
        steps = StepRunner(action, node, location, tools=self._tools, patience=self._patience, tell=self._tell)
        try:
            # What this process may, the programs that it starts must not; each thread has a set of its own.
            keep_capabilities_from_children()
            problem = steps.do()
        except Exception as error:  # noqa: BLE001 (the watchdog waits for this action's end, however it comes)
            self._log.exception("action_raised", daemon=action.daemon, action=action.kind.value)
            problem = _unexpected(error)
        with self._lock:
            del self._under_way[action.daemon]
        self._tell_done(action, began=began, problem=problem, evidence=steps.evidence)

    def _tell_done(self, action: Action, *, began: float, problem: Reason | None, evidence: str | None = None) -> None:
        clock = self._tools.clock
        done = ActionDone(
            at=clock.now(),
            daemon=action.daemon,
            kind=action.kind,
            reason=action.reason,
            seconds=round(clock.monotonic() - began, 6),
            problem=problem,
            evidence=evidence,
        )
        self._tell(done)

    def _tell(self, seen: Observation) -> None:
        self._inbox.put((seen,))


def _unexpected(error: Exception) -> Reason:
    return Reason(ReasonCode.UNEXPECTED_ERROR, text=f"{type(error).__name__}: {error}")
