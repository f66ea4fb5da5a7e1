"""The arguments of each command: its own, and flags from the options.

The modules have what each command does: arguments and a configuration in, the exit code out.
"""

import argparse
from functools import partial
from typing import Any

from exporter.config.load import DEFAULT_FILE, FILE_VARIABLE, default_text
from exporter.config.settings import COLLECTING, CONFIGURED, SECTIONS
from exporter.model.settings import DEFAULT_LOG_DIRECTORY, DEFAULT_PIPE_DIRECTORY, Mode
from exporter.terminal import CHOICES as COLOR_CHOICES

DEFAULT_INCIDENTS = 20
"""Default number of incidents that `incidents` lists."""

_TITLES = {"paths": "configuration", "web": "web server", "clients": "metrics", "attribution": "metrics"}
"""Title of the flags of a section in a command's help, if it is not the section."""


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Add the arguments of a command: its own ones, then the flags of its options."""
    _add_own_arguments(parser, command)
    groups = {}
    if command in CONFIGURED:
        general = groups["configuration"] = parser.add_argument_group("configuration")
        general.add_argument(
            "--config.file",
            dest="config_file",
            metavar="FILE",
            help=f"Configuration file; '' for none. (default: ${FILE_VARIABLE}, else {DEFAULT_FILE} if it exists)",
        )
        if command in COLLECTING:
            general.add_argument(
                "--pipe-directory",
                metavar="DIR",
                help="CUDA_MPS_PIPE_DIRECTORY of the only configured daemon. (default: the daemons of the file, else"
                f" that variable; {DEFAULT_PIPE_DIRECTORY} with --log-directory)",
            )
            general.add_argument(
                "--log-directory",
                metavar="DIR",
                help=f"CUDA_MPS_LOG_DIRECTORY of that daemon. (default: that variable, else {DEFAULT_LOG_DIRECTORY})",
            )
    for section, options in SECTIONS.items():
        title = _TITLES.get(section, section)
        for option in options.values():
            if command not in option.commands:
                continue
            if title not in groups:
                groups[title] = parser.add_argument_group(title)
            kind: dict[str, Any] = {"choices": [*map(str, option.choices)] or None, "metavar": option.metavar}
            match option.default:
                case bool():
                    kind = {"action": argparse.BooleanOptionalAction}
                case tuple() | frozenset():
                    kind["action"] = "append"
            meaning = f"{option.help} (default: {default_text(option, command)})"
            short = ("--watchdog",) if command == "demo" and option.attribute == "watchdog" else ()  # as of `replay`
            groups[title].add_argument(
                *short, option.flag, dest=option.flag, default=argparse.SUPPRESS, help=meaning, **kind
            )


def _add_own_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    add, switch = parser.add_argument, partial(parser.add_argument, action="store_true")
    more = operands = example = ""
    match command:
        case "serve":
            example = "--web.listen-address=127.0.0.1:10677"
            meaning = "Print the configuration in effect as TOML, and exit."
            switch("--config.check", dest="config_check", help=meaning)
        case "status":
            more = (
                "Exit code 0 if the state is `well`; 1 if it is `warning`, `CRITICAL` or `not known yet`, or cannot be"
                " read."
            )
            example = "--brief"
            switch("--json", help="Print JSON.")
            switch("--brief", help="Print an overview and the problems only.")
            add("--daemon", metavar="NAME", help="Show one daemon, by its name in metrics.")
            meaning = "Collect directly, as with --pipe-directory. (default: ask the service if it runs)"
            switch("--look", help=meaning)
            _add_color(parser)
        case "incidents":
            more = "Exit code 1 if a shown incident is open, or incidents cannot be read; else 0."
            operands, example = "[ID]", "--open"
            add("id", metavar="ID", nargs="?", help="Show one incident in detail.")
            switch("--json", help="Print JSON.")
            switch("--open", help="List only incidents that are open.")
            add("--daemon", metavar="NAME", help="List only incidents of one daemon, by its name in metrics.")
            meaning = f"List the newest N incidents. (default: {DEFAULT_INCIDENTS})"
            add("--limit", type=_count, default=DEFAULT_INCIDENTS, metavar="N", help=meaning)
            _add_color(parser)
        case "once":
            more = "Exit code 1 if no service runs; then the file remains as it is."
            example = "--output /var/lib/prometheus/node-exporter/cuda-mps.prom"
            add("--output", metavar="FILE", help="File to replace at once; - for standard output. (default: -)")
        case "record":
            operands, example = "FILE", "--for 10m night.jsonl.gz"
            meaning = "Recording to write (JSON Lines; compressed if it ends in .gz); - for standard output."
            add("file", metavar="FILE", help=meaning)
            add("--for", dest="duration", metavar="DURATION", help="Duration. (default: until interrupted)")
            switch("--mask", help="Replace names and identifiers, the same ones in the same way.")
        case "replay":
            operands, example = "{--list | --events FILE | --metrics FILE}", "--events sample:client_traps"
            what = parser.add_mutually_exclusive_group(required=True)
            what.add_argument("--list", action="store_true", help="List the sample recordings.")
            what.add_argument("--events", action="store_true", help="Print one JSON object for each event.")
            what.add_argument("--metrics", action="store_true", help="Print the metrics at the end of the recording.")
            add(
                "--watchdog",
                choices=[*map(str, Mode)],
                help="Run the watchdog too. Each action counts as done at once; what follows is as recorded."
                " (default: no watchdog)",
            )
            add("file", metavar="FILE", nargs="?", help="Recording to read, or sample:NAME; -: standard input.")
        case "doctor":
            more = "Exit code 2 for a critical finding, 1 for a warning or unknown, else 0. It changes nothing."
            example = "--verbose"
            switch("--json", help="Print JSON.")
            switch("--verbose", help="List the checks that passed too.")
        case "demo":
            # The simulation takes long to import, and only this command needs it.
            from exporter.demo.simulation import FAILURES

            example = "--at 30s:daemon-restarts"
            add("--seed", type=int, default=1, help="Seed of the scenario. (default: 1)")
            failures = ", ".join(f"{name} ({failure.condition})" for name, failure in FAILURES.items())
            add(
                "--at",
                action="append",
                default=[],
                metavar="WHEN:WHAT",
                help="Inject a failure after this time, such as 30s:daemon-restarts; a third part sets its duration,"
                " such as 30s:daemon-dies:2m. Can be repeated, and implies --calm. By default, a failure lasts until"
                " its alert fires. WHAT, with its alert:"
                f" {failures}.",
            )
            switch("--calm", help="Let clients come and go, with no failures but those of --at.")
        case "resume":
            operands, example = "[DAEMON]", DEFAULT_PIPE_DIRECTORY
            meaning = "A daemon whose circuit is open or that is in quarantine, by its name in metrics."
            add("daemon", metavar="DAEMON", nargs="?", help=meaning)
    parser.description = f"{parser.description} {more}"
    parser.usage = f"%(prog)s [OPTION ...] {operands}".rstrip()
    parser.epilog = f"Example: {parser.prog} {example}".rstrip()


def _add_color(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--color",
        choices=COLOR_CHOICES,
        default="auto",
        help="Use colours; auto follows NO_COLOR, FORCE_COLOR and CLICOLOR_FORCE, else uses them on a terminal."
        " (default: auto)",
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("expected an integer of 1 or more")
    return int(text)
