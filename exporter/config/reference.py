"""The configuration as text: the file that has the same effect, and docs/configuration.md.

`python -m exporter.config.reference > docs/configuration.md` writes the page.
"""

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from exporter.config.load import DEFAULT_FILE, FILE_VARIABLE
from exporter.config.options import DAEMON_KEYS, DAEMONS, DEFAULTS, DEFAULTS_OF, OPTIONS, DaemonKey, Option
from exporter.config.settings import Config
from exporter.config.values import Toml

WIDTH = 120

_ABOUT = f"""\
<!-- Written by `python -m exporter.config.reference > docs/configuration.md`. Edit the tables of options instead. -->
# Configuration

Every option has a flag, an environment variable, a key in a [TOML](https://toml.io) file, and a default. **A flag
outweighs the variable, the variable outweighs the file, and the file outweighs the default.** The exporter ends with
exit code 2 if it does not know a name or cannot use a value. The message names the place. An empty variable sets
nothing.

The file is `--config.file`, else `${FILE_VARIABLE}`, else `{DEFAULT_FILE}` if it exists.
`--config.file=` reads no file. `serve --config.check` prints the configuration in effect as a file, and exits.

## Options

In flags and variables a duration has a unit (`500ms`, `15s`, `2m`, `1h`); in the file it is a number of seconds. For a
list, repeat the flag, separate the variable by commas, or write a list in the file. `COMMAND --help` shows the options
of a command.
"""

_DAEMONS = """\
## Daemons

The exporter finds all control daemons of the node. It *expects* those that are declared: by the configuration, by an
enabled systemd unit, by NVIDIA's device plugin or DRA driver for Kubernetes, or by GKE. If an expected daemon is
absent, an alert fires. The configuration declares daemons in one of these ways; the first that applies counts:

1. `--pipe-directory` and `--log-directory` name one daemon. If the file has a daemon with that pipe directory, its keys
   apply.
2. `[[daemons]]` in the file.
3. `CUDA_MPS_PIPE_DIRECTORY` and `CUDA_MPS_LOG_DIRECTORY`, the variables of MPS.

Two daemons cannot have the same name, pipe directory or, without a `unit`, log directory.
"""

_RELOAD = """\
## Reload

On SIGHUP the exporter reads the file again. If the file cannot be used, the old configuration stays in effect, the log
names the problem, and `cuda_mps_exporter_config_last_reload_successful` is 0. A change of these options takes effect at
the next start, and the log names them:
"""

_EXAMPLE = """\
## Example

A file with all defaults, and one daemon:
"""


def as_toml(config: Config) -> str:
    """Return a configuration as a file, with its defaults. Reading that file gives the same configuration."""
    lines = list(_options(config))
    for daemon in config.daemons:
        values = ((each, getattr(daemon, each.attribute)) for each in DAEMON_KEYS)
        lines += [f"[[{DAEMONS}]]", *(_line(each, value) for each, value in values if value not in (None, ())), ""]
    return "\n".join(lines)


def example() -> str:
    """Return a file with every key."""
    keys = (f"{'' if key.instead_of is None else '# '}{_line(key, key.example)}" for key in DAEMON_KEYS)
    return "\n".join((*_options(DEFAULTS, with_unset=True), f"[[{DAEMONS}]]", *keys)) + "\n"


def _options(config: Config, *, with_unset: bool = False) -> Iterator[str]:
    for section, options in groupby(OPTIONS, key=lambda option: option.section):
        yield f"[{section}]"
        for each in options:
            value = each.of(config)
            if value is not None:
                yield _line(each, value)
            elif with_unset:
                yield f'# {each.key_in_section} = "…"'
        yield ""


def _line(each: Option | DaemonKey, value: object) -> str:
    return f"{each.key_in_section} = {toml(each.kind.write(value))}"


def toml(value: Toml) -> str:
    """Return a value in TOML. Strings are escaped as in JSON, and DEL too.

    TOML has no form for bytes of a path that are not UTF-8: they become question marks.
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


def default_text(option: Option, command: str) -> str:
    """Return the default of a command's option, as its flag has it."""
    value = DEFAULTS_OF.get(command, {}).get(option.attribute, option.of(DEFAULTS))
    written = None if value is None else option.kind.write(value)
    match written:
        case None | []:
            return "none"
        case list():
            return ", ".join(written)
        case bool():
            return str(written).lower()
        case _:
            return f"{written}s" if option.key.endswith("_seconds") else str(written)


def reference() -> str:
    """Return docs/configuration.md."""
    fixed = ", ".join(f"`{option.key}`" for option in OPTIONS if not option.reloadable)
    return "\n".join(
        (
            _ABOUT,
            *_table(("flag", "variable", "key", "default", "meaning"), map(_row, OPTIONS)),
            "",
            _DAEMONS,
            *_table((f"key of `[[{DAEMONS}]]`", "meaning"), ((f"`{each.key}`", each.help) for each in DAEMON_KEYS)),
            "",
            _RELOAD,
            *textwrap.wrap(f"{fixed}.", WIDTH, break_on_hyphens=False),
            "",
            _EXAMPLE,
            "```toml",
            f"{example()}```",
            "",
        )
    )


def _row(option: Option) -> tuple[str, ...]:
    names = (option.name, option.variable, option.key, default_text(option, option.commands[0]))
    choices = ", ".join(f"`{each}`" for each in option.kind.choices)
    return *(f"`{name}`" for name in names), option.help + (f" One of {choices}." if choices else "")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    sys.stdout.write(reference())
