"""The command line, read by argparse.

A command's arguments, and the modules that they need, are loaded only if that command was given.
"""

import argparse
from collections.abc import Mapping, Sequence

from exporter import __version__

PROGRAM = "cuda-mps-exporter"

COMMANDS: Mapping[str, str] = {
    "serve": "serve the metrics of this node",
    "status": "show the state of the node, from the service or else by collecting once",
    "incidents": "list the last faults: affected clients, suspects, and what blocks recovery",
    "record": "write observations to a file until interrupted",
    "replay": "print the events of a recording, or the metrics at its end",
    "doctor": "check for common mistakes with MPS and this exporter, and show how to fix them",
    "demo": "serve a simulated node without a GPU",
    "pause": "make the service close the GPU driver, so that GPUs can be reset",
    "resume": "make the service open the driver again after pause, or restart DAEMON again",
}
"""The commands, each with its line in the help."""


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; exit with code 2 on unknown words.

    The namespace has the text of each option that was given, by its flag.
    """
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Prometheus exporter and fault watchdog for NVIDIA CUDA MPS.",
        epilog="COMMAND --help shows the options of a command. `demo` needs no GPU.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    # No option before the command has a value, so the first other word is the command.
    given = next((word for word in arguments if not word.startswith("-")), None)
    for name, meaning in COMMANDS.items():
        description = f"{meaning[0].upper()}{meaning[1:]}."
        of_command = commands.add_parser(name, help=meaning, description=description, allow_abbrev=False)
        if name == given:
            # The table of options takes longer to import than Python takes to start.
            from exporter.commands.arguments import add_arguments

            add_arguments(of_command, name)
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(_about_unknown(unknown))
    return parsed


def _about_unknown(words: Sequence[str]) -> str:
    """Return what is wrong: an option that was removed, or the words that are unknown."""
    from exporter.config.options import removed

    problems = (removed(word.partition("=")[0]) for word in words if word.startswith("--"))
    return next(filter(None, problems), f"unrecognized arguments: {' '.join(words)}")
