"""One run: `python -m tests.chaos --seed 7`. It ends with 1 at the first rule that is broken, and says how it came."""

import argparse
import contextlib
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.chaos.claims import counts
from tests.chaos.deck import Step, deck
from tests.chaos.order import await_order
from tests.chaos.rules import KNOWN_AFTER_SECONDS, broken
from tests.chaos.stage import Stage
from tests.chaos.terms import TERMS

CALM = 0.7
"""The share of steps after which everybody is waited for."""

LONGEST_PAUSE_SECONDS = 0.1
LAST_LINES = 40
IMPATIENCE_SECONDS = 30.0
"""A run that goes on after a failure waits so long for a daemon, and then starts it by itself."""


def main() -> int:
    """Run, and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--terms", choices=TERMS, default="leaves-alone")
    parser.add_argument("--forger", action="store_true", help="with a hostile user beside it all")
    parser.add_argument("--keep-going", action="store_true", help="name all broken rules at the end, not the first")
    told = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="chaos"))
    forger = ", forger" if told.forger else ""
    print(f"seed {told.seed}, {told.steps} steps, {told.terms}{forger}, in {directory}", flush=True)
    chance = random.Random(told.seed)
    with Stage(directory, TERMS[told.terms], told.seed, forger=told.forger) as stage:
        stage.patience = min(stage.patience, IMPATIENCE_SECONDS) if told.keep_going else stage.patience
        problems = _run(stage, chance, deck(chance, told.steps), keep_going=told.keep_going)
        _tell(stage)
    for problem in problems:
        print(f"BROKEN {problem}")
    if problems:
        _show_logs(stage)
        return 1
    shutil.rmtree(directory, ignore_errors=True)
    return 0


def _run(stage: Stage, chance: random.Random, steps: list[Step], *, keep_going: bool) -> list[str]:
    """Until all are done, or a rule is broken."""
    began, failures = time.time(), []
    for number, step in enumerate(steps):
        print(f"{time.time():.2f} {time.time() - began:7.2f} {number:4d} {step.name}", flush=True)
        try:
            if step.needs_order:
                await_order(stage)
            step.do(stage, chance)
            if chance.random() < CALM:
                await_order(stage)
        except Exception as problem:  # noqa: BLE001 whatever it is, it is told with the seed
            failures += [f"{step.name}: {problem}", *([] if keep_going else traceback.format_exc().splitlines()[-5:])]
            if keep_going and stage.daemon is None:
                with contextlib.suppress(RuntimeError):  # It came in the meantime.
                    stage.start_daemon()
        if not keep_going and (problems := [*failures, *broken(stage)]):
            return problems
        time.sleep(chance.uniform(0.0, LONGEST_PAUSE_SECONDS))
    try:
        await_order(stage)
    except AssertionError as problem:
        failures.append(str(problem))
    time.sleep(KNOWN_AFTER_SECONDS)
    return [*failures, *broken(stage)]


def _tell(stage: Stage) -> None:
    """What it was like."""
    ends = stage.client_ends()
    how = {each: sum(end.how is each for end in ends) for each in sorted({end.how for end in ends})}
    longest = max((lapse.seconds for lapse in stage.limits.lapses), default=0.0)
    print(f"clients: {', '.join(f'{count} {each}' for each, count in how.items())}")
    print(f"restarts: {len(stage.starts())}; exporters: {stage.exporters}; longest without limits: {longest:.2f} s")
    print(counts(stage.claims, stage.mps.truth))
    print(f"longest pause of the onlooker: {stage.onlooker.longest_pause:.3f} s")


def _show_logs(stage: Stage) -> None:
    for number in range(max(1, stage.exporters - 1), stage.exporters + 1):
        print(f"-- exporter {number}")
        print("\n".join(stage.exporter_log(number).read_text().splitlines()[-LAST_LINES:]))
    if stage.forger:
        print("-- forger")
        print("\n".join(stage.forgers_book.read_text().splitlines()[-LAST_LINES:]))
    print("-- deeds")
    for deed in stage.deeds.all[-LAST_LINES:]:
        print(f"{deed.at:.2f} {deed.what} {deed.pid}")


if __name__ == "__main__":
    sys.exit(main())
