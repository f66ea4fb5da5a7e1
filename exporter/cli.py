"""The command line: reads it, has its command do what it says, and returns the exit code.

Each command loads its own modules, so `status` does not wait for those that only the service needs.
"""

import importlib
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence

from exporter.command_line import parse_arguments
from exporter.errors import FULL, ConfigError, ExporterError

TYPE_CHECKING = False  # the import of `typing` would take a tenth of the time of `--version`
if TYPE_CHECKING:
    from exporter.config.settings import Constants

_FUNCTIONS: Mapping[str, str] = {
    "serve": "serve.serve",
    "demo": "demo.demo",
    "status": "status.show_status",
    "incidents": "incidents.show_incidents",
    "record": "record.record",
    "replay": "replay.replay",
    "doctor": "doctor.doctor",
    "pause": "pause.pause",
    "resume": "pause.resume",
}
"""The module in `commands` and the function of each command."""


def main(arguments: Sequence[str] | None = None, *, constants: "Constants | None" = None) -> int:
    """Run a command and return its exit code. Only tests pass `constants`.

    0: success. 1: failure, or the node is not healthy. 2: wrong usage. For `doctor`, 1 is a warning and 2 an error.
    """
    parsed = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    try:
        exit_code = _run(parsed, constants)
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


def _run(parsed: Namespace, constants: "Constants | None") -> int:
    module, _, name = _FUNCTIONS[parsed.command].partition(".")
    command: Callable[..., int] = getattr(importlib.import_module(f"exporter.commands.{module}"), name)
    if parsed.command == "doctor":
        return command(parsed, constants)
    # `--version` and `--help` end before this, and need no configuration.
    from exporter.config.load import build_config

    return command(parsed, build_config(parsed, os.environ, constants=constants))


def _unheard() -> int:
    """The exit code where nobody reads on, or nothing more can be written."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (the interpreter still flushes it, as it ends)
    return 1
