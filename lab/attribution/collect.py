"""Run all mixes, one after another, within a time.

    OUT=DIR python3 -m lab.attribution.collect [--seconds S] [--only MIX]...

DIR gets `mixes.tar.gz`, written anew after every mix: what goes wrong with one costs none of the others.
"""

import argparse
import json
import os
import shutil
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from lab.gpu.clients import build
from lab.gpu.device import the_device
from lab.gpu.mps import ControlDaemon

from .mixes import MIXES, Mix
from .play import Play
from .rows import Rows

LONGEST_SECONDS = 62.0
SHORTEST_SECONDS = 8.0
# Seconds of a mix outside its measured time: start and end of the clients.
JOINING_SECONDS = 6.0


class Collection:
    """The finished mixes, and the time for the others."""

    def __init__(self, directory: Path, results: Path, deadline: float) -> None:
        self._directory = directory
        self._results = results
        self._deadline = deadline
        self._mixes = directory / "mixes"
        self._mixes.mkdir()

    def play(self, mixes: Sequence[Mix]) -> int:
        """Run the mixes, and return the number of failures."""
        program = build(Path(__file__).with_name("known.cu"), self._directory / "known")
        daemon = ControlDaemon(self._directory / "d")
        daemon.start()
        rows = Rows()
        self._write_about(rows.uuid)
        wrong = 0
        try:
            for place, mix in enumerate(mixes):
                seconds = self._seconds_for(mixes[place:])
                if seconds < SHORTEST_SECONDS:
                    _print(f"{mix.name}: left out, no time")
                    continue
                wrong += self._play(Play(mix, daemon, program, self._mixes / mix.name), rows, seconds)
        finally:
            daemon.end()
            for log in daemon.log_directory.glob("*.log"):
                shutil.copy(log, self._mixes)
            self._pack()
        return wrong

    def _play(self, play: Play, rows: Rows, seconds: float) -> bool:
        began = time.monotonic()
        try:
            play.run(rows, seconds)
            problems = play.problems()
        except Exception:  # the other mixes can still run
            problems = [traceback.format_exc()]
        try:
            play.pack()
            self._pack()
        except Exception:
            problems.append(traceback.format_exc())
        took = time.monotonic() - began
        _print(f"{play.mix.name}: {seconds:.0f} s measured, {took:.0f} s in all; {'; '.join(problems) or 'well'}")
        return bool(problems)

    def _seconds_for(self, mixes: Sequence[Mix]) -> float:
        left = self._deadline - time.monotonic() - sum(map(_overhead, mixes))
        return min(LONGEST_SECONDS, left / len(mixes))

    def _write_about(self, uuid: str) -> None:
        device = the_device()
        about = {"gpu": uuid, "name": device.name, "driver": device.driver}
        (self._mixes / "about.json").write_text(json.dumps({**about, "kernel": os.uname().release}) + "\n")

    def _pack(self) -> None:
        fresh = self._results / "mixes.tar.gz.new"
        with tarfile.open(fresh, "w:gz", compresslevel=1) as archive:
            archive.add(self._mixes, arcname="mixes")
        fresh.rename(self._results / "mixes.tar.gz")


def _overhead(mix: Mix) -> float:
    return JOINING_SECONDS + mix.apart * len(mix.parts)


def _print(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}", flush=True)


def main() -> int:
    """Run everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=560.0, help="for all of it, building included")
    parser.add_argument("--only", action="append", metavar="MIX", help="play this mix alone; may be repeated")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    mixes = [mix for mix in MIXES if not options.only or mix.name in options.only]
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as directory:
        wrong = Collection(Path(directory), Path(os.environ["OUT"]), deadline).play(mixes)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
