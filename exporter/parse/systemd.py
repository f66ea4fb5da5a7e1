"""Output of `systemctl show` and `journalctl`, and files that units name (tried with systemd 252)."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from exporter.model.observation import UnitState
from exporter.model.values import frozen

# -- systemctl show: `Key=value` lines, and a blank line between units ----------------------------------------------

UNIT_PROPERTIES = ("Id", "UnitFileState", "ExecStart", "Environment", "EnvironmentFiles", "User")
_STATE = {"load": "LoadState", "active": "ActiveState", "sub": "SubState", "result": "Result", "restart": "Restart"}
UNIT_STATE_PROPERTIES = ("Id", "Names", *_STATE.values(), "NRestarts")

_COMMAND = re.compile(r"\{ path=[^;]* ; argv\[\]=(.*) ; ignore_errors=(?:yes|no) ; .*\}")
_FILE = re.compile(r"(.+) \(ignore_errors=(?:yes|no)\)")
_DAEMON = re.compile(r"(?:^|[\s'\"/;&|(])nvidia-cuda-mps-control((?:[ \t]+[^\s;&|'\")]+)*)")
_ASSIGNED = r"(?:^|[\s'\";&|(]){}=(\"[^\"]*\"|'[^']*'|[^\s;&|'\")]*)"
_NUMBER = re.compile(r"[0-9]{1,10}")
_MAX_STATE_WORD = 64


@frozen
class UnitProperties:
    """One unit. `commands`: those of ExecStart=, arguments joined by spaces; `user`: name or number, empty for root."""

    name: str
    enabled: bool
    commands: tuple[str, ...]
    environment: Mapping[str, str]
    environment_files: tuple[str, ...]
    user: str = ""

    @property
    def daemon_command(self) -> str | None:
        """The command that starts a daemon (`-d`, `-f`), also by a shell or env; not one that only sends `quit`."""
        for command in self.commands:
            if any({"-d", "-f"} & set(arguments.split()) for arguments in _DAEMON.findall(command)):
                return command
        return None

    @property
    def daemon_in_foreground(self) -> bool:
        """Whether that daemon writes its logs to stdout."""
        return re.search(r"\s-f\b", self.daemon_command or "") is not None

    @property
    def daemon_stdout_in_file(self) -> bool:
        """Whether that daemon's stdout is a file, as in nvidia-cuda-mps.service, and not the journal."""
        return re.search(r">>\s*\S*/stdout\.log\b", self.daemon_command or "") is not None

    def assigned(self, variable: str) -> str | None:
        """Return the value that the daemon's command sets: `env A=b daemon -f`, or `sh -c "A=b daemon"`."""
        found = re.findall(_ASSIGNED.format(re.escape(variable)), self.daemon_command or "")
        return str(found[-1]).strip("'\"") if found else None


def parse_unit_properties(text: str) -> Iterator[UnitProperties]:
    """Yield the units that have a name."""
    for values in _units(text):
        if name := _first(values, "Id"):
            commands = map(_COMMAND.fullmatch, values.get("ExecStart", ()))
            files = map(_FILE.fullmatch, values.get("EnvironmentFiles", ()))
            yield UnitProperties(
                name=name,
                enabled=_first(values, "UnitFileState") in ("enabled", "enabled-runtime"),
                commands=tuple(each[1] for each in commands if each is not None),
                environment=_assignments(" ".join(values.get("Environment", ()))),
                environment_files=tuple(each[1] for each in files if each is not None),
                user=_first(values, "User"),
            )


def parse_unit_states(text: str, units: Iterable[str], at: float) -> tuple[UnitState, ...]:
    """Return the state of each of these units in the output, by any of its names. A missing value is empty, or 0."""
    shown: dict[str, Mapping[str, list[str]]] = {}
    for values in _units(text):
        for name in (_first(values, "Id"), *_first(values, "Names").split()):
            shown.setdefault(name, values)
    return tuple(_unit_state(unit, shown[unit], at) for unit in units if unit in shown)


def _unit_state(unit: str, values: Mapping[str, list[str]], at: float) -> UnitState:
    words: dict[str, Any] = {name: _first(values, key)[:_MAX_STATE_WORD] for name, key in _STATE.items()}
    restarts = _first(values, "NRestarts")
    return UnitState(at=at, unit=unit, restarts=int(restarts) if _NUMBER.fullmatch(restarts) else 0, **words)


def _units(text: str) -> Iterator[Mapping[str, list[str]]]:
    """Yield the values of each unit by key. A key such as ExecStart may have several."""
    for block in text.split("\n\n"):
        values: dict[str, list[str]] = {}
        for key, equals, value in (line.partition("=") for line in block.split("\n")):
            if equals:
                values.setdefault(key, []).append(value)
        yield values


def _first(values: Mapping[str, list[str]], key: str) -> str:
    return values.get(key, [""])[0]


def _assignments(text: str) -> Mapping[str, str]:
    """Parse `A=b "C=d e"`: a whole assignment is quoted if necessary."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    pairs = (word.partition("=") for word in words)
    return {name: value for name, equals, value in pairs if name and equals}


# -- EnvironmentFile= (systemd.exec(5)) ----------------------------------------------------------------------------

_ASSIGNMENT = re.compile(r"[ \t]*([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def parse_environment_file(text: str) -> Mapping[str, str]:
    """Return the variables of a file: one assignment in a line, quoted as in a shell. The last one of a name counts."""
    found = map(_ASSIGNMENT.fullmatch, text.replace("\\\n", "").split("\n"))
    return {each[1]: _unquoted(each[2].strip()) for each in found if each is not None}


def _unquoted(value: str) -> str:
    try:
        return "".join(shlex.split(value)) if value[:1] in ("'", '"') else value
    except ValueError:
        return value


# -- journalctl --output=json (systemd.journal-fields(7)) ----------------------------------------------------------
# journald sets the fields that begin with an underscore: no writer can forge them. A value is a text, or a list of
# numbers if it is not UTF-8, or null if it is longer than 4096 bytes.

JOURNAL_FIELDS = ("MESSAGE", "N_DROPPED", "_COMM", "_EXE", "_LINE_BREAK", "_STREAM_ID", "_SYSTEMD_UNIT", "_TRANSPORT")

SUPPRESSED_MESSAGE_ID = "a596d6fe7bfa4994828e72309e95d61e"
"""The message ID with which journald reports that its rate limit dropped lines of a unit."""

_SUPPRESSED = re.compile(r"Suppressed [0-9]{1,12} messages from (.+)")
_COUNT = re.compile(r"[0-9]{1,12}")
_MPS = "nvidia-cuda-mps"


@frozen
class JournalEntry:
    """One entry. `message` is None if it is too long for journalctl.

    `unfinished`: the line continues in the stream's next entry, because it was too long or contained a NUL.
    """

    cursor: str
    message: str | None
    unit: str | None = None
    transport: str | None = None
    program: str | None = None
    stream: str | None = None
    unfinished: bool = False
    dropped: int = 0

    def is_mps_output_of(self, unit: str) -> bool:
        """Return whether MPS of this unit wrote it to stdout. Of an ended process, journald may know only the unit."""
        is_mps = self.program is None or self.program.startswith(_MPS)
        return self.transport == "stdout" and self.unit == unit and is_mps

    def lines_dropped_of(self, unit: str) -> int:
        """Return how many lines of this unit journald dropped, if the entry reports that; else 0."""
        found = _SUPPRESSED.fullmatch(self.message or "") if self.transport == "driver" else None
        return self.dropped if found is not None and found[1] == unit else 0


def parse_journal_entry(line: bytes) -> JournalEntry | None:
    """Parse one line; None if it is not an entry."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    cursor = fields.get("__CURSOR") if isinstance(fields, dict) else None
    if not isinstance(cursor, str) or not cursor:
        return None
    texts = {name: _journal_text(fields.get(name)) for name in JOURNAL_FIELDS}
    program = texts["_EXE"] or texts["_COMM"]
    dropped = texts["N_DROPPED"] or ""
    return JournalEntry(
        cursor=cursor,
        message=texts["MESSAGE"],
        unit=texts["_SYSTEMD_UNIT"],
        transport=texts["_TRANSPORT"],
        program=None if program is None else program.rpartition("/")[2],
        stream=texts["_STREAM_ID"],
        unfinished=texts["_LINE_BREAK"] in ("line-max", "nul"),
        dropped=int(dropped) if _COUNT.fullmatch(dropped) else 0,
    )


def _journal_text(value: object) -> str | None:
    if isinstance(value, list) and all(type(each) is int and 0 <= each <= 255 for each in value):
        return bytes(value).decode(errors="replace")
    return value if isinstance(value, str) else None
