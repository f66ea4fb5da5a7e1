"""A file that EnvironmentFile= names (systemd.exec(5)): assignments, one a line, with quotes as in a shell."""

import re
import shlex
from collections.abc import Mapping

_ASSIGNMENT = re.compile(r"[ \t]*([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def parse_environment_file(text: str) -> Mapping[str, str]:
    """The variables that it sets; the last one of a name holds. What is no assignment is passed over."""
    lines = text.replace("\\\n", "").split("\n")
    found = (_ASSIGNMENT.fullmatch(line) for line in lines)
    return {each[1]: _unquoted(each[2].strip()) for each in found if each is not None}


def _unquoted(value: str) -> str:
    if value[:1] not in ("'", '"'):
        return value
    try:
        return "".join(shlex.split(value))
    except ValueError:
        return value
