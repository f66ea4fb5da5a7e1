"""Run `replay` on a recording in this process, and return its output as plain values."""

import gzip
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from exporter.cli import main

HERE = Path(__file__).parent
FOLDERS = (HERE.parent / "recordings", HERE.parent / "attribution", HERE / "recordings")
RECORDINGS = sorted(path for folder in FOLDERS for path in folder.glob("*.jsonl.gz"))

RUNS = {
    "events": ("--events", "--watchdog", "act"),
    "metrics": ("--metrics", "--watchdog", "act"),
}
"""The runs of `replay` that are compared, by name. Without the watchdog, only its own events are absent."""


BUILD_INFO = "cuda_mps_exporter_build_info"
"""The family that has the version of Python."""


def name_of(recording: Path) -> str:
    """Return the name under which a recording's baseline is stored."""
    return f"{recording.parent.name}-{recording.name.removesuffix('.jsonl.gz')}"


def stored(recording: Path) -> Path:
    """Return the path of a recording's baseline."""
    return HERE / "expected" / f"{name_of(recording)}.json.gz"


def run(recording: Path, name: str) -> str:
    """Return the standard output of one of `RUNS`."""
    output = io.StringIO()
    with redirect_stdout(output):
        assert main(["replay", *RUNS[name], str(recording)]) == 0
    return output.getvalue()


def replay(recording: Path) -> dict[str, Any]:
    """Return what each of `RUNS` prints: events as objects, metrics as families by name."""
    return {
        name: events(text) if name == "events" else families(text)
        for name, text in ((name, run(recording, name)) for name in RUNS)
    }


def events(text: str) -> list[dict[str, Any]]:
    """Return the events that `replay --events` printed."""
    return [json.loads(line) for line in text.splitlines()]


def families(text: str) -> dict[str, Any]:
    """Return the families that `replay --metrics` printed; a sample's key is its name with its sorted labels."""
    return {
        family.name: {
            "type": family.type,
            "samples": {
                json.dumps([sample.name, sorted(sample.labels.items())]): _rounded(sample.value)
                for sample in family.samples
            },
        }
        for family in text_string_to_metric_families(text)
        if family.name != BUILD_INFO
    }


def _rounded(value: float) -> str:
    """Return nine digits of a value: since Python 3.12, `sum` rounds in another way."""
    return f"{round(value, 9):.9g}"


def read(recording: Path) -> dict[str, Any]:
    """Return a recording's baseline."""
    with gzip.open(stored(recording), "rt") as file:
        baseline: dict[str, Any] = json.load(file)
    for family in baseline["metrics"].values():
        family["samples"] = {key: _rounded(float(value)) for key, value in family["samples"].items()}
    return baseline


def write(recording: Path) -> None:
    """Store what `replay` prints now as the recording's baseline. The bytes depend on nothing else."""
    stored(recording).parent.mkdir(exist_ok=True)
    text = json.dumps(replay(recording), sort_keys=True, separators=(",", ":"))
    stored(recording).write_bytes(gzip.compress(text.encode(), mtime=0))
