"""Runs the watchdog's actions, in one thread for each daemon."""

import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from exporter.actions.evidence import Evidence
from exporter.actions.steps import (
    Cancellation,
    command_deadline,
    command_problem,
    delete_pod,
    end_process,
    restart_unit,
    run_command,
    send_command,
)
from exporter.clock import Clock
from exporter.collectors.child import OWN_USER, User, keep_capabilities_from_children, user
from exporter.collectors.control_client import ControlClient
from exporter.collectors.daemon_processes import foreign_user, may_run
from exporter.collectors.pipe_dir import DaemonLocation
from exporter.collectors.proc import Proc
from exporter.collectors.thread import Inbox
from exporter.logger import logger
from exporter.model import action as actions
from exporter.model.action import Action
from exporter.model.node import Node
from exporter.model.observation import ActionDone, ControlReply
from exporter.model.reason import Reason, ReasonCode
from exporter.model.values import frozen, made_of

CLOSE_SECONDS = 1.5
MAX_ACTIONS = 64
"""For how many daemons an action may run at the same time."""

_STOPPING = Reason(ReasonCode.EXPORTER_STOPPING)


@frozen
class Tools:
    """What the runner uses. `client` has a deadline in seconds and a user. Without `evidence`, none is saved."""

    clock: Clock
    proc: Proc
    client: Callable[[DaemonLocation, float, User], ControlClient]
    path: str
    evidence: Evidence | None = None
    systemctl: str = "systemctl"


@dataclass(eq=False)
class StepRunner:
    """Runs the steps of one action. `report` takes each reply of the daemon."""

    action: Action
    node: Node
    location: DaemonLocation
    _: KW_ONLY
    tools: Tools
    cancellation: Cancellation
    report: Callable[[ControlReply], None]
    evidence: str | None = field(default=None, init=False)
    _starting: bool = field(default=False, init=False)

    def run(self) -> Reason | None:
        """Run all steps. Return the problem of the first one that fails, which is the last one that runs.

        The failure of a command that is not vital is no problem, but the later steps depend on it and do not run.
        """
        for step in self.action.steps:
            problem = _STOPPING if self.cancellation.cancelled else self._run(step)
            if problem is not None:
                optional = isinstance(step, actions.GiveCommand) and not step.vital and problem is not _STOPPING
                return None if optional else problem
        return None

    def _run(self, step: actions.ActionStep) -> Reason | None:
        tools, cancellation = self.tools, self.cancellation
        match step:
            case actions.SaveEvidence():
                if tools.evidence is not None:
                    self.evidence = tools.evidence.save(self.action, self.node, self.location)
                return None
            case actions.EndProcess():
                return end_process(step, pipe=self.location.pipe, proc=tools.proc, cancellation=cancellation)
            case actions.RestartUnit():
                self._starting = True
                return restart_unit(step, systemctl=tools.systemctl, path=tools.path, cancellation=cancellation)
            case actions.RunCommand():
                self._starting = True
                return self._refusal(step) or run_command(step, path=tools.path, cancellation=cancellation)
            case actions.DeletePod():
                return delete_pod(step)
            case actions.GiveCommand():
                return self._send(step.command)

    def _refusal(self, step: actions.RunCommand) -> Reason | None:
        try:
            if not may_run(self.location, step.uid):
                return Reason(ReasonCode.USER_NOT_CONFIGURED, uid=step.uid)
            foreign = foreign_user(self.location)
        except OSError as error:
            return Reason(ReasonCode.PROGRAM_NOT_STARTED, command=str(self.location.pipe), text=error.strerror)
        if foreign is None:
            return None
        return Reason(ReasonCode.DIRECTORY_OF_OTHER_USER, path=str(self.location.pipe), uid=foreign)

    def _send(self, command: str) -> Reason | None:
        try:
            as_user = user(self.action.uid)
        except PermissionError:
            # The daemon's reply to the exporter's own user shows whether that suffices.
            as_user = OWN_USER
        tools, cancellation = self.tools, self.cancellation
        client = tools.client(self.location, command_deadline(command), as_user)
        with cancellation.calling(client.close):
            reply = send_command(client, command, clock=tools.clock, cancellation=cancellation, starting=self._starting)
        if cancellation.cancelled:
            return _STOPPING
        self.report(reply)
        return command_problem(reply)


class ActionRunner:
    """Runs actions. Puts each reply of a daemon and the end of each action into the inbox."""

    def __init__(self, tools: Tools, *, inbox: Inbox, location: Callable[[str, Node], DaemonLocation]) -> None:
        """`location` returns the location of a daemon by name. It is called in the thread that calls `do`."""
        self._tools = tools
        self._inbox = inbox
        self._location = location
        self._cancellation = Cancellation(tools.clock)
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self._log = logger()

    def do(self, action: Action, node: Node) -> None:
        """Start an action and return at once. If it cannot be started, its end is reported with the problem."""
        began = self._tools.clock.monotonic()
        try:
            problem = self._start(action, node, self._location(action.daemon, node))
        except Exception as error:  # noqa: BLE001 (a defect must cost this action only, not the main loop)
            self._log.exception("action_not_begun", daemon=action.daemon, action=action.kind.value)
            problem = _unexpected(error)
        if problem is not None:
            self._report_done(action, began=began, problem=problem)

    def break_off(self) -> None:
        """Start no further action, and interrupt running ones, except the start of a daemon."""
        self._cancellation.cancel()

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Interrupt all actions, and wait until they have ended."""
        self.break_off()
        clock = self._tools.clock
        ends = clock.monotonic() + timeout
        with self._lock:
            threads = tuple(self._threads.values())
        for thread in threads:
            thread.join(max(0.0, ends - clock.monotonic()))

    def _start(self, action: Action, node: Node, location: DaemonLocation) -> Reason | None:
        thread = threading.Thread(target=self._run, args=(action, node, location), name="action", daemon=True)
        with self._lock:
            if self._cancellation.cancelled:
                return _STOPPING
            if action.daemon in self._threads:
                return Reason(ReasonCode.ACTION_UNDER_WAY)
            if len(self._threads) >= MAX_ACTIONS:
                return Reason(ReasonCode.TOO_MANY_ACTIONS, count=MAX_ACTIONS)
            try:
                thread.start()
            except RuntimeError as error:
                return Reason(ReasonCode.NO_THREAD, text=str(error))
            self._threads[action.daemon] = thread
        return None

    def _run(self, action: Action, node: Node, location: DaemonLocation) -> None:
        began = self._tools.clock.monotonic()
        steps = StepRunner(
            action,
            node,
            location,
            tools=self._tools,
            cancellation=self._cancellation,
            report=lambda reply: self._inbox.put((reply,)),
        )
        try:
            # Programs that this thread starts must not have the exporter's capabilities. Each thread has its own set.
            keep_capabilities_from_children()
            problem = steps.run()
        except Exception as error:  # noqa: BLE001 (the watchdog waits for the end of each action)
            self._log.exception("action_raised", daemon=action.daemon, action=action.kind.value)
            problem = _unexpected(error)
        with self._lock:
            del self._threads[action.daemon]
        self._report_done(action, began=began, problem=problem, evidence=steps.evidence)

    def _report_done(
        self, action: Action, *, began: float, problem: Reason | None, evidence: str | None = None
    ) -> None:
        at, seconds = self._tools.clock.now(), round(self._tools.clock.monotonic() - began, 6)
        done = made_of(ActionDone, action, at=at, seconds=seconds, problem=problem, evidence=evidence)
        self._inbox.put((done,))


def _unexpected(error: Exception) -> Reason:
    return Reason(ReasonCode.UNEXPECTED_ERROR, text=f"{type(error).__name__}: {error}")
