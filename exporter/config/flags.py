"""The flags of a command: those that the table of options gives it, each under the title of its section."""

import argparse
from typing import TYPE_CHECKING

from exporter.config.document import DEFAULT_FILE, FILE_VARIABLE
from exporter.config.option import Option
from exporter.config.options import CONFIGURED, DEFAULTS, DEFAULTS_OF, OPTIONS, WATCHING
from exporter.model.variables import DEFAULT_LOG_DIRECTORY, DEFAULT_PIPE_DIRECTORY

if TYPE_CHECKING:
    # argparse has no public name for a group of arguments.
    Group = argparse._ArgumentGroup  # noqa: SLF001

GENERAL = "what to watch, and places"
GROUPS = {
    "paths": GENERAL,
    "discovery": "finding daemons",
    "collect": "what to read",
    "rhythm": "how often",
    "attribution": "who used how much of a GPU",
    "accounting": "who used how much of a GPU",
    "clients": "series of clients",
    "watchdog": "watchdog",
    "history": "history",
    "web": "serving",
    "log": "logging",
}
"""Under which title the options of a section stand in a command's help, in this order."""


def add_flags(parser: argparse.ArgumentParser, command: str) -> None:
    """Add all that can be set for a command."""
    of_command = [option for option in OPTIONS if command in option.commands]
    there = {_title(option) for option in of_command} | ({GENERAL} if command in CONFIGURED else set())
    groups = {title: parser.add_argument_group(title) for title in dict.fromkeys(GROUPS.values()) if title in there}
    if command in CONFIGURED:
        _add_config_file(groups[GENERAL])
    if command in WATCHING:
        _add_flags_of_the_watching(groups[GENERAL])
    for option in of_command:
        _add_flag(groups[_title(option)], option, default_text(option, command))


def default_text(option: Option, command: str) -> str:
    """An option's default as its flag would say it."""
    value = DEFAULTS_OF.get(command, {}).get(option.attribute, option.of(DEFAULTS))
    if value is None:
        return "none"
    written = option.kind.to_toml(value)
    match written:
        case list():
            return ", ".join(written)
        case bool():
            return "true" if written else "false"
        case _:
            return f"{written}s" if option.key.endswith("_seconds") else str(written)


def _title(option: Option) -> str:
    return GROUPS[option.section]


def _add_config_file(parser: "Group") -> None:
    parser.add_argument(
        "--config.file",
        dest="config_file",
        metavar="FILE",
        help=f"the configuration (default: {FILE_VARIABLE}, else {DEFAULT_FILE} where there is one; '' for none)",
    )


def _add_flags_of_the_watching(parser: "Group") -> None:
    parser.add_argument(
        "--pipe-directory",
        metavar="DIR",
        help="the one daemon to watch, by its CUDA_MPS_PIPE_DIRECTORY; naming it makes the daemon an expected one"
        f" (default: those that the configuration names, else that variable, else {DEFAULT_PIPE_DIRECTORY})",
    )
    parser.add_argument(
        "--log-directory",
        metavar="DIR",
        help=f"that daemon's CUDA_MPS_LOG_DIRECTORY (default: that variable, else {DEFAULT_LOG_DIRECTORY})",
    )


def _add_flag(parser: "Group", option: Option, default: str) -> None:
    meaning = f"{option.help} (default: {default})".replace("%", "%%")
    if option.kind.boolean:
        parser.add_argument(
            option.name,
            dest=option.name,
            action=argparse.BooleanOptionalAction,
            default=argparse.SUPPRESS,
            help=meaning,
        )
        return
    parser.add_argument(
        option.name,
        dest=option.name,
        action="append" if option.kind.repeatable else "store",
        default=argparse.SUPPRESS,
        choices=option.kind.choices or None,
        metavar=None if option.kind.choices else option.kind.metavar,
        help=meaning,
    )
