"""How systemd units are: the `Key=value` lines of `systemctl show`, a blank line between units (tried: 252).

What is missing, as in other versions, is empty, or 0.
"""

import re
from collections.abc import Iterable, Mapping

from exporter.model.witnesses import UnitState

PROPERTIES = (
    "Id",
    "Names",
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "Restart",
    "NRestarts",
    "MainPID",
)

_NUMBER = re.compile(r"[0-9]{1,10}")
_LONGEST = 64


def unit_states(text: str, units: Iterable[str], at: float) -> tuple[UnitState, ...]:
    """Each of these units that is shown, by any of its names."""
    shown: dict[str, Mapping[str, str]] = {}
    for block in text.split("\n\n"):
        values = dict(line.split("=", 1) for line in block.split("\n") if "=" in line)
        names = (values.get("Id", ""), *values.get("Names", "").split())
        shown.update((name, values) for name in names if name not in shown)
    return tuple(_state(unit, shown[unit], at) for unit in units if unit in shown)


def _state(unit: str, values: Mapping[str, str], at: float) -> UnitState:
    def word(key: str) -> str:
        return values.get(key, "")[:_LONGEST]

    def number(key: str) -> int:
        return int(word(key)) if _NUMBER.fullmatch(word(key)) else 0

    return UnitState(
        at=at,
        unit=unit,
        load=word("LoadState"),
        active=word("ActiveState"),
        sub=word("SubState"),
        result=word("Result"),
        restart=word("Restart"),
        restarts=number("NRestarts"),
        main_pid=number("MainPID"),
    )
