"""The command line: argparse reads it, with the flags that the table of options gives each command."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from exporter import __version__
from exporter.config.document import DEFAULT_FILE, FILE_VARIABLE
from exporter.config.mishap import Mishap
from exporter.config.option import Option
from exporter.config.options import CONFIGURED, DEFAULTS, DEFAULTS_OF, OPTIONS, WATCHING
from exporter.model.daemon import DEFAULT_LOG_DIRECTORY, DEFAULT_PIPE_DIRECTORY
from exporter.model.watch import Mode

if TYPE_CHECKING:
    # argparse has no public name for what add_subparsers() returns.
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001


MOST_LISTED = 20
"""Incidents that `incidents` lists, unless told otherwise."""


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; argparse itself ends the program, with exit code 2, on words that it does not know.

    An option that was given stands in the namespace by its flag, as text; one that was not does not.
    """
    parser = argparse.ArgumentParser(
        prog="cuda-mps-exporter",
        description="Prometheus exporter for NVIDIA CUDA MPS: daemons, servers, clients, and what goes wrong.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"cuda-mps-exporter {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands)
    _add_status(commands)
    _add_incidents(commands)
    _add_record(commands)
    _add_replay(commands)
    _add_demo(commands)
    _command(commands, "pause", "have the running service let go of the driver, so that GPUs can be reset")
    _add_resume(commands)
    return parser.parse_args(arguments)


def _add_serve(commands: "Commands") -> None:
    parser = _command(commands, "serve", "watch this node and serve its metrics")
    parser.add_argument(
        "--config.check",
        dest="config_check",
        action="store_true",
        help="print the configuration in effect, as such a file, and end",
    )


def _add_status(commands: "Commands") -> None:
    parser = _command(commands, "status", "say how the node is: as the running service knows it, or by one look")
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    parser.add_argument(
        "--look",
        action="store_true",
        help="look for oneself, as with --pipe-directory (default: the running service is asked, if there is one)",
    )


def _add_incidents(commands: "Commands") -> None:
    parser = _command(
        commands,
        "incidents",
        "list the last faults: what broke, whom it hit, who may have done it, who holds up recovery",
    )
    parser.add_argument("id", metavar="ID", nargs="?", help="this one alone, with all that is known of it, in words")
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    parser.add_argument("--open", action="store_true", help="only those from which the server has not recovered")
    parser.add_argument("--daemon", metavar="NAME", help="only those of one daemon, by its name in metrics")
    parser.add_argument(
        "--limit", type=_count, default=MOST_LISTED, metavar="N", help=f"the newest so many (default: {MOST_LISTED})"
    )


def _add_record(commands: "Commands") -> None:
    parser = _command(commands, "record", "write down what is seen, until interrupted")
    parser.add_argument(
        "file",
        metavar="FILE",
        help="the recording to write (JSON Lines; packed, if it ends in .gz); - is standard output",
    )
    parser.add_argument("--for", dest="duration", metavar="DURATION", help="how long (default: until interrupted)")


def _add_replay(commands: "Commands") -> None:
    parser = _command(commands, "replay", "tell what a recording tells")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--events", action="store_true", help="print one JSON object for each event")
    what.add_argument("--metrics", action="store_true", help="print the metrics as they stand at the end")
    parser.add_argument(
        "--watchdog",
        choices=tuple(Mode),
        help="have the watchdog judge, too: what it would have told, or done; each action counts as done at once, and"
        " what came after it is as it was recorded (default: no watchdog)",
    )
    parser.add_argument("file", metavar="FILE", help="a recording; - is standard input")


def _add_demo(commands: "Commands") -> None:
    parser = _command(commands, "demo", "serve a simulated node; needs no GPU")
    parser.add_argument("--seed", type=int, default=1, help="another number, another story (default: 1)")
    parser.add_argument(
        "--at",
        action="append",
        default=[],
        metavar="WHEN:WHAT",
        help="what befalls it, and how long after the demo begins, as in 30s:daemon-restarts; of what lasts also how"
        f" long, as in 30s:daemon-dies:2m; may be given again; WHAT is one of {', '.join(Mishap)}",
    )
    parser.add_argument(
        "--calm", action="store_true", help="clients come and go, and nothing befalls it but what --at says"
    )


def _add_resume(commands: "Commands") -> None:
    parser = _command(commands, "resume", "have the running service take up the driver, or restart a daemon, again")
    parser.add_argument(
        "daemon",
        metavar="DAEMON",
        nargs="?",
        help="the daemon, by its name in metrics, whose circuit breaker to close, or which to let out of quarantine"
        " (default: take up the driver again, after pause)",
    )


def _command(commands: "Commands", name: str, meaning: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=meaning, description=meaning, allow_abbrev=False)
    if name in CONFIGURED:
        _add_config_file(parser)
    if name in WATCHING:
        _add_flags_of_the_watching(parser)
    for option in OPTIONS:
        if name in option.commands:
            _add_flag(parser, option, default_text(option, name))
    return parser


def _add_config_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config.file",
        dest="config_file",
        metavar="FILE",
        help=f"the configuration (default: {FILE_VARIABLE}, else {DEFAULT_FILE} where there is one; '' for none)",
    )


def _add_flags_of_the_watching(parser: argparse.ArgumentParser) -> None:
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


def _add_flag(parser: argparse.ArgumentParser, option: Option, default: str) -> None:
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


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("write a whole number from 1 on")
    return int(text)


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
