"""The command line: reads it, has its command do what it says, and returns the exit code."""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence

from exporter import log
from exporter.commands.doctor import doctor
from exporter.commands.incidents import show_incidents
from exporter.commands.pause import pause, resume
from exporter.commands.record import record, replay
from exporter.commands.serve import demo, serve
from exporter.commands.status import show_status
from exporter.config import Config, build_config, parse_arguments
from exporter.errors import FULL, ConfigError, ExporterError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. 0: well; 1: it failed, or what it shows is not well; 2: it was asked wrongly.

    Of `doctor`, 1 is that something is worth a warning, 2 that something is an error.
    """
    parsed = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    try:
        exit_code = _run(parsed)
        print(end="", flush=True)
        return exit_code
    except ConfigError as error:
        print(f"cuda-mps-exporter: {error}", file=sys.stderr)
        return 2
    except ExporterError as error:
        print(f"cuda-mps-exporter: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return _unheard()
    except OSError as error:
        if error.errno not in FULL:
            raise
        print(f"cuda-mps-exporter: the output cannot be written: {error.strerror}", file=sys.stderr)
        return _unheard()


def _run(parsed: Namespace) -> int:
    if parsed.command == "doctor":
        return doctor(parsed)
    config = build_config(parsed, os.environ)
    log.configure(config.log_level, config.log_format, sys.stderr)
    return _COMMANDS[parsed.command](parsed, config)


def _unheard() -> int:
    """The exit code where nobody reads on, or nothing more can be written."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (the interpreter still flushes it, as it ends)
    return 1


_COMMANDS: Mapping[str, Callable[[Namespace, Config], int]] = {
    "serve": serve,
    "demo": demo,
    "status": show_status,
    "incidents": show_incidents,
    "record": record,
    "replay": replay,
    "pause": pause,
    "resume": resume,
}
