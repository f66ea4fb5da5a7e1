"""docs/configuration.md, from the table of options: `python -m exporter.config.reference > docs/configuration.md`."""

import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from exporter.config.daemon_keys import DAEMON_KEYS, DaemonKey
from exporter.config.document import DAEMONS, DEFAULT_FILE, FILE_VARIABLE
from exporter.config.flags import default_text
from exporter.config.option import Option
from exporter.config.options import DEFAULTS, OPTIONS
from exporter.config.written import toml

WIDTH = 120

_ABOUT = f"""\
<!-- Written by `python -m exporter.config.reference > docs/configuration.md`. Edit the table of options instead. -->
# Configuration

Everything has a default. What can be set has a flag, an environment variable, and a key in a
[TOML](https://toml.io) file; **a flag outweighs the variable, the variable the file, the file the default**. A name
that is not known, or a value that cannot be used, ends the exporter at its start, with exit code 2 and a message that
says where it stands. A variable that is empty sets nothing.

The file is `--config.file`, else the variable `{FILE_VARIABLE}`, else
`{DEFAULT_FILE}` where there is one. `serve`, `status`, `record` and `doctor` read it, so
that all look at the same daemons; `--config.file=` (nothing) reads none. `serve --config.check` prints what is in
effect, written as a configuration file, and ends.

## Options

In flags and variables a time has its unit (`500ms`, `15s`, `2m`, `1h`); in the file it is a number of seconds. A list
is a flag given again, a variable with commas, or a list in the file. What is on or off is `true` or `false`, and as a
flag `--discovery` or `--no-discovery`; `auto`, where that is the default, does it where this machine can, without
complaint where it cannot. `COMMAND --help` says which of them a command takes.
"""

_DAEMONS = """\
## Daemons

Which control daemons to watch:

1. `--pipe-directory` names one, and `--log-directory` its logs, for a look at it alone. What the file says about the
   daemon of that pipe directory counts.
2. Else the file does, in `[[daemons]]`. It outweighs the variables below: those are MPS' own, and say which daemon a
   CUDA process would use.
3. Else `CUDA_MPS_PIPE_DIRECTORY` and `CUDA_MPS_LOG_DIRECTORY`, as everywhere in MPS.
4. Else, and only without `discovery`, there may be one where MPS has it by default, `/tmp/nvidia-mps` and
   `/var/log/nvidia-mps`; this one is not *expected*: nobody named it, so its absence is no outage.

With `discovery`, the exporter finds other daemons too. It expects those that an enabled systemd unit starts, and those
that NVIDIA's device plugin for Kubernetes declares. It does not expect any other daemon that it finds. Names and pipe
directories differ, and so do log directories, unless a `unit` is given.
"""

_RELOAD = """\
## Reload

On SIGHUP the file is read anew. If it cannot be used, all stays as it was, the log says why, and
`cuda_mps_exporter_config_last_reload_successful` is 0. These stay as they are until the exporter starts anew, and the
log names those that have changed in the file:
"""

_EXAMPLE = """\
## A whole file

With the defaults, and one daemon:
"""


def reference() -> str:
    """The page."""
    fixed = ", ".join(f"`{option.key}`" for option in OPTIONS if not option.reloadable)
    return "\n".join(
        (
            _ABOUT,
            *_table(("flag", "variable", "in the file", "default", "meaning"), map(_row, OPTIONS)),
            "",
            _DAEMONS,
            *_table((f"in `[[{DAEMONS}]]`", "meaning"), ((f"`{each.key}`", each.help) for each in DAEMON_KEYS)),
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


def example() -> str:
    """A file that says everything, with what it means."""
    lines: list[str] = []
    for section, options in groupby(OPTIONS, key=lambda option: option.section):
        lines += [f"[{section}]"]
        for option in options:
            lines += _set(option)
        lines += [""]
    lines += [f"[[{DAEMONS}]]"]
    for each in DAEMON_KEYS:
        lines += textwrap.wrap(f"# {each.help}", WIDTH, subsequent_indent="# ")
        if each.instead_of is None:
            lines += [f"{each.key} = {_written(each, each.example)}"]
        else:
            lines += [f"# {each.key} = {toml(each.kind.to_toml(each.example))}"]
    return "\n".join(lines) + "\n"


def _set(option: Option) -> Iterator[str]:
    yield from textwrap.wrap(f"# {option.help}", WIDTH, subsequent_indent="# ")
    value, key = option.of(DEFAULTS), option.key_in_section
    yield f'# {key} = "…"' if value is None else f"{key} = {_written(option, value)}"


def _written(each: Option | DaemonKey, value: object) -> str:
    written = each.kind.to_toml(value)
    if isinstance(written, list) and len(written) > 1:
        return "\n".join(("[", *(f"  {toml(one)}," for one in written), "]"))
    return toml(written)


def _row(option: Option) -> tuple[str, ...]:
    names = (option.name, option.variable, option.key, default_text(option, option.commands[0]))
    return *(f"`{name}`" for name in names), option.help


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    sys.stdout.write(reference())
