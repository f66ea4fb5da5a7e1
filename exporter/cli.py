"""The command line: parses it, runs its command, and returns the exit code.

A command's arguments and modules are imported only if that command is given. So `status` does not wait for modules
that only the service needs.
"""

import argparse
import importlib
import os
import re
import sys
from collections.abc import Callable, Container, Mapping, Sequence

from exporter import __version__
from exporter.errors import FULL, ConfigError, ExporterError

TYPE_CHECKING = False  # the import of `typing` would take a tenth of the time of `--version`
if TYPE_CHECKING:
    from exporter.config.settings import Constants

PROGRAM = "cuda-mps-exporter"

COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("commands.serve.serve", "serve the metrics of this node"),
    "status": ("commands.client.status", "show the state of the node, from the service or else by collecting once"),
    "incidents": (
        "commands.client.incidents",
        "list the last faults: affected clients, suspects, and what blocks recovery",
    ),
    "once": ("commands.client.once", "print the metrics of the service, or write them to a file for node_exporter"),
    "record": ("commands.serve.record", "write observations to a file until interrupted"),
    "replay": ("commands.replay.replay", "print the events of a recording, or the metrics at its end"),
    "doctor": (
        "doctor.command.doctor",
        "check for common mistakes with MPS and this exporter, and show how to fix them",
    ),
    "demo": ("demo.command.demo", "serve a simulated node without a GPU"),
    "pause": ("commands.client.pause", "make the service close the GPU driver, so that GPUs can be reset"),
    "resume": ("commands.client.resume", "make the service open the driver again after pause, or restart DAEMON again"),
}
"""The module and the function of each command, and its line in the help."""


def main(arguments: Sequence[str] | None = None, *, constants: "Constants | None" = None) -> int:
    """Run a command and return its exit code. Only tests pass `constants`.

    0: success. 1: failure, or the node is not healthy. 2: wrong usage. 75: `serve` needs another start, because the
    driver was replaced. For `doctor`, 1 is a warning and 2 critical.
    """
    _open_standard_streams()
    parsed = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    try:
        exit_code = _run(parsed, constants)
        print(end="", flush=True)
        return exit_code
    except ExporterError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except BrokenPipeError:
        return _discard_output()
    except OSError as error:
        if error.errno not in FULL:
            raise
        print(f"{PROGRAM}: the output cannot be written: {error.strerror}", file=sys.stderr)
        return _discard_output()


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; exit with code 2 on unknown words.

    The namespace has the text of each option that was given, by its flag.
    """
    # No option before the command has a value, so the first other word is the command.
    given = next((word for word in arguments if not word.startswith("-")), "")
    # The table of options takes longer to import than Python takes to start.
    parser = build_parser((given,))
    if given == "report":
        parser.error("`report` is now the script dashboards/report.py; see docs/fleet.md")
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{_suggestion(unknown[0], given)}")
    return parsed


def _suggestion(word: str, command: str) -> str:
    """Return a known flag of the command that resembles an unknown word."""
    import difflib

    from exporter.commands import add_arguments

    parser = argparse.ArgumentParser(prog=PROGRAM)
    add_arguments(parser, command)
    flags = re.findall(r"(?:^  |, )(--[a-z][a-z.-]+)", parser.format_help(), re.MULTILINE)
    near = difflib.get_close_matches(word.partition("=")[0][:100], flags, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def build_parser(commands: Container[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser, with the arguments of some commands. The man page and completions are made of all."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Prometheus exporter and fault watchdog for NVIDIA CUDA MPS.",
        epilog="COMMAND --help shows the options of a command. `demo` needs no GPU.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, meaning) in COMMANDS.items():
        description = f"{meaning[0].upper()}{meaning[1:]}."
        of_command = subparsers.add_parser(name, help=meaning, description=description, allow_abbrev=False)
        if name in commands:
            from exporter.commands import add_arguments

            add_arguments(of_command, name)
    return parser


def _run(parsed: argparse.Namespace, constants: "Constants | None") -> int:
    module, _, name = COMMANDS[parsed.command][0].rpartition(".")
    command: Callable[..., int] = getattr(importlib.import_module(f"exporter.{module}"), name)
    if parsed.command == "doctor":
        return command(parsed, constants)
    # Imported here, because `--version` and `--help` need no configuration.
    from exporter.config.load import build_config

    return command(parsed, build_config(parsed, os.environ, constants=constants))


def _open_standard_streams() -> None:
    """Open each closed standard stream as /dev/null. Otherwise a file that the program opens would take its place."""
    try:
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(descriptor, True)
        os.close(descriptor)
    except FileNotFoundError:
        pass  # a root directory without /dev
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 (open until the end)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115 (open until the end)


def _discard_output() -> int:
    """Return the exit code if no more output can be written. The interpreter flushes stdout at its end."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (closed by the interpreter)
    return 1
