"""The command line: argparse reads it.

A command's arguments, and the modules that they need, are loaded only if that command was given.
"""

import argparse
from collections.abc import Mapping, Sequence

from exporter import __version__

PROGRAM = "cuda-mps-exporter"

COMMANDS: Mapping[str, str] = {
    "serve": "watch this node and serve its metrics",
    "status": "say how the node is, as the running service knows it; where none runs, by one look",
    "incidents": "list the last faults: what broke, whom it hit, who may have done it, who holds up recovery",
    "record": "write what is seen to a file, until interrupted",
    "replay": "tell what happened in a recording, or the metrics at its end",
    "doctor": "find the classic mistakes with MPS and this exporter, and how to mend each",
    "demo": "serve a simulated node; needs no GPU",
    "pause": "have the running service close the driver, so that GPUs can be reset",
    "resume": "have the running service take up the driver again, after pause; or, with DAEMON, restart that one again",
}
"""The commands, each with its line in the help."""


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; argparse itself ends the program, with exit code 2, on words that it does not know.

    An option that was given stands in the namespace by its flag, as text; one that was not does not.
    """
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Prometheus exporter for NVIDIA CUDA MPS: daemons, servers, clients, and what goes wrong.",
        epilog="COMMAND --help has the options of a command. To see it all without a GPU: demo.",
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
            from exporter.config.arguments import add_arguments

            add_arguments(of_command, name)
    return parser.parse_args(arguments)
