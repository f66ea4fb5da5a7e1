"""Carries out what the watchdog has decided: a thread for each daemon, so that one that hangs holds up no other."""

import threading
from collections.abc import Callable

import structlog

from exporter.actions.patience import Patience
from exporter.actions.steps import Steps, Tools
from exporter.model.action import Action, ActionDone
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.reason import Reason, ReasonCode
from exporter.privilege import keep_capabilities_from_children
from exporter.sources.eye import Inbox
from exporter.sources.place import Place

CLOSE_SECONDS = 1.5
MOST_AT_ONCE = 64
"""For how many daemons something may be done at a time."""


class Hands:
    """Does actions, and tells of it in the inbox: each reply of a daemon's, and at last that an action is done."""

    def __init__(self, tools: Tools, *, inbox: Inbox, place: Callable[[str, Node], Place]) -> None:
        """`place` says where a daemon of a node is, by its name; it is asked in the thread of who wants it done."""
        self._tools = tools
        self._inbox = inbox
        self._place = place
        self._patience = Patience(tools.clock)
        self._lock = threading.Lock()
        self._under_way: dict[str, threading.Thread] = {}
        self._log = structlog.get_logger()

    def do(self, action: Action, node: Node) -> None:
        """Begin an action, and return at once. What cannot be begun is told as done, with its problem."""
        try:
            problem = self._begin(action, node, self._place(action.daemon, node))
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

    def _begin(self, action: Action, node: Node, place: Place) -> Reason | None:
        """Begin an action. Return why that is not possible."""
        thread = threading.Thread(target=self._run, args=(action, node, place), name="hand", daemon=True)
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

    def _run(self, action: Action, node: Node, place: Place) -> None:
        began = self._tools.clock.monotonic()
        steps = Steps(action, node, place, tools=self._tools, patience=self._patience, tell=self._tell)
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
