"""One run of a mix, from its first client's start to the last one's end."""

import gzip
import json
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lab.gpu.child import EVIDENCE_CHARACTERS, Child
from lab.gpu.mps import ControlDaemon
from lab.gpu.program import Recorder

from .mixes import Mix, Part
from .rows import Rows

SOURCE = Path(__file__).resolve().parents[2]
READY_SECONDS = 15
FAREWELL_SECONDS = 5
WATCHED_SECONDS = 20
# Time for late reports of clients and for the recorder's last reading.
TAIL_SECONDS = 1.5


class Play:
    """A run of a mix. Its files are in its own directory."""

    def __init__(self, mix: Mix, daemon: ControlDaemon, program: Path, directory: Path) -> None:
        self.mix = mix
        self.directory = directory
        self._daemon = daemon
        self._program = program
        self._started: list[tuple[Part, Child]] = []
        self._moments: dict[str, int] = {}
        directory.mkdir()

    def run(self, rows: Rows, seconds: float) -> None:
        """Run the mix, with this time between the last client's start and the end."""
        recorder = Recorder(self._daemon, self.directory / "recording.jsonl", "--attribution=bpf")
        rows.watch(self.directory / "rows.jsonl")
        try:
            _wait_watched(recorder)
            self._act(seconds)
        finally:
            time.sleep(TAIL_SECONDS)
            recorder.interrupt_later()
            self._leave()
            rows.stop()
            self._write_truth()
            recorder.end()
            (self.directory / "recorder.txt").write_text(recorder.child.text()[-EVIDENCE_CHARACTERS:])

    def problems(self) -> list[str]:
        """Return the failures of clients."""
        failures = [
            f"{part.name}: exit code {child.exit_code}" for part, child in self._started if child.exit_code != 0
        ]
        return failures + [
            f"{part.name}: {event}"
            for part, child in self._started
            for event in _events(child)
            if event["event"] == "error"
        ]

    def pack(self) -> None:
        """Compress the files."""
        for plain in [*self.directory.glob("*.jsonl"), *self.directory.glob("*.json")]:
            with plain.open("rb") as source, gzip.open(f"{plain}.gz", "wb", compresslevel=6) as packed:
                shutil.copyfileobj(source, packed)
            plain.unlink()

    def _act(self, seconds: float) -> None:
        began = time.monotonic()
        for place, part in enumerate(part for part in self.mix.parts if part.comes is None):
            _sleep_until(began + place * self.mix.apart)
            self._start(part)
        self._wait_ready()
        self._note("all_in")
        all_in = time.monotonic()
        for after, happen in sorted(self._turns(), key=lambda turn: turn[0]):
            if after < seconds:
                _sleep_until(all_in + after)
                happen()
        _sleep_until(all_in + seconds)
        self._note("measured")

    def _turns(self) -> list[tuple[float, Callable[[], None]]]:
        """Return the actions, and their times after the start of all clients."""
        started = {part.name: child for part, child in self._started}
        comes = [(part.comes, partial(self._start, part)) for part in self.mix.parts if part.comes is not None]
        changes = [
            (part.changes, partial(started[part.name].send, signal.SIGUSR1))
            for part in self.mix.parts
            if part.changes is not None
        ]
        leaves = [(part.leaves, started[part.name].terminate) for part in self.mix.parts if part.leaves is not None]
        return [*comes, *changes, *leaves]

    def _start(self, part: Part) -> None:
        options = [word for item in part.options.items() for word in item if word]
        child = Child(
            [str(self._program), *options],
            output=self.directory / f"{part.name}.events.jsonl",
            environment={**self._daemon.environment, **part.environment},
            directory=SOURCE,
        )
        self._started.append((part, child))

    def _wait_ready(self) -> None:
        """Wait until all clients are ready. Others start late."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and not all(_has(child, "ready") for _, child in self._started):
            time.sleep(0.05)

    def _leave(self) -> None:
        for _, child in self._started:
            if child.exit_code is None:
                child.terminate()
        deadline = time.monotonic() + FAREWELL_SECONDS
        for _, child in self._started:
            child.end(within=max(0.1, deadline - time.monotonic()))

    def _note(self, what: str) -> None:
        self._moments[what] = time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def _write_truth(self) -> None:
        truth = {
            "mix": self.mix.name,
            "note": "occupied_ns: time of SMs that had at least one block of this client; sum_ns: of all its blocks, "
            "two on one SM twice. An SM that two clients share counts for both.",
            "boot_minus_epoch_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.time_ns(),
            "moments": self._moments,
            "clients": [_truth_of(part, child) for part, child in self._started],
            "problems": self.problems(),
        }
        (self.directory / "truth.json").write_text(json.dumps(truth) + "\n")


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def _wait_watched(recorder: Recorder) -> None:
    """Wait until the recorder has read the probes of the node's libcuda."""
    deadline = time.monotonic() + WATCHED_SECONDS
    while '"source": "work"' not in recorder.text():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the probes are not read: {recorder.evidence()}")
        time.sleep(0.1)


def _truth_of(part: Part, child: Child) -> Mapping[str, Any]:
    events = _events(child)
    counts = [event for event in events if event["event"] == "count"]
    keys = [key for key in (counts[0] if counts else {}) if key != "event"]
    return {
        "pid": child.pid,
        "name": part.name,
        "options": dict(part.options),
        "environment": dict(part.environment),
        "exit_code": child.exit_code,
        "events": [event for event in events if event["event"] != "count"],
        "count_keys": keys,
        "counts": [[event[key] for key in keys] for event in counts],
    }


def _has(child: Child, event: str) -> bool:
    return child.exit_code is not None or f'"event": "{event}"' in child.text()


def _events(child: Child) -> list[dict[str, Any]]:
    lines = (line for line in child.text().splitlines(keepends=True) if line.startswith("{") and line.endswith("}\n"))
    return [json.loads(line) for line in lines]
