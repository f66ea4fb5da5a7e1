"""`python -m tests.kills --kills 1000 --seed 7`: ends with 1 at the first rule that is broken, and says how it came."""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.kills.judge import Judge
from tests.kills.life import StepLog, live, steps_of
from tests.kills.world import World

LONGEST_LIFE_SECONDS = 0.08
"""In real time, from the fork to the kill."""

SECONDS_A_LIFE = 40
"""About how many seconds of the world one life sees, and misses after it."""

MOST_SECONDS_A_LIFE = 900
WORLD_SECONDS = 3000
"""The world is lived through again and again."""

IN_GOOD_ORDER = 0.1
"""How many of the lives end by themselves."""


def main() -> int:
    """Run, and print the result."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    directory = Path(tempfile.mkdtemp(prefix="kills"))
    print(f"seed {arguments.seed}, in {directory}", flush=True)
    began = time.monotonic()
    problems = _run(chance, arguments.kills, directory)
    for problem in problems:
        print(f"BROKEN {problem}")
    if not problems:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"{time.monotonic() - began:.1f} s")
    return 1 if problems else 0


def _run(chance: random.Random, kills: int, directory: Path) -> list[str]:
    world = World.made(chance, WORLD_SECONDS)
    judge = Judge(world)
    begin, lives, ended = 0, 0, 0
    while lives - ended < kills:
        path = directory / f"life-{lives}"
        ends = begin + chance.randint(3, SECONDS_A_LIFE) if chance.random() < IN_GOOD_ORDER else None
        killed = _life(chance, world, begin, directory / "state", path, ends)
        ended += not killed
        if problems := judge.check(begin, path):
            return [f"life {lives}, from second {begin}: {each}" for each in problems]
        begin = (_last(path, begin) + chance.randint(1, SECONDS_A_LIFE)) % (WORLD_SECONDS - MOST_SECONDS_A_LIFE)
        lives += 1
    lost = judge.lost_seconds
    print(f"{lives - ended} kills, {judge.in_mid_write} of them in the middle of a write; {ended} ends in good order")
    print(f"{judge.watched_seconds} s in the books; lost with the kills: {sum(lost)} s, at most {max(lost)} s at once")
    return []


def _life(chance: random.Random, world: World, begin: int, state: Path, path: Path, ends: int | None) -> bool:
    """Whether it was killed; AssertionError where it ended by itself and not in good order."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
        try:
            live(world, begin, state, StepLog(path), ends=begin + MOST_SECONDS_A_LIFE if ends is None else ends)
            status = 0
        except BaseException:  # noqa: BLE001 whatever it is, the child must not go on as its parent
            traceback.print_exc()
        finally:
            os._exit(status)
    if ends is None:
        time.sleep(chance.uniform(0.0, LONGEST_LIFE_SECONDS))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or status == 0, f"a life ended with status {status}"
    return os.WIFSIGNALED(status)


def _last(path: Path, begin: int) -> int:
    """The last second that was seen."""
    return max((line["second"] for line in steps_of(path) if line["what"] == "posts"), default=begin)


if __name__ == "__main__":
    sys.exit(main())
