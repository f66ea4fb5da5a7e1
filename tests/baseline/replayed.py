"""Run `replay` on a recording in this process, and return its output as plain values."""

import gzip
import io
import json
from argparse import Namespace
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from exporter.commands.replay import replay as command
from exporter.config.settings import Config

HERE = Path(__file__).parent
FOLDERS = (HERE.parent / "recordings", HERE.parent / "attribution", HERE / "recordings")
RECORDINGS = sorted(path for folder in FOLDERS for path in folder.glob("*.jsonl.gz"))

BUILD_INFO = "cuda_mps_exporter_build_info"
"""The family that has the version of Python."""


def name_of(recording: Path) -> str:
    """Return the name under which a recording's baseline is stored."""
    return f"{recording.parent.name}-{recording.name.removesuffix('.jsonl.gz')}"


def stored(recording: Path) -> Path:
    """Return the path of a recording's baseline."""
    return HERE / "expected" / f"{name_of(recording)}.json.gz"


def run(recording: Path) -> tuple[str, str]:
    """Return what `replay --events` and `replay --metrics` print with the watchdog, from one pass."""
    arguments = Namespace(list=False, file=str(recording), events=True, metrics=True, watchdog="act")
    output = io.StringIO()
    with redirect_stdout(output):
        assert command(arguments, Config()) == 0
    events, metrics, rest = output.getvalue().partition("# HELP")
    return events, metrics + rest


def replay(recording: Path) -> dict[str, Any]:
    """Return the events as objects, and the metrics as families by name."""
    printed, metrics = run(recording)
    return {"events": events(printed), "metrics": families(metrics)}


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
