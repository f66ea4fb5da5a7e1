"""Run the README's test command until it has passed 20 times in a row, in random order, under load.

`python -m tests.soak [--runs N] [--log FILE]` (log: soak.jsonl in the working directory). The load is two processes
that use a whole CPU each, and an exporter with its default discovery, a stand-in daemon and 50 clients. SIGINT is
ignored in the test command, as in a background job of a shell.

The log has one JSON object for each run: commit, seed, result, seconds, and what failed. The file beside it with the
ending .out has what the tests of the last run printed. An interrupted script continues where it stopped: the runs of
the same commit since the last failure count. The working tree must be clean.
Exit code: 0 if all runs passed, 1 at the first failure, 2 if the working tree has changes, 130 if interrupted.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.programs import free_port, running
from benchmarks.standin_node import StandInNode

ROOT = Path(__file__).resolve().parents[2]
TEST_COMMAND = re.compile(r"\.venv/bin/(python -m pytest .+)$", re.MULTILINE)
RUNS = 20
BUSY_PROCESSES = 2
CLIENTS = 50
RUN_SECONDS = 3600.0


def test_command() -> list[str]:
    """Return the README's test command, run by this Python."""
    found = TEST_COMMAND.search((ROOT / "README.md").read_text())
    if found is None:
        raise SystemExit("README.md has no test command of the form .venv/bin/python -m pytest …")
    return [sys.executable, *shlex.split(found[1])[1:]]


def commit() -> str:
    """Return the commit that is checked out.

    Raises:
        SystemExit: the working tree has changes, so that the commit would not say what was tested.
    """
    if _git("status", "--porcelain", "--untracked-files=no"):
        print("soak: commit or stash your changes first: the log names the commit that was tested", file=sys.stderr)
        raise SystemExit(2)
    return _git("rev-parse", "HEAD")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def passed_in_a_row(log: Path, tested: str) -> int:
    """Return how many runs at the end of the log passed with this commit; another commit or a failure ends the row."""
    count = 0
    lines = log.read_text().splitlines() if log.exists() else []
    for line in reversed(lines):
        run = json.loads(line)
        if run["commit"] != tested or run["result"] != "passed":
            break
        count += 1
    return count


@contextlib.contextmanager
def load(directory: Path) -> Iterator[None]:
    """Keep the machine busy, and run another exporter that discovers all daemons, as on a node that is in use."""
    with contextlib.ExitStack() as stack:
        for _ in range(BUSY_PROCESSES):
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(_end, busy)
        node = stack.enter_context(StandInNode(1, CLIENTS))
        port = free_port()
        own = {
            "RUNTIME_DIRECTORY": str(node.directory / "run"),
            "STATE_DIRECTORY": str(node.directory / "state"),
        }
        serve = [sys.executable, "-m", "exporter", "serve", f"--web.listen-address=127.0.0.1:{port}"]
        log = directory / "soak-exporter.log"
        program = stack.enter_context(running(serve, port, {**node.environment(), **own}, log))
        program.wait_until("^cuda_mps_daemon_up", seconds=120)
        yield


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


def run_once(command: Sequence[str], seed: int, output: Path) -> Mapping[str, Any]:
    """Run the tests with SIGINT ignored; return the result and the names of the tests that failed."""
    began = time.monotonic()
    # What a process ignores, its children ignore: so does a shell with its background jobs.
    heeded = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with output.open("w") as printed:
        tests = subprocess.Popen(
            [*command, f"--randomly-seed={seed}"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    signal.signal(signal.SIGINT, heeded)
    try:
        code = tests.wait(RUN_SECONDS)
    except BaseException:
        os.killpg(tests.pid, signal.SIGKILL)
        tests.wait()
        raise
    said = output.read_text()
    return {
        "result": "passed" if code == 0 else "failed",
        "seconds": round(time.monotonic() - began),
        "failed": re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE),
        "summary": said.strip().splitlines()[-1] if said.strip() else "",
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests until enough runs have passed in a row, or one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS, help=f"runs in a row that must pass (default: {RUNS})")
    parser.add_argument("--log", type=Path, default=Path("soak.jsonl"), help="where each run is logged")
    options = parser.parse_args(arguments)
    tested, command = commit(), test_command()
    passed = passed_in_a_row(options.log, tested)
    # A signal ends the load too.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        with load(options.log.resolve().parent):
            while passed < options.runs:
                seed = random.SystemRandom().randrange(2**32)
                result = run_once(command, seed, options.log.with_suffix(".out"))
                with options.log.open("a") as log:
                    log.write(json.dumps({"commit": tested, "seed": seed, **result}) + "\n")
                print(f"run {passed + 1}: {result['result']} (seed {seed}): {result['summary']}", flush=True)
                if result["result"] == "failed":
                    return 1
                passed += 1
    except KeyboardInterrupt:
        print(f"interrupted after {passed} of {options.runs} runs; the same command continues")
        return 130
    print(f"{passed} of {options.runs} runs passed in a row with commit {tested}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
