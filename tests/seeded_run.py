"""A command that repeats random events from a seed, in a directory that remains after a failure."""

import argparse
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def run(parser: argparse.ArgumentParser, body: Callable[[argparse.Namespace, Path], list[str]]) -> int:
    """Run `body` with the arguments and a new directory. Print the problems that it returns; 1 if there are any."""
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix=f"{parser.prog.rpartition('.')[2]}-"))
    print(*(f"{name}={value}" for name, value in vars(arguments).items()), f"in {directory}", flush=True)
    problems = body(arguments, directory)
    for problem in problems:
        print(f"BROKEN {problem}")
    if not problems:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if problems else 0
