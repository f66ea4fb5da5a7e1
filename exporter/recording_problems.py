"""Problems in recordings of FORMAT 1, where they are sentences: read the code and the fields from a sentence.

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
"""The observations whose `problem` is that of a collector. In `ActionDone` it is a `Reason`."""

SEPARATOR = "; "
"""Text between the problems of one collection. Some sentences contain it too."""

LONGEST_SENTENCE = 4096
"""Characters. A longer sentence is cut, and no pattern is tried."""

_SECONDS = r"(?P<seconds>\d{1,9}(?:\.\d{1,9})?) s"
_SUBJECT = r"(?P<subject>[^;]*)"
_DETAIL = r"(?P<detail>[^;]*)"
_NVML = r"NVML(?: events)?: "
_ADVICE = r"(?:; (?:is the driver loaded\? \(nvidia-smi\)|where .*))?"

_PATTERNS: tuple[tuple[str, ProblemCode], ...] = (
    (r"paused", ProblemCode.PAUSED),
    (rf"no answer for {_SECONDS}", ProblemCode.STILL_RUNNING),
    (rf".*: no answer to {_SUBJECT} within {_SECONDS}", ProblemCode.TIMEOUT),
    (rf".*: {_SUBJECT} was not asked: server (?P<pid>\d{{1,10}}) is stopped", ProblemCode.SERVER_STOPPED),
    (
        rf"{_SUBJECT} cannot be used \(exit code (?P<exit_code>-?\d+)\): (?P<detail>.*)",
        ProblemCode.COMMAND_FAILED,
    ),
    (rf"{_SUBJECT} does not exist", ProblemCode.NOT_FOUND),
    (
        rf"{_SUBJECT} cannot be read: (?P<detail>Permission denied|Operation not permitted){_ADVICE}",
        ProblemCode.PERMISSION_DENIED,
    ),
    (rf"{_SUBJECT} cannot be read: {_DETAIL}{_ADVICE}", ProblemCode.NOT_READABLE),
    (rf"{_NVML}(?P<detail>Driver Not Loaded[^;]*){_ADVICE}", ProblemCode.DRIVER_NOT_LOADED),
    (rf"{_NVML}(?P<detail>[^;]*version mismatch){_ADVICE}", ProblemCode.DRIVER_MISMATCH),
    (rf"{_NVML}(?P<detail>[^;]*Shared Library Not Found){_ADVICE}", ProblemCode.LIBRARY_MISSING),
    (rf"{_NVML}the driver is not open", ProblemCode.DRIVER_NOT_OPEN),
    (rf"{_NVML}a call that has not come back [^;]*{_ADVICE}", ProblemCode.DRIVER_HANGS),
    (rf"{_NVML}{_DETAIL}{_ADVICE}", ProblemCode.DRIVER_ERROR),
    (r"unexpected (?P<detail>[A-Za-z]+: .*)", ProblemCode.UNEXPECTED_ERROR),
)
"""The sentences that versions with FORMAT 1 wrote. The named groups are fields of `Problem`."""

_COMPILED = tuple((re.compile(pattern), code) for pattern, code in _PATTERNS)
_READ: Mapping[str, Callable[[str], Any]] = {"pid": int, "exit_code": int, "seconds": float}


def with_problem(kind: type[Observation], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an observation, with an object in place of a sentence in `problem`."""
    sentence = values.get("problem")
    if kind not in KINDS or not isinstance(sentence, str):
        return dict(values)
    return {**values, "problem": plain(problem_of(sentence))}


def problem_of(sentence: str) -> Problem:
    """Return the problem that a sentence states, or several if the sentence joins known ones."""
    unknown = Problem(code=ProblemCode.UNSPECIFIED, detail=sentence[:LONGEST_SENTENCE])
    if len(sentence) > LONGEST_SENTENCE:
        return unknown
    each = [_known(part) for part in sentence.split(SEPARATOR)]
    return _known(sentence) or (None if None in each else joined(each)) or unknown


def _known(sentence: str) -> Problem | None:
    for pattern, code in _COMPILED:
        found = pattern.fullmatch(sentence)
        if found is not None:
            groups = found.groupdict(default="")
            return Problem(code=code, **{name: _READ.get(name, str)(text) for name, text in groups.items()})
    return None
