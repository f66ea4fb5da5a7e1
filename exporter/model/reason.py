"""Reasons: a code with the parameters of its text. A problem of a collector is one too."""

import errno
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Self, TypedDict, Unpack, cast, get_type_hints

from exporter.model.reason_code import ReasonCode as ReasonCode
from exporter.model.values import convert, plain, replace

OPTIONAL = re.compile(r"\[([^\[\]]*\{[^\[\]]*)\]")
PLACEHOLDER = re.compile(r"\{(\w+)(?::([^}]*))?\}")
"""An optional part of the text of a code, and a parameter with its format."""

MOST_JOINED = 32
"""How many problems of one collection are reported. A user can cause any number, for example with daemons."""


class Parameters(TypedDict, total=False):
    """The parameters of all codes.

    `text` and `detail` only ever come from outside: an error of the system, of NVML, of systemctl or of a program.
    `subject` is what could not be read or run: a path, a program, a command, a unit, a daemon, a GPU's UUID or index.
    `hits` of `trials` are how often an indication was right. `found` and `wanted` are a limit in its own unit (bytes,
    percent, priority). `range_bytes` is the size of an address range, and `distance` that of an address to it.
    """

    pid: int | None
    pids: tuple[int, ...] | None
    server: int | None
    uid: int | None
    user: str | None
    unit: str | None
    state: str | None
    wait_channel: str | None
    signal: int | None
    exit_code: int | None
    seconds: float | None
    count: int | None
    hits: int | None
    trials: int | None
    xid: int | None
    gpu: str | None
    device: int | None
    found: float | None
    wanted: float | None
    action: str | None
    command: str | None
    path: str | None
    pod: str | None
    subject: str | None
    detail: str | None
    limits: tuple[int, ...] | None
    range_bytes: int | None
    distance: int | None
    place: str | None
    text: str | None


_TYPES = get_type_hints(Parameters)
_ORDER = tuple(_TYPES)


def placeholders(text: str) -> frozenset[str]:
    """Return the names of the parameters in a text."""
    return frozenset(name for name, _ in PLACEHOLDER.findall(text))


def with_known_parts(text: str, known: Collection[str]) -> str:
    """Return a text without brackets: of each part in brackets, the first alternative with known parameters only.

    If there is none, it is the last one, or nothing of a part without alternatives.
    """

    def chosen(part: re.Match[str]) -> str:
        alternatives = part[1].split("|")
        otherwise = alternatives[-1] if len(alternatives) > 1 else ""
        return next((each for each in alternatives if placeholders(each).issubset(known)), otherwise)

    return OPTIONAL.sub(chosen, text)


@cache
def parameters_of(code: ReasonCode) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the parameters that a reason with this code must have, and of those that it may have."""
    return placeholders(OPTIONAL.sub("", code.text)), placeholders(code.text).union(code.unseen)


@dataclass(frozen=True, slots=True, init=False)
class Reason:
    """A code with its parameters, without those that are not known, and further problems of the same collection."""

    code: ReasonCode
    parameters: Parameters
    others: tuple["Reason", ...]  # These have no `others`.

    def __init__(
        self, code: ReasonCode, *, others: tuple["Reason", ...] = (), **parameters: Unpack[Parameters]
    ) -> None:
        """Raise ValueError if a parameter of the text is missing, or is not one of this code."""
        known = _known(parameters)
        needed, allowed = parameters_of(code)
        if not needed <= known.keys() <= allowed:
            raise ValueError(f"{code} with {', '.join(known)}: it needs {sorted(needed)} of {sorted(allowed)}")
        for name, value in (("code", code), ("parameters", known), ("others", others)):
            object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        return hash((self.code, frozenset(self.parameters.items()), self.others))

    @property
    def each(self) -> tuple["Reason", ...]:
        """The first problem alone, then the others."""
        return (replace(self, others=()), *self.others)

    def about(self, subject: str | None) -> "Reason":
        """Return the same problem of another subject, for example with the GPU."""
        return replace(self, parameters=_known({**self.parameters, "subject": subject}))

    def as_json(self) -> dict[str, Any]:
        """Return the reason as an object for JSON."""
        others = {"others": [each.as_json() for each in self.others]} if self.others else {}
        return {"code": self.code.value, **self.parameters_as_json(), **others}

    def parameters_as_json(self) -> dict[str, Any]:
        """Return the parameters as an object for JSON."""
        values = sorted(self.parameters.items(), key=lambda item: _ORDER.index(item[0]))
        return {name: plain(value) for name, value in values}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """Read a reason that another version may have written: parameters can be missing, unknown ones are ignored."""
        if "code" not in values:
            raise ValueError("'code' is missing")
        code = convert(values["code"], ReasonCode, "code")
        _, allowed = parameters_of(code)
        known = {name: convert(values[name], _TYPES[name], name) for name in values if name in allowed}
        others = convert(values.get("others", []), tuple[cls, ...], "others")  # type: ignore[valid-type]
        return replace(cls(ReasonCode.UNSPECIFIED), code=code, parameters=_known(known), others=others)


def _known(parameters: Mapping[str, Any]) -> Parameters:
    return cast("Parameters", {name: value for name, value in parameters.items() if value is not None})


LOG_BLOCKED = Reason(ReasonCode.LOG_BLOCKED)


def joined(problems: Iterable[Reason | None]) -> Reason | None:
    """Return these as one problem with `others`, each once, at most `MOST_JOINED`; None if there is none."""
    found = dict.fromkeys(each for problem in problems if problem is not None for each in problem.each)
    first, others = next(iter(found), None), tuple(islice(found, 1, MOST_JOINED))
    return None if first is None else replace(first, others=others)


def of_error(subject: object, error: OSError) -> Reason:
    """Return that a file could not be read, with the reason of the operating system.

    A collector raises EMEDIUMTYPE for a file that is not of the type that it reads.
    """
    code = {
        errno.EPERM: ReasonCode.PERMISSION_DENIED,
        errno.EACCES: ReasonCode.PERMISSION_DENIED,
        errno.ENOENT: ReasonCode.NOT_FOUND,
        errno.EMEDIUMTYPE: ReasonCode.WRONG_FILE_TYPE,
    }.get(error.errno or 0, ReasonCode.NOT_READABLE)
    detail = None if code is ReasonCode.WRONG_FILE_TYPE else error.strerror or str(error)
    return Reason(code, subject=str(subject), detail=detail)


def not_started(program: str, error: Exception) -> Reason:
    """Return that a program could not be started."""
    detail = getattr(error, "strerror", None) or str(error)
    return Reason(ReasonCode.COMMAND_NOT_STARTED, subject=program, detail=detail)


def timed_out(program: str, seconds: float) -> Reason:
    """Return that a program or command gave no answer within so many seconds."""
    return Reason(ReasonCode.TIMEOUT, subject=program, seconds=seconds)


def command_failed(program: str, exit_code: int | None, output: str) -> Reason:
    """Return that a program ended with this exit code, after this output."""
    return Reason(ReasonCode.COMMAND_FAILED, subject=program, exit_code=exit_code, detail=output)
