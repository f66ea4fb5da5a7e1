"""One run: `python -m tests.chaos --seed 7`. It ends with 1 at the first broken rule, and prints what led to it."""

import argparse
import contextlib
import random
import sys
import time
import traceback
from pathlib import Path

from tests import seeded_run
from tests.chaos.claims import counts
from tests.chaos.harness import Harness
from tests.chaos.recovery import await_recovery
from tests.chaos.rules import KNOWN_AFTER_SECONDS, broken
from tests.chaos.steps import Step, shuffled_steps
from tests.chaos.terms import TERMS

CALM = 0.7
"""The share of steps after which the run waits for the recovery."""

LONGEST_PAUSE_SECONDS = 0.1
LAST_LINES = 40
IMPATIENCE_SECONDS = 30.0
"""A run that goes on after a failure waits so long for a daemon, and then starts it by itself."""


def main() -> int:
    """Run, and print the result."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--terms", choices=TERMS, default="leaves-alone")
    parser.add_argument("--forger", action="store_true", help="with a hostile user beside it all")
    parser.add_argument("--keep-going", action="store_true", help="name all broken rules at the end, not the first")
    return seeded_run.run(parser, _in_directory)


def _in_directory(arguments: argparse.Namespace, directory: Path) -> list[str]:
    chance = random.Random(arguments.seed)
    may_end = TERMS[arguments.terms]
    with Harness(directory, arguments.seed, may_end=may_end, forger=arguments.forger) as harness:
        if arguments.keep_going:
            harness.patience = IMPATIENCE_SECONDS
        steps = shuffled_steps(chance, arguments.steps)
        problems = _run(harness, chance, steps, keep_going=arguments.keep_going)
        _print_summary(harness)
        if problems:
            _show_logs(harness)
    return problems


def _run(harness: Harness, chance: random.Random, steps: list[Step], *, keep_going: bool) -> list[str]:
    """Run until all steps are done, or a rule is broken."""
    began, failures = time.time(), []
    for number, step in enumerate(steps):
        print(f"{time.time():.2f} {time.time() - began:7.2f} {number:4d} {step.name}", flush=True)
        try:
            if step.needs_recovery:
                await_recovery(harness)
            step.do(harness, chance)
            if chance.random() < CALM:
                await_recovery(harness)
        except Exception as problem:  # noqa: BLE001 any failure is reported with the seed
            failures += [f"{step.name}: {problem}", *([] if keep_going else traceback.format_exc().splitlines()[-5:])]
            if keep_going and harness.daemon is None:
                with contextlib.suppress(RuntimeError):  # It came in the meantime.
                    harness.start_daemon()
        if not keep_going and (problems := [*failures, *broken(harness)]):
            return problems
        time.sleep(chance.uniform(0.0, LONGEST_PAUSE_SECONDS))
    try:
        await_recovery(harness)
    except AssertionError as problem:
        failures.append(str(problem))
    time.sleep(KNOWN_AFTER_SECONDS)
    return [*failures, *broken(harness)]


def _print_summary(harness: Harness) -> None:
    ends = harness.client_ends()
    outcomes = {outcome: sum(end.how is outcome for end in ends) for outcome in sorted({end.how for end in ends})}
    longest = max((lapse.seconds for lapse in harness.limits.lapses), default=0.0)
    print(f"clients: {', '.join(f'{count} {outcome}' for outcome, count in outcomes.items())}")
    print(f"restarts: {len(harness.starts())}; exporters: {harness.exporters}; longest without limits: {longest:.2f} s")
    print(counts(harness.claims, harness.mps.truth))
    print(f"longest pause between two looks at /proc: {harness.processes.longest_pause:.3f} s")


def _show_logs(harness: Harness) -> None:
    for number in range(max(1, harness.exporters - 1), harness.exporters + 1):
        print(f"-- exporter {number}")
        print("\n".join(harness.exporter_log(number).read_text().splitlines()[-LAST_LINES:]))
    if harness.forger:
        print("-- forger")
        print("\n".join(harness.forger_log.read_text().splitlines()[-LAST_LINES:]))
    print("-- actions")
    for action in harness.actions.all[-LAST_LINES:]:
        print(f"{action.at:.2f} {action.what} {action.pid}")


if __name__ == "__main__":
    sys.exit(main())
