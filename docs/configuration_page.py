"""configuration.md, from the options."""

import textwrap
from collections.abc import Iterable, Sequence

from exporter.config.load import DEFAULT_FILE, FILE_VARIABLE, default_text
from exporter.config.settings import DAEMON_KEYS, FIXED, OPTIONS, Option

_PAGE = """\
<!-- Written by `python -m docs`. Edit exporter/config/ instead. -->
# Configuration

Every option has a flag, an environment variable, a key in a [TOML](https://toml.io) file, and a default. **The first
that is set counts.** If the exporter does not know a name or cannot use a value, it names the place and ends with exit
code 2. An empty variable sets nothing.

The file is `--config.file`, else `${file_variable}`, else `{default_file}` if it exists.
`--config.file=` reads no file. `serve --config.check` prints the configuration in effect as a file, and exits.

## Options

In flags and variables a duration has a unit (`500ms`, `15s`, `2m`, `1h`); in the file it is a number of seconds. For a
list, repeat the flag, separate the variable by commas, or write a list in the file. `COMMAND --help` shows the options
of a command.

{options}

## Daemons

The exporter finds all control daemons of the node. It *expects* those that the configuration, an enabled systemd unit,
or [Kubernetes](kubernetes.md) declares. If an expected daemon is down, an alert fires. The configuration declares
daemons in one of these ways; the first that applies counts:

1. `--pipe-directory` and `--log-directory` name one daemon. If the file has a daemon with that pipe directory, its keys
   apply.
2. `[[daemons]]` in the file.
3. `CUDA_MPS_PIPE_DIRECTORY` and `CUDA_MPS_LOG_DIRECTORY`, the variables of MPS.

Two daemons cannot have the same name, pipe directory or, without a `unit`, log directory.

{daemon_keys}

## Reload

On SIGHUP the exporter reads the file again. If it cannot be used, the old configuration stays in effect, the log names
the problem, and `cuda_mps_exporter_config_last_reload_successful` is 0. These options change at the next start:

{fixed}
"""


def configuration_page() -> str:
    """Return configuration.md."""
    fixed = ", ".join(f"`{option.key}`" for option in FIXED)
    return _PAGE.format(
        file_variable=FILE_VARIABLE,
        default_file=DEFAULT_FILE,
        options=_table(("flag", "variable", "key", "default", "meaning"), map(_row, OPTIONS)),
        daemon_keys=_table(
            ("key of `[[daemons]]`", "meaning"), ((f"`{key}`", option.help) for key, option in DAEMON_KEYS.items())
        ),
        fixed=textwrap.fill(f"{fixed}.", 120, break_on_hyphens=False),
    )


def _row(option: Option) -> tuple[str, ...]:
    names = (option.flag, option.variable, option.key, default_text(option, option.commands[0]))
    choices = ", ".join(f"`{choice}`" for choice in option.choices)
    return *(f"`{name}`" for name in names), option.help + (f" One of {choices}." if choices else "")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join((lines[0], f"|{'---|' * len(head)}", *lines[1:]))
