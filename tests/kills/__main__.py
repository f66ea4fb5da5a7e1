"""`python -m tests.kills --kills 1000 --seed 7`: ends with 1 at the first broken rule, and prints what led to it."""

import argparse
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from tests import seeded_run
from tests.kills.exporter_run import StepLog, run_exporter, steps_of
from tests.kills.gpu_timeline import GpuTimeline
from tests.kills.totals_check import TotalsCheck

LONGEST_RUN_SECONDS = 0.08
"""In real time, from the fork to the kill."""

SECONDS_A_RUN = 40
"""About how many seconds of the timeline an exporter sees, and how many pass until the next one."""

MOST_SECONDS_A_RUN = 900
TIMELINE_SECONDS = 3000
"""At its end, the timeline begins again."""

CLEAN_EXITS = 0.1
"""How many of the exporters exit by themselves."""


def main() -> int:
    """Run, and print the result."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    return seeded_run.run(parser, _run)


def _run(arguments: argparse.Namespace, directory: Path) -> list[str]:
    chance = random.Random(arguments.seed)
    timeline = GpuTimeline.random(chance, TIMELINE_SECONDS)
    check = TotalsCheck(timeline)
    begin, runs, exits = 0, 0, 0
    while runs - exits < arguments.kills:
        log = directory / f"run-{runs}"
        end = begin + chance.randint(3, SECONDS_A_RUN) if chance.random() < CLEAN_EXITS else None
        exits += not _was_killed(chance, timeline, begin, directory / "state", log, end)
        if problems := check.check(begin, log):
            return [f"run {runs}, from second {begin}: {problem}" for problem in problems]
        last = max((line["second"] for line in steps_of(log) if line["what"] == "posts"), default=begin)
        begin = (last + chance.randint(1, SECONDS_A_RUN)) % (TIMELINE_SECONDS - MOST_SECONDS_A_RUN)
        runs += 1
    lost = check.lost_seconds
    if not lost:
        return ["no run began with the totals of another one"]
    print(f"{runs - exits} kills, {check.during_write} of them during a write; {exits} clean exits")
    print(f"{check.watched_seconds} s in the totals; lost by kills: {sum(lost)} s, at most {max(lost)} s at once")
    return []


def _was_killed(
    chance: random.Random, timeline: GpuTimeline, begin: int, state: Path, log: Path, end: int | None
) -> bool:
    """Run an exporter in a child, and return whether it was killed. It must not fail."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
        try:
            run_exporter(timeline, begin, state, StepLog(log), end=begin + MOST_SECONDS_A_RUN if end is None else end)
            status = 0
        except BaseException:  # noqa: BLE001 the child must not continue as its parent
            traceback.print_exc()
        finally:
            os._exit(status)
    if end is None:
        time.sleep(chance.uniform(0.0, LONGEST_RUN_SECONDS))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or status == 0, f"an exporter exited with status {status}"
    return os.WIFSIGNALED(status)


if __name__ == "__main__":
    sys.exit(main())
