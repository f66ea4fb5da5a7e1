"""Problems in recordings of FORMAT 1, where they are sentences: reads the code and the fields from a sentence.

A sentence that no pattern fits becomes `unspecified`, with the sentence as its detail.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from exporter.model.observation import GpuReading, LogFile, Observation, SourceReading
from exporter.model.problem import Problem, ProblemCode, joined
from exporter.model.witnesses import UnitState
from exporter.plain import plain

KINDS: frozenset[type[Observation]] = frozenset((GpuReading, LogFile, SourceReading, UnitState))
"""The observations with a `problem` of a collector. That of `ActionDone` is still a sentence."""

SEPARATOR = "; "
"""Stood between the problems of one collection, and also within some sentences."""

LONGEST_SENTENCE = 4096
"""Characters; a longer one is cut, and no pattern is tried."""

_PERMISSION = ("Permission denied", "Operation not permitted")


def with_problem(kind: type[Observation], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an observation, with an object in place of a sentence in `problem`."""
    sentence = values.get("problem")
    if kind not in KINDS or not isinstance(sentence, str):
        return dict(values)
    return {**values, "problem": plain(problem_of(sentence))}


def problem_of(sentence: str) -> Problem:
    """Return the problem that a sentence states."""
    if len(sentence) > LONGEST_SENTENCE:
        return Problem(code=ProblemCode.UNSPECIFIED, detail=sentence[:LONGEST_SENTENCE])
    known = _known(sentence)
    if known is not None:
        return known
    each = [_known(part) for part in sentence.split(SEPARATOR)]
    whole = None if None in each else joined(each)
    return whole or Problem(code=ProblemCode.UNSPECIFIED, detail=sentence)


def _known(sentence: str) -> Problem | None:
    for pattern, read in _PATTERNS:
        found = pattern.fullmatch(sentence)
        if found is not None:
            return read(found)
    return None


def _unreadable(found: re.Match[str]) -> Problem:
    denied = found["detail"] in _PERMISSION
    code = ProblemCode.PERMISSION_DENIED if denied else ProblemCode.NOT_READABLE
    return Problem(code=code, subject=found["subject"], detail=found["detail"])


def _driver(found: re.Match[str]) -> Problem:
    detail = found["detail"]
    code = next((code for text, code in _OF_DRIVER.items() if text in detail), ProblemCode.DRIVER_ERROR)
    return Problem(code=code, detail=detail if code in _WITH_DETAIL else "")


_OF_DRIVER = {
    "Driver Not Loaded": ProblemCode.DRIVER_NOT_LOADED,
    "version mismatch": ProblemCode.DRIVER_MISMATCH,
    "Shared Library Not Found": ProblemCode.LIBRARY_MISSING,
    "the driver is not open": ProblemCode.DRIVER_NOT_OPEN,
    "a call that has not come back": ProblemCode.DRIVER_HANGS,
}
_WITH_DETAIL = frozenset(
    (
        ProblemCode.DRIVER_NOT_LOADED,
        ProblemCode.DRIVER_MISMATCH,
        ProblemCode.LIBRARY_MISSING,
        ProblemCode.DRIVER_ERROR,
    )
)


def _simple(code: ProblemCode) -> Callable[[re.Match[str]], Problem]:
    """Return what reads a problem whose fields are the named groups of its pattern."""

    def read(found: re.Match[str]) -> Problem:
        groups = found.groupdict(default="")
        return Problem(
            code=code,
            subject=groups.get("subject", ""),
            detail=groups.get("detail", ""),
            pid=int(groups["pid"]) if "pid" in groups else None,
            seconds=float(groups["seconds"]) if "seconds" in groups else None,
            exit_code=int(groups["exit_code"]) if "exit_code" in groups else None,
        )

    return read


_SECONDS = r"(?P<seconds>\d{1,9}(?:\.\d{1,9})?)"
_PID = r"(?P<pid>\d{1,10})"

_PATTERNS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Problem]], ...] = tuple(
    (re.compile(pattern), read)
    for pattern, read in (
        (r"paused", _simple(ProblemCode.PAUSED)),
        (rf"no answer for {_SECONDS} s", _simple(ProblemCode.STILL_RUNNING)),
        (rf".*: no answer to (?P<subject>[^:]*) within {_SECONDS} s", _simple(ProblemCode.TIMEOUT)),
        (rf".*: (?P<subject>[^:]*) was not asked: server {_PID} is stopped", _simple(ProblemCode.SERVER_STOPPED)),
        (
            r"(?P<subject>.*) cannot be used \(exit code (?P<exit_code>-?\d{1,9})\): (?P<detail>.*)",
            _simple(ProblemCode.COMMAND_FAILED),
        ),
        (r"(?P<subject>[^;]*) does not exist", _simple(ProblemCode.NOT_FOUND)),
        (r"(?P<subject>[^;]*) cannot be read: (?P<detail>[^;]*)(?:; where .*)?", _unreadable),
        (r"NVML(?: events)?: (?P<detail>[^;]*)(?:; is the driver loaded\? \(nvidia-smi\))?", _driver),
        (r"unexpected (?P<detail>[A-Za-z]+: .*)", _simple(ProblemCode.UNEXPECTED_ERROR)),
    )
)
