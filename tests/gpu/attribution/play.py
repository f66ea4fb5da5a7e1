"""One mix, from its first client's start to the last one's end."""

import gzip
import json
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.gpu.child import Child
from tests.gpu.mps import ControlDaemon
from tests.gpu.program import Recorder

from .mixes import Mix, Part
from .onlooker import Onlooker
from .recording import merge

SOURCE = Path(__file__).resolve().parents[3]
READY_SECONDS = 15
MODELS_READY_SECONDS = 50
PROFILE_SECONDS = 15
FAREWELL_SECONDS = 5
# What a counted client says late, and the onlooker's last look.
TAIL_SECONDS = 0.6


class Play:
    """What it writes lies in a directory of its own."""

    def __init__(self, mix: Mix, daemon: ControlDaemon, program: Path, directory: Path) -> None:
        self.mix = mix
        self.directory = directory
        self._daemon = daemon
        self._program = program
        self._started: list[tuple[Part, Child]] = []
        self._moments: dict[str, int] = {}
        self._pids: tuple[int, ...] = ()
        directory.mkdir()

    def run(self, onlooker: Onlooker, seconds: float) -> None:
        """Play it, with so many seconds between the last client's joining and the end."""
        recorder = Recorder(self._daemon, self.directory / "node.jsonl")
        onlooker.watch(self.directory / "work.jsonl", self.directory / "rows.jsonl")
        try:
            self._act(onlooker, seconds)
        finally:
            recorder.interrupt_later()
            self._leave()
            onlooker.stop()
            self._write_truth()
            recorder.end()

    def problems(self) -> list[str]:
        """What went wrong with clients."""
        told = [f"{part.name}: exit code {child.exit_code}" for part, child in self._started if child.exit_code != 0]
        return told + [
            f"{part.name}: {event}" for part, child in self._started for event in _said(child) if _is_problem(event)
        ]

    def pack(self) -> None:
        """Make one recording, and compress what is plain."""
        node, work = self.directory / "node.jsonl", self.directory / "work.jsonl"
        with suppress(OSError, ValueError):
            merge(node, work, self.directory / "recording.jsonl")
            node.unlink()
            work.unlink()
        for plain in [*self.directory.glob("*.jsonl"), *self.directory.glob("*.json")]:
            with plain.open("rb") as source, gzip.open(f"{plain}.gz", "wb", compresslevel=6) as packed:
                shutil.copyfileobj(source, packed)
            plain.unlink()

    def _act(self, onlooker: Onlooker, seconds: float) -> None:
        models = [part for part in self.mix.parts if part.learns]
        for part in models:
            self._start(part)
        self._tell(onlooker)
        self._wait_ready(MODELS_READY_SECONDS)
        (self.directory / "go").touch()
        began = time.monotonic()
        self._note("go")
        for part in sorted((part for part in self.mix.parts if not part.learns), key=lambda part: part.after):
            time.sleep(max(0.0, began + part.after - time.monotonic()))
            self._start(part)
            self._tell(onlooker)
        self._wait_ready(READY_SECONDS)
        self._tell(onlooker)
        self._note("all_in")
        time.sleep(seconds)
        self._note("measured")
        if models:
            self._profile()

    def _start(self, part: Part) -> None:
        options = [word for item in part.options.items() for word in item if word]
        command = [str(self._program), *options]
        if part.learns:
            places = {"--lock": "alone.lock", "--go": "go", "--out": part.name}
            told = [word for key, name in places.items() for word in (key, str(self.directory / name))]
            command = [sys.executable, "-m", "tests.gpu.attribution.model", *options, *told]
        child = Child(
            command,
            output=self.directory / f"{part.name}.said.jsonl",
            environment={**self._daemon.environment, **part.environment},
            directory=SOURCE,
        )
        self._started.append((part, child))
        self._pids = (*self._pids, child.pid)

    def _tell(self, onlooker: Onlooker) -> None:
        """Who is there, and of those who have said it, how many SMs they were given."""
        ready = (event for _, child in self._started for event in _said(child) if event["event"] == "ready")
        onlooker.know(self._pids, {event["pid"]: event["sms"] for event in ready if "sms" in event})

    def _wait_ready(self, within: float) -> None:
        """Whoever is not ready by then joins later."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline and not all(_has(child, "ready") for _, child in self._started):
            time.sleep(0.05)

    def _profile(self) -> None:
        """All PyTorch clients at once profile themselves for a moment."""
        models = [child for part, child in self._started if part.learns and child.exit_code is None]
        for child in models:
            child.send(signal.SIGUSR1)
        deadline = time.monotonic() + PROFILE_SECONDS
        while time.monotonic() < deadline and not all(_has(child, "profiled") for child in models):
            time.sleep(0.1)
        self._note("profiled")

    def _leave(self) -> None:
        time.sleep(TAIL_SECONDS)
        for _, child in self._started:
            if child.exit_code is None:
                child.end_later()
        deadline = time.monotonic() + FAREWELL_SECONDS
        for _, child in self._started:
            child.end(within=max(0.1, deadline - time.monotonic()))

    def _note(self, what: str) -> None:
        self._moments[what] = time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def _write_truth(self) -> None:
        truth = {
            "mix": self.mix.name,
            "note": "occupied_ns: time of SMs that had at least one block of this client; sum_ns: of all its blocks, "
            "two on one SM twice. An SM that two clients share counts for both. PyTorch's: see its steps and traces.",
            "boot_minus_epoch_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.time_ns(),
            "moments": self._moments,
            "clients": [_truth_of(part, child) for part, child in self._started],
            "problems": self.problems(),
        }
        (self.directory / "truth.json").write_text(json.dumps(truth) + "\n")


def _truth_of(part: Part, child: Child) -> Mapping[str, Any]:
    said = _said(child)
    counts = [event for event in said if event["event"] == "count"]
    keys = [key for key in (counts[0] if counts else {}) if key != "event"]
    return {
        "pid": child.pid,
        "name": part.name,
        "learns": part.learns,
        "options": dict(part.options),
        "environment": dict(part.environment),
        "exit_code": child.exit_code,
        "said": [event for event in said if event["event"] != "count"],
        "count_keys": keys,
        "counts": [[event[key] for key in keys] for event in counts],
    }


def _has(child: Child, event: str) -> bool:
    return child.exit_code is not None or f'"event": "{event}"' in child.text()


def _said(child: Child) -> list[dict[str, Any]]:
    lines = (line for line in child.text().splitlines(keepends=True) if line.startswith("{") and line.endswith("}\n"))
    return [json.loads(line) for line in lines]


def _is_problem(event: Mapping[str, Any]) -> bool:
    return event["event"] == "error" or "problem" in event or "problem" in event.get("profiled", {})
