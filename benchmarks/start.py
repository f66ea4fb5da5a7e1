"""Duration of commands compared with an empty Python interpreter: medians of one run."""

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.nodes import real_or_standin
from benchmarks.programs import exporter
from benchmarks.report import Figure, arguments_parser, report

PROGRAM = Path(sys.executable).with_name("cuda-mps-exporter")
INTERPRETER = "python -c pass"
RECORDING = Path(__file__).parents[1] / "tests" / "recordings" / "h200_three_clients.jsonl.gz"

COMMANDS: Mapping[str, tuple[Sequence[str], float | None]] = {
    "--version": (("--version",), 8.0),
    "--help": (("--help",), 8.0),
    "status": (("status",), 20.0),
    "status --look": (("status", "--look"), None),
    "doctor": (("doctor",), None),
    "incidents": (("incidents",), 20.0),
    "pause": (("pause",), 20.0),
    "resume": (("resume",), 20.0),
    "replay": (("replay", "--events", str(RECORDING)), None),
}
"""The commands with their arguments and limits, as multiples of the interpreter's time."""

MILLISECONDS = 1000


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and report."""
    parser = arguments_parser("start", __doc__ or "", gpus=1, clients=4)
    parser.add_argument("--times", type=int, default=20, help="of each, in a random order (default: %(default)s)")
    parser.add_argument("--program", type=Path, default=PROGRAM, help="the exporter's command (default: %(default)s)")
    options = parser.parse_args(words)
    commands = {name: [str(options.program), *given] for name, (given, _) in COMMANDS.items()}
    commands[INTERPRETER] = [sys.executable, "-c", "pass"]
    times: dict[str, list[float]] = {name: [] for name in commands}
    with real_or_standin(options) as node, exporter(node, options.flag):
        environment = {**os.environ, **node.environment(), "RUNTIME_DIRECTORY": str(node.directory / "run")}
        for _ in range(options.times):
            for name in random.sample(list(commands), len(commands)):
                times[name].append(_milliseconds(commands[name], environment))
    alone = statistics.median(times.pop(INTERPRETER))
    figures = [Figure(name=INTERPRETER, value=alone, unit="ms")]
    for name, each in times.items():
        median = statistics.median(each)
        figures += [
            Figure(name=name, value=median, unit="ms"),
            Figure(name=f"{name} / {INTERPRETER}", value=median / alone, most=COMMANDS[name][1]),
        ]
    return report(f"Start-up: {node.title}", figures, options.json)


def _milliseconds(command: Sequence[str], environment: Mapping[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
    return (time.perf_counter() - began) * MILLISECONDS


if __name__ == "__main__":
    sys.exit(main())
