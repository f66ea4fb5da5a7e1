"""The arguments of each command: its own, and the flags that the table of options gives it."""

import argparse
from collections.abc import Callable, Mapping

from exporter.command_line import PROGRAM
from exporter.config.flags import add_flags
from exporter.config.mishap import Mishap
from exporter.config.values import parse_duration
from exporter.errors import ConfigError
from exporter.model.settings import Mode
from exporter.terminal.colours import CHOICES as COLOR_CHOICES

WATCH_SECONDS = 2.0
"""So often `status --watch` shows the node, unless told otherwise."""

SOONEST_SECONDS, LATEST_SECONDS = 0.5, 3600.0

MOST_LISTED = 20
"""Incidents that `incidents` lists, unless told otherwise."""


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Add the arguments of a command to its parser; the command's own stand before the flags, as `options`."""
    _OWN_ARGUMENTS[command](parser)
    add_flags(parser, command)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _describe(parser, example="serve --web.listen-address=127.0.0.1:10677 --log.level=debug")
    parser.add_argument(
        "--config.check",
        dest="config_check",
        action="store_true",
        help="print the configuration in effect, written as a configuration file, and end",
    )


def _add_status(parser: argparse.ArgumentParser) -> None:
    _describe(
        parser,
        "Exit code: 0 if all is well; 1 where a daemon is not up or not well, a server is in FAULT, a GPU needs a"
        " reset, a limit has drifted, or something cannot be seen. Clients that wait, full servers, and processes that"
        " bypass MPS are shown, and leave it 0.",
        example="status --watch",
    )
    parser.add_argument("--json", action="store_true", help="as JSON, for programs; with --watch, one object a line")
    parser.add_argument("--brief", action="store_true", help="at a glance: who is there, and what is the matter")
    parser.add_argument("--daemon", metavar="NAME", help="only one daemon, by its name in metrics")
    parser.add_argument(
        "--watch",
        type=_seconds,
        nargs="?",
        const=WATCH_SECONDS,
        metavar="SECONDS",
        help=f"again and again, until interrupted (default: every {WATCH_SECONDS:g} s)",
    )
    parser.add_argument(
        "--look",
        action="store_true",
        help="look at the node directly, as with --pipe-directory (default: ask the running service, if there is one)",
    )
    _add_color(parser)


def _add_incidents(parser: argparse.ArgumentParser) -> None:
    _describe(
        parser,
        "Exit code: 1 where one that is shown is still open, or nothing can be told; else 0.",
        operands="[ID]",
        example="incidents --open",
    )
    parser.add_argument("id", metavar="ID", nargs="?", help="only this one, with all that is known of it")
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    parser.add_argument("--open", action="store_true", help="only those from which the server has not recovered")
    parser.add_argument("--daemon", metavar="NAME", help="only those of one daemon, by its name in metrics")
    parser.add_argument(
        "--limit", type=_count, default=MOST_LISTED, metavar="N", help=f"only the newest N (default: {MOST_LISTED})"
    )
    _add_color(parser)


def _add_color(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--color",
        choices=COLOR_CHOICES,
        default="auto",
        help="whether to use colours; auto heeds NO_COLOR, FORCE_COLOR and CLICOLOR_FORCE, else uses them on a terminal"
        " (default: auto)",
    )


def _add_record(parser: argparse.ArgumentParser) -> None:
    _describe(parser, operands="FILE", example="record --for 10m night.jsonl.gz")
    parser.add_argument(
        "file",
        metavar="FILE",
        help="the recording to write (JSON Lines; packed, if it ends in .gz); - is standard output",
    )
    parser.add_argument("--for", dest="duration", metavar="DURATION", help="how long (default: until interrupted)")


def _add_replay(parser: argparse.ArgumentParser) -> None:
    _describe(parser, operands="{--events|--metrics} FILE", example="replay --events --watchdog act night.jsonl.gz")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--events", action="store_true", help="print one JSON object for each event")
    what.add_argument("--metrics", action="store_true", help="print the metrics as they stand at the end")
    parser.add_argument(
        "--watchdog",
        choices=tuple(Mode),
        help="have the watchdog judge it, too: what it would have said, or done; each action counts as done at once,"
        " though what follows is as it was recorded (default: no watchdog)",
    )
    parser.add_argument("file", metavar="FILE", help="a recording; - is standard input")


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    _describe(
        parser,
        "Exit code: 0 if nothing is worse than advice, 1 for a warning, 2 for an error. It changes nothing.",
        example="doctor --verbose",
    )
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    parser.add_argument("--verbose", action="store_true", help="list the checks that found nothing wrong, too")


def _add_demo(parser: argparse.ArgumentParser) -> None:
    _describe(parser, example="demo --at 30s:daemon-restarts")
    parser.add_argument("--seed", type=int, default=1, help="another number makes another story (default: 1)")
    parser.add_argument(
        "--at",
        action="append",
        default=[],
        metavar="WHEN:WHAT",
        help="what happens, and how long after the demo begins, as in 30s:daemon-restarts; a third part says how long"
        f" it lasts, as in 30s:daemon-dies:2m; may be given again; WHAT is one of {', '.join(Mishap)}",
    )
    parser.add_argument(
        "--calm", action="store_true", help="clients come and go, and nothing else happens but what --at says"
    )


def _add_pause(parser: argparse.ArgumentParser) -> None:
    _describe(parser, example="pause")


def _add_resume(parser: argparse.ArgumentParser) -> None:
    _describe(parser, operands="[DAEMON]", example="resume /tmp/nvidia-mps")
    parser.add_argument(
        "daemon",
        metavar="DAEMON",
        nargs="?",
        help="a daemon, by its name in metrics, that the watchdog had given up, or that is in quarantine",
    )


def _describe(parser: argparse.ArgumentParser, more: str = "", *, operands: str = "", example: str) -> None:
    """Complete the texts of a command's help; `operands` follow the options in its usage."""
    parser.description = f"{parser.description} {more}"
    parser.usage = f"%(prog)s [OPTION ...] {operands}".rstrip()
    parser.epilog = f"example: {PROGRAM} {example}"


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("write a whole number from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = parse_duration("", text)
    except ConfigError:
        seconds = 0.0
    if not SOONEST_SECONDS <= seconds <= LATEST_SECONDS:
        raise argparse.ArgumentTypeError("write a duration from 500ms to 1h, such as 5 or 2m")
    return seconds


_OWN_ARGUMENTS: Mapping[str, Callable[[argparse.ArgumentParser], None]] = {
    "serve": _add_serve,
    "status": _add_status,
    "incidents": _add_incidents,
    "record": _add_record,
    "replay": _add_replay,
    "doctor": _add_doctor,
    "demo": _add_demo,
    "pause": _add_pause,
    "resume": _add_resume,
}
