"""The arguments of each command: its own, and flags from the table of options."""

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from exporter.config.load import DEFAULT_FILE, FILE_VARIABLE
from exporter.config.options import COLLECTING, CONFIGURED, OPTIONS, Option
from exporter.config.reference import default_text
from exporter.model.settings import DEFAULT_LOG_DIRECTORY, DEFAULT_PIPE_DIRECTORY, Mode
from exporter.terminal import CHOICES as COLOR_CHOICES

if TYPE_CHECKING:
    # argparse has no public name for a group of arguments.
    Group = argparse._ArgumentGroup  # noqa: SLF001

DEFAULT_INCIDENTS = 20
"""Default number of incidents that `incidents` lists."""

_GENERAL = "configuration"
_TITLES = {
    "paths": _GENERAL,
    "web": "web server",
    "log": "log",
    "clients": "metrics",
    "attribution": "metrics",
    "watchdog": "watchdog",
}
"""Title of the flags of each section in a command's help, in this order."""


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Add the arguments of a command: its own ones, then the flags of its options."""
    _OWN_ARGUMENTS[command](parser)
    of_command = [option for option in OPTIONS if command in option.commands]
    present = {_TITLES[option.section] for option in of_command} | ({_GENERAL} if command in CONFIGURED else set())
    groups = {title: parser.add_argument_group(title) for title in dict.fromkeys(_TITLES.values()) if title in present}
    if command in CONFIGURED:
        _add_config_file(groups[_GENERAL])
    if command in COLLECTING:
        _add_directories(groups[_GENERAL])
    for option in of_command:
        _add_flag(groups[_TITLES[option.section]], option, default_text(option, command))


def _add_config_file(group: "Group") -> None:
    group.add_argument(
        "--config.file",
        dest="config_file",
        metavar="FILE",
        help=f"Configuration file; '' for none. (default: ${FILE_VARIABLE}, else {DEFAULT_FILE} if it exists)",
    )


def _add_directories(group: "Group") -> None:
    group.add_argument(
        "--pipe-directory",
        metavar="DIR",
        help="CUDA_MPS_PIPE_DIRECTORY of the only configured daemon. (default: the daemons of the file, else"
        f" that variable; {DEFAULT_PIPE_DIRECTORY} with --log-directory)",
    )
    group.add_argument(
        "--log-directory",
        metavar="DIR",
        help=f"CUDA_MPS_LOG_DIRECTORY of that daemon. (default: that variable, else {DEFAULT_LOG_DIRECTORY})",
    )


def _add_flag(group: "Group", option: Option, default: str) -> None:
    meaning = f"{option.help} (default: {default})".replace("%", "%%")
    if option.kind.boolean:
        group.add_argument(
            option.name,
            dest=option.name,
            action=argparse.BooleanOptionalAction,
            default=argparse.SUPPRESS,
            help=meaning,
        )
        return
    group.add_argument(
        option.name,
        dest=option.name,
        action="append" if option.kind.repeatable else "store",
        default=argparse.SUPPRESS,
        choices=option.kind.choices or None,
        metavar=None if option.kind.choices else option.kind.metavar,
        help=meaning,
    )


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _describe(parser, example="--web.listen-address=127.0.0.1:10677 --log.level=debug")
    parser.add_argument(
        "--config.check",
        dest="config_check",
        action="store_true",
        help="Print the configuration in effect as a configuration file, and exit.",
    )


def _add_status(parser: argparse.ArgumentParser) -> None:
    _describe(
        parser,
        "Exit code 1 if a daemon is not up or not healthy, a server is in FAULT, a GPU needs a reset, a limit has"
        " drifted, or something cannot be collected; else 0. Waiting clients, full servers and processes that bypass"
        " MPS do not change it.",
        example="--brief",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    parser.add_argument("--brief", action="store_true", help="Print an overview and the problems only.")
    parser.add_argument("--daemon", metavar="NAME", help="Show one daemon, by its name in metrics.")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--look",
        action="store_true",
        help="Collect directly, as with --pipe-directory. (default: ask the service if it runs)",
    )
    _add_url(parser, source)
    _add_color(parser)


def _add_incidents(parser: argparse.ArgumentParser) -> None:
    _describe(
        parser,
        "Exit code 1 if a shown incident is open, or incidents cannot be read; else 0.",
        operands="[ID]",
        example="--open",
    )
    parser.add_argument("id", metavar="ID", nargs="?", help="Show one incident in detail.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    parser.add_argument("--open", action="store_true", help="List only incidents whose server has not recovered.")
    parser.add_argument("--daemon", metavar="NAME", help="List only incidents of one daemon, by its name in metrics.")
    parser.add_argument(
        "--limit",
        type=_count,
        default=DEFAULT_INCIDENTS,
        metavar="N",
        help=f"List the newest N incidents. (default: {DEFAULT_INCIDENTS})",
    )
    _add_url(parser, parser)
    _add_color(parser)


def _add_url(parser: argparse.ArgumentParser, group: "argparse._ActionsContainer") -> None:
    group.add_argument(
        "--url",
        metavar="URL",
        help="Ask the exporter at this address, such as http://node1:10677. Its user and password are in ~/.netrc."
        " SSL_CERT_FILE names the file of its CA.",
    )
    parser.add_argument("--cert", metavar="FILE", help="Client certificate and its key (PEM) for --url.")


def _add_color(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--color",
        choices=COLOR_CHOICES,
        default="auto",
        help="Use colours; auto follows NO_COLOR, FORCE_COLOR and CLICOLOR_FORCE, else uses them on a terminal."
        " (default: auto)",
    )


def _add_once(parser: argparse.ArgumentParser) -> None:
    _describe(
        parser,
        "Exit code 1 if no service runs; then the file remains as it is.",
        example="--output /var/lib/prometheus/node-exporter/cuda-mps.prom",
    )
    parser.add_argument("--output", metavar="FILE", help="File to replace at once; - for standard output. (default: -)")


def _add_record(parser: argparse.ArgumentParser) -> None:
    _describe(parser, operands="FILE", example="--for 10m night.jsonl.gz")
    parser.add_argument(
        "file",
        metavar="FILE",
        help="Recording to write (JSON Lines; compressed if it ends in .gz); - for standard output.",
    )
    parser.add_argument("--for", dest="duration", metavar="DURATION", help="Duration. (default: until interrupted)")
    parser.add_argument(
        "--mask", action="store_true", help="Replace names and identifiers, the same ones in the same way."
    )


def _add_replay(parser: argparse.ArgumentParser) -> None:
    _describe(parser, operands="{--list | --events FILE | --metrics FILE}", example="--events sample:culprit_trap")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true", help="List the sample recordings.")
    what.add_argument("--events", action="store_true", help="Print one JSON object for each event.")
    what.add_argument("--metrics", action="store_true", help="Print the metrics at the end of the recording.")
    parser.add_argument(
        "--watchdog",
        choices=tuple(Mode),
        help="Run the watchdog too. Each action counts as done at once; what follows is as recorded."
        " (default: no watchdog)",
    )
    parser.add_argument("file", metavar="FILE", nargs="?", help="Recording to read, or sample:NAME; -: standard input.")


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    _describe(
        parser,
        "Exit code 0 for advice at most, 1 for a warning, 2 for an error. It changes nothing.",
        example="--verbose",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    parser.add_argument("--verbose", action="store_true", help="List the checks that passed too.")


def _add_demo(parser: argparse.ArgumentParser) -> None:
    # The simulation takes long to import, and only this command needs it.
    from exporter.demo.failures import FAILURES

    _describe(parser, example="--at 30s:daemon-restarts")
    failures = ", ".join(f"{name} ({each.alert or 'no alert'})" for name, each in FAILURES.items())
    parser.add_argument("--seed", type=int, default=1, help="Seed of the scenario. (default: 1)")
    parser.add_argument(
        "--at",
        action="append",
        default=[],
        metavar="WHEN:WHAT",
        help="Inject a failure after this time, such as 30s:daemon-restarts; a third part sets its duration, such as"
        " 30s:daemon-dies:2m. Can be repeated, and implies --calm. By default, a failure lasts until its alert fires."
        f" WHAT, with its alert: {failures}.",
    )
    parser.add_argument(
        "--calm", action="store_true", help="Let clients come and go, with no failures but those of --at."
    )


def _add_pause(parser: argparse.ArgumentParser) -> None:
    _describe(parser)


def _add_resume(parser: argparse.ArgumentParser) -> None:
    _describe(parser, operands="[DAEMON]", example=DEFAULT_PIPE_DIRECTORY)
    parser.add_argument(
        "daemon",
        metavar="DAEMON",
        nargs="?",
        help="A daemon whose circuit is open or that is in quarantine, by its name in metrics.",
    )


def _describe(parser: argparse.ArgumentParser, more: str = "", *, operands: str = "", example: str = "") -> None:
    """Complete the texts of a command's help; in its usage, `operands` follow the options."""
    parser.description = f"{parser.description} {more}"
    parser.usage = f"%(prog)s [OPTION ...] {operands}".rstrip()
    parser.epilog = f"Example: {parser.prog} {example}".rstrip()


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("expected an integer of 1 or more")
    return int(text)


_OWN_ARGUMENTS: Mapping[str, Callable[[argparse.ArgumentParser], None]] = {
    "serve": _add_serve,
    "status": _add_status,
    "incidents": _add_incidents,
    "once": _add_once,
    "record": _add_record,
    "replay": _add_replay,
    "doctor": _add_doctor,
    "demo": _add_demo,
    "pause": _add_pause,
    "resume": _add_resume,
}
