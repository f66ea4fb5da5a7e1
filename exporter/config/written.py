"""The configuration written as the file that would say the same."""

import json
from collections.abc import Iterator

from exporter.config.daemon_keys import DAEMON_KEYS
from exporter.config.document import DAEMONS
from exporter.config.kinds import Toml
from exporter.config.options import OPTIONS
from exporter.config.settings import Config, DaemonConfig


def as_toml(config: Config) -> str:
    """The whole of a configuration, its defaults included; read as a file, it gives the same one."""
    lines: list[str] = []
    section = None
    for option in OPTIONS:
        if option.section != section:
            section = option.section
            lines += ["", f"[{section}]"]
        value = option.of(config)
        if value is not None:
            lines.append(f"{option.key_in_section} = {toml(option.kind.to_toml(value))}")
    for daemon in config.daemons:
        lines += ["", f"[[{DAEMONS}]]", *_daemon(daemon)]
    return "\n".join(lines).lstrip() + "\n"


def _daemon(daemon: DaemonConfig) -> Iterator[str]:
    for each in DAEMON_KEYS:
        value = getattr(daemon, each.attribute)
        if value is not None and value != ():
            yield f"{each.key} = {toml(each.kind.to_toml(value))}"


def toml(value: Toml) -> str:
    """A value in TOML, whose strings are escaped as JSON's are but for DEL.

    What a path has that is no UTF-8 cannot be said in TOML, and stands there as a question mark.
    """
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            text = value.encode(errors="replace").decode()
            return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return f"[{', '.join(toml(each) for each in value)}]"
        case _:
            return str(value)
