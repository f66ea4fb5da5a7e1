"""Asks the running service for the node's status, or collects it once."""

import contextlib
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from exporter.clock import Clock
from exporter.errors import ServiceError
from exporter.parse.printable import printable_lines
from exporter.report.text import Line, Lines, StatusText, short_time
from exporter.serialization import build

NAME = "service.sock"

LONGEST_ANSWER = 1 << 26

SERVICE_SECONDS = 30.0
"""How long the running service may take to do as it is asked."""


def ask_service(directory: Path, command: str, timeout: float, **arguments: Any) -> Mapping[str, Any] | None:
    """Give the running service a command: its answer, or None where no service answers.

    ServiceError where it refuses, or does not answer within `timeout` seconds.
    """
    path = directory / NAME
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(str(path))
        except PermissionError as error:
            raise ServiceError(f"{path}: only root and the service's own user may ask it; try sudo") from error
        except OSError:
            return None
        try:
            request = {"command": command, "arguments": arguments} if arguments else {"command": command}
            # Whoever is turned away may hear so before all is said.
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(read_line(connection, LONGEST_ANSWER))
        except (OSError, ValueError, RecursionError) as error:
            raise ServiceError(f"{path}: the service does not answer {command}: {error}") from error
    if not isinstance(answer, dict):
        raise ServiceError(f"{path}: the service's answer to {command} is not understood")
    answer = {key: printable_lines(value) if isinstance(value, str) else value for key, value in answer.items()}
    if "problem" in answer:
        raise ServiceError(f"{path}: {answer['problem']}")
    return answer


def read_line(connection: socket.socket, most: int) -> bytes:
    """Read up to the end of a line, the end of the connection, or `most` bytes."""
    said = bytearray()
    while not said.endswith(b"\n") and len(said) < most:
        more = connection.recv(1 << 16)
        if not more:
            break
        said += more
    return bytes(said)


if TYPE_CHECKING:
    from exporter.model.node import Node
    from exporter.model.observation import DaemonName

LOOK_SECONDS = 10.0
"""Each look asks every daemon some questions, which stand in its log: so soon, and no sooner, there is another."""

Told = TypeVar("Told")

AskService = Callable[..., Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """How the node is: for a program (`node`) or for a person (`text`), as whom it is told by knows it."""

    by: str
    exit_code: int
    node: Mapping[str, Any] | None = None
    text: StatusText | None = None


class StatusClient:
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

    def report(self, width: int | None) -> StatusReport:
        """How the node is, for a terminal of that width; ServiceError where that cannot be told."""
        told = None if self._service is None else self._service(**self._asked, width=width)
        if told is not None:
            self._served = True
            return _report("the service", told)
        if self._served:
            raise ServiceError("no service answers")
        # The service's answer is text already. Only a look needs what makes it, which takes long to import.
        from exporter.report import status_text

        at, node = self._own_look()
        told = status_text.status_answer(node, **self._asked, width=width)
        if "problem" in told:
            raise ServiceError(told["problem"])
        return _report(f"a look of its own at {short_time(at, self._clock.now())}", told)

    def _own_look(self) -> "tuple[float, Node]":
        now = self._clock.now()
        if self._looked is None or now - self._looked[0] >= LOOK_SECONDS:
            self._looked = now, self._look()
        return self._looked


def told_lines(told: Mapping[str, Any]) -> Sequence[Line]:
    """The lines that the service tells of incidents."""
    return understood(lambda: build(Lines, told["lines"]).lines)


def _report(by: str, told: Mapping[str, Any]) -> StatusReport:
    if "node" in told:
        return understood(lambda: StatusReport(by=by, exit_code=int(told["exit_code"]), node=told["node"]))
    return understood(
        lambda: StatusReport(by=by, exit_code=int(told["exit_code"]), text=build(StatusText, told["text"]))
    )


def understood(read: Callable[[], Told]) -> Told:
    """What is read of an answer; ServiceError where it has another form than this version's."""
    try:
        return read()
    except (ValueError, KeyError, TypeError) as error:
        raise ServiceError("the service tells what is not understood: is it of another version? Restart it") from error
