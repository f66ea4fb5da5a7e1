"""Run many fault trials on a real GPU. Each is a recording with its truth; all are in one archive.

python3 -m lab.fault_trials --out DIR [--plan PLAN] [--limit N] [--seconds S]

As root, with MPS and nvcc. DIR gets `trials.tar.gz`, written anew after every few trials: one that is cut short has
what was there by then.
"""

import argparse
import os
import shutil
import signal
import sys
import tarfile
import tempfile
import time
import traceback
from pathlib import Path

from lab.gpu.clients import LOAD_PROGRAM, build

from .plans import PLANS
from .runner import TrialRunner

PACKED_EVERY = 10
MOST_FAILURES = 5


def main() -> int:
    """Return the number of trials that could not be run, at most 100."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plan", choices=PLANS, default="exploratory")
    parser.add_argument("--only", default="", help="run only trials whose name starts with this")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no trial after so long")
    arguments = parser.parse_args()
    # Like an interrupt, so that results are packed, and no client or daemon remains.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    trials = [trial for trial in PLANS[arguments.plan]() if trial.name.startswith(arguments.only)][: arguments.limit]
    arguments.out.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="ft", dir="/tmp"))
    root.chmod(0o755)
    results = root / "results"
    results.mkdir()
    # With core dumps, the danger is what the probes seem to show.
    attribution = ("--attribution=bpf",) if arguments.plan == "core-dumps" else ()
    runner = TrialRunner(root, build(LOAD_PROGRAM, root / "load"), results, *attribution)
    ends = time.monotonic() + arguments.seconds
    failures = 0
    try:
        for number, trial in enumerate(trials, start=1):
            if time.monotonic() > ends or failures > MOST_FAILURES:
                break
            begun = time.monotonic()
            try:
                truth = runner.play(trial)
                outcome = f"victims {len(truth['victims'])}, refused {len(truth['refused'])}, left {truth['left_over']}"
            except Exception:
                failures += 1
                outcome = traceback.format_exc()
            sys.stdout.write(f"{number}/{len(trials)} {trial.name}: {time.monotonic() - begun:.2f} s, {outcome}\n")
            sys.stdout.flush()
            if number % PACKED_EVERY == 0:
                runner.write_answers()
                _pack(root, results, runner.logs(), arguments.out)
    finally:
        runner.close()
        _pack(root, results, runner.logs(), arguments.out)
        shutil.rmtree(root)
    return min(failures, 100)


def _pack(root: Path, results: Path, logs: list[Path], out: Path) -> None:
    """Replace the archive in one step, so that there is always a complete one."""
    unfinished = out.parent / f"{out.name}.unfinished"
    with tarfile.open(unfinished, "w:gz", compresslevel=3) as archive:
        for file in [*sorted(results.iterdir()), *logs]:
            name = file.name if file.parent == results else f"logs/{'-'.join(file.relative_to(root).parts)}"
            archive.add(file, arcname=name)
    shutil.move(unfinished, out / "trials.tar.gz")
    os.sync()


if __name__ == "__main__":
    sys.exit(main())
