"""Entries of the systemd journal, as `journalctl --output=json` writes them, one a line (systemd.journal-fields(7)).

Fields that begin with an underscore are journald's own word, which no writer can forge. Values are texts; of bytes that
are no UTF-8 a list of numbers; null where they are longer than 4096 bytes. Read and tried with systemd 252.
"""

import json
import re
from dataclasses import dataclass

SUPPRESSED = "a596d6fe7bfa4994828e72309e95d61e"
"""The message ID with which journald tells that its rate limit let lines of a unit fall."""

FIELDS = ("MESSAGE", "N_DROPPED", "_COMM", "_EXE", "_LINE_BREAK", "_STREAM_ID", "_SYSTEMD_UNIT", "_TRANSPORT")

_SUPPRESSED = re.compile(r"Suppressed [0-9]{1,12} messages from (.+)")
_COUNT = re.compile(r"[0-9]{1,12}")
_MPS = "nvidia-cuda-mps"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One entry. `message` is None where it is too long to be shown.

    `unfinished` says that the line goes on in the stream's next entry: it was too long, or had a NUL in it.
    """

    cursor: str
    message: str | None
    unit: str | None = None
    transport: str | None = None
    program: str | None = None
    stream: str | None = None
    unfinished: bool = False
    dropped: int = 0

    def said_by(self, unit: str) -> bool:
        """Whether an MPS binary wrote it to its stdout in this unit, as far as journald could tell who wrote it.

        Of a process that has gone by the time journald looks, it knows the unit alone.
        """
        ours = self.program is None or self.program.startswith(_MPS)
        return self.transport == "stdout" and self.unit == unit and ours

    def lost_of(self, unit: str) -> int:
        """How many lines of this unit journald let fall, where this entry is its word on that."""
        told = _SUPPRESSED.fullmatch(self.message or "") if self.transport == "driver" else None
        return self.dropped if told is not None and told[1] == unit else 0


def parse_entry(line: bytes) -> JournalEntry | None:
    """Read one line; None where it is no entry."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    cursor = fields.get("__CURSOR") if isinstance(fields, dict) else None
    if not isinstance(cursor, str) or not cursor:
        return None
    texts = {name: _text(fields.get(name)) for name in FIELDS}
    program = texts["_EXE"] or texts["_COMM"]
    return JournalEntry(
        cursor=cursor,
        message=texts["MESSAGE"],
        unit=texts["_SYSTEMD_UNIT"],
        transport=texts["_TRANSPORT"],
        program=None if program is None else program.rpartition("/")[2],
        stream=texts["_STREAM_ID"],
        unfinished=texts["_LINE_BREAK"] in ("line-max", "nul"),
        dropped=int(texts["N_DROPPED"] or 0) if _COUNT.fullmatch(texts["N_DROPPED"] or "") else 0,
    )


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(type(each) is int and 0 <= each <= 255 for each in value):
        return bytes(value).decode(errors="replace")
    return None
