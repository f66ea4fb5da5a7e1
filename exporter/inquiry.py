"""Asking how the node is: the running service, or, where none runs, by a look of one's own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from exporter.clock import Clock
from exporter.errors import ServiceError
from exporter.plain import build
from exporter.telling.line import Line, Lines, Sheet
from exporter.telling.moment import when

if TYPE_CHECKING:
    from exporter.model.node import Node
    from exporter.model.observation import DaemonName

LOOK_SECONDS = 10.0
"""Each look asks every daemon some questions, which stand in its log: so soon, and no sooner, there is another."""

Told = TypeVar("Told")

AskService = Callable[..., Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How the node is: for a program (`node`) or for a person (`sheet`), as whom it is told by knows it."""

    by: str
    exit_code: int
    node: Mapping[str, Any] | None = None
    sheet: Sheet | None = None


class Inquiry:
    """Asks as often as it is wanted. Whom the service has told once, it looks no more for: a restart is soon over."""

    def __init__(
        self,
        service: AskService | None,
        look: "Callable[[], Node]",
        clock: Clock,
        *,
        as_json: bool = False,
        daemon: "DaemonName | None" = None,
    ) -> None:
        """`service` is what asks it, None: it is not to be asked. One `daemon` alone is told of, or all."""
        self._service = service
        self._look = look
        self._clock = clock
        self._asked: Mapping[str, Any] = {"as_json": as_json, "daemon": daemon}
        self._served = False
        self._looked: tuple[float, Node] | None = None

    def report(self, width: int | None) -> Report:
        """How the node is, for a terminal of that width; ServiceError where that cannot be told."""
        told = None if self._service is None else self._service(**self._asked, width=width)
        if told is not None:
            self._served = True
            return _report("the service", told)
        if self._served:
            raise ServiceError("no service answers")
        # The service's answer is text already. Only a look needs what makes it, which takes long to import.
        from exporter.telling import status

        at, node = self._own_look()
        told = status.told(node, **self._asked, width=width)
        if "problem" in told:
            raise ServiceError(told["problem"])
        return _report(f"a look of its own at {when(at, self._clock.now())}", told)

    def _own_look(self) -> "tuple[float, Node]":
        now = self._clock.now()
        if self._looked is None or now - self._looked[0] >= LOOK_SECONDS:
            self._looked = now, self._look()
        return self._looked


def told_lines(told: Mapping[str, Any]) -> Sequence[Line]:
    """The lines that the service tells of incidents."""
    return understood(lambda: build(Lines, told["page"]).lines)


def _report(by: str, told: Mapping[str, Any]) -> Report:
    if "node" in told:
        return understood(lambda: Report(by=by, exit_code=int(told["exit_code"]), node=told["node"]))
    return understood(lambda: Report(by=by, exit_code=int(told["exit_code"]), sheet=build(Sheet, told["sheet"])))


def understood(read: Callable[[], Told]) -> Told:
    """What is read of an answer; ServiceError where it has another form than this version's."""
    try:
        return read()
    except (ValueError, KeyError, TypeError) as error:
        raise ServiceError("the service tells what is not understood: is it of another version? Restart it") from error
