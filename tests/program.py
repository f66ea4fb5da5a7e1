"""The program with other constants, which no flag, variable or file can set: shorter intervals, other paths.

`python -m tests.program OVERRIDES serve ...` runs a command. OVERRIDES is a JSON object of fields of `Constants`; its
`intervals`, `rules` and `retention` are objects of theirs. They come on top of those in the variable
TESTED_CONSTANTS, by which `tests/conftest.py` keeps programs away from the machine's daemons and logs.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from exporter import cli
from exporter.config.settings import Constants

VARIABLE = "TESTED_CONSTANTS"

Overrides = Mapping[str, Any]


def constants(overrides: Overrides | None = None) -> Constants:
    """Return the constants, with those of the variable and with these."""
    made: Constants = _replaced(_replaced(Constants(), json.loads(os.environ.get(VARIABLE, "{}"))), overrides or {})
    return made


def main(arguments: Sequence[str] | None = None, **overrides: Any) -> int:
    """Run a command in this process."""
    return cli.main(arguments, constants=constants(overrides))


def command(*arguments: str, **overrides: Any) -> list[str]:
    """Return the arguments of Python that run a command in a process of its own."""
    return ["-m", "tests.program", json.dumps(overrides, default=str), *arguments]


def variable(**overrides: Any) -> dict[str, str]:
    """Return the variable with these on top of those that it has."""
    return {VARIABLE: json.dumps(json.loads(os.environ.get(VARIABLE, "{}")) | overrides, default=str)}


def _replaced(value: Any, overrides: Overrides) -> Any:
    known = {each.name: getattr(value, each.name) for each in fields(value)}
    return replace(value, **{name: _made(known[name], raw) for name, raw in overrides.items()})


def _made(before: Any, raw: Any) -> Any:
    if is_dataclass(before):
        return _replaced(before, raw)
    return Path(raw) if isinstance(before, Path) else raw


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], **json.loads(sys.argv[1])))
