"""Recordings of format 1: their kinds, keys and values in today's names."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from exporter.model.action import ActionReason
from exporter.model.problem import Problem, ProblemCode, joined
from exporter.model.values import plain
from exporter.parse.old_sentences import reason_or_unknown

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


Values = Mapping[str, Any]
Translate = Callable[[Any], Any]

HEADER_KEYS: Mapping[str, str] = {}
"""Keys of the header that have another name today: old name, new name."""

KINDS: Mapping[str, str] = {}
"""Kinds of observations (the key `source` of each line) that have another name today: old name, new name."""

KEYS: Mapping[str, Mapping[str, str]] = {
    "daemon_found": {"stdout_kept": "stdout_in_file"},
    "daemon_process": {
        "foreign": "foreign_owner",
        "left": "pid_file_left",
        "quit": "quit_traces",
        "stdout_kept": "stdout_in_file",
    },
}
"""Keys that have another name today, by the kind's name of today: old name, new name."""


def renamed(names: Mapping[str, str]) -> Translate:
    """Return a function for `VALUES` that renames a text, and leaves any other value as it is."""
    return lambda value: names.get(value, value) if isinstance(value, str) else value


def _problem(value: Any) -> Any:
    return plain(problem_of(value)) if isinstance(value, str) else value


VALUES: Mapping[str, Mapping[str, Translate]] = {
    **{kind: {"problem": _problem} for kind in ("log_file", "nvml", "unit")},
    "source": {
        "name": renamed({"doors": "libcuda_probes"}),
        "problem": _problem,
    },
    "action_done": {
        "reason": lambda value: value if value in tuple(ActionReason) else ActionReason.UNKNOWN.value,
        "problem": lambda value: plain(reason_or_unknown(value)) if isinstance(value, str) else value,
    },
}
"""Functions that translate values, by the kind's name of today and the key's name of today."""


def header(values: Values) -> dict[str, Any]:
    """Return a header with today's keys."""
    return {HEADER_KEYS.get(key, key): value for key, value in values.items()}


def observation(values: Values) -> dict[str, Any]:
    """Return an observation with the kind, the keys and the values of today."""
    old_kind = values.get("source")
    kind = KINDS.get(old_kind, old_kind) if isinstance(old_kind, str) else None
    if kind is None:
        return dict(values)
    keys, translations = KEYS.get(kind, {}), VALUES.get(kind, {})
    renamed = {keys.get(key, key): value for key, value in values.items()}
    translated = {key: translations[key](value) if key in translations else value for key, value in renamed.items()}
    return {**translated, "source": kind}
