"""The steps of one action, one after the other."""

from collections.abc import Callable
from dataclasses import dataclass

from exporter.actions.control_command import deadline_of, give, problem_of
from exporter.actions.end_process import end_process
from exporter.actions.evidence import Evidence
from exporter.actions.patience import Patience
from exporter.actions.restart_unit import restart_unit
from exporter.actions.run_command import run_command
from exporter.clock import Clock
from exporter.model.action import (
    Action,
    ActionStep,
    EndProcess,
    GiveCommand,
    RestartUnit,
    RunCommand,
    SaveEvidence,
)
from exporter.model.node import Node
from exporter.model.observation import ControlReply
from exporter.model.reason import Reason, ReasonCode
from exporter.sources.control import ControlClient
from exporter.sources.owners import foreign_user, may_run
from exporter.sources.place import Place
from exporter.sources.proc import Proc
from exporter.sources.user import OURSELVES, User, user

MakeClient = Callable[[Place, float, User], ControlClient]
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


class Steps:
    """The steps of one action, at one daemon."""

    def __init__(
        self,
        action: Action,
        node: Node,
        place: Place,
        *,
        tools: Tools,
        patience: Patience,
        tell: Callable[[ControlReply], None],
    ) -> None:
        """`tell` is given each reply of the daemon's."""
        self.evidence: str | None = None
        self._action = action
        self._node = node
        self._place = place
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
                    self.evidence = tools.evidence.save(self._action, self._node, self._place)
                return None
            case EndProcess():
                return end_process(step, pipe=self._place.pipe, proc=tools.proc, patience=patience)
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
        if not may_run(self._place, step.uid):
            return Reason(ReasonCode.USER_NOT_CONFIGURED, uid=step.uid)
        foreign = foreign_user(self._place)
        if foreign is None:
            return None
        return Reason(ReasonCode.DIRECTORY_OF_OTHER_USER, path=str(self._place.pipe), uid=foreign)

    def _give(self, command: str) -> Reason | None:
        client = self._tools.client(self._place, deadline_of(command), self._asker())
        with self._patience.ended_by(client.close):
            reply = give(client, command, clock=self._tools.clock, patience=self._patience, appearing=self._appearing)
        # It has had its time: if it is not there now, it does not become so by waiting at each further command.
        self._appearing = False
        if self._patience.over:
            return _BROKEN_OFF
        self._tell(reply)
        return problem_of(reply)

    def _asker(self) -> User:
        """The daemon's user; where we may not be him, we ask ourselves, and hear whether that will do."""
        try:
            return user(self._action.uid)
        except PermissionError:
            return OURSELVES
