"""The alerts of recorded scrapes: `python3 -m lab.many_gpus.alerts samples.json.gz`.

promtool evaluates the rules of this checkout on the samples of `lab.many_gpus.daemons isolation`, at their interval. It
prints when each alert was pending or firing, and in which phases. The exit code is 1 if an alert fires for a daemon
that had not failed by then. It needs no GPU.
"""

import gzip
import json
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.starvation.alert import Series, evaluated

from .daemons import SAMPLE_SECONDS

TIMES = ("_timestamp_seconds", "process_start_time_seconds")
"""How names of families with times end."""


def series_of(samples: Sequence[Mapping[str, Any]]) -> Series:
    """Return the values of each series. Times are since the first sample, because promtool begins at 0."""
    rows: Series = defaultdict(lambda: [None] * len(samples))
    for index, sample in enumerate(samples):
        for name, _, text in (line.rpartition(" ") for line in sample["text"].splitlines() if line[:1] != "#"):
            value = float(text)
            is_time = name.partition("{")[0].endswith(TIMES)
            rows[name][index] = (value - samples[0]["at"] if is_time else value) if math.isfinite(value) else None
    return dict(rows)


def main() -> None:
    """Print the alerts."""
    samples = json.loads(gzip.decompress(Path(sys.argv[1]).read_bytes()))
    found: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for index, alerts in enumerate(evaluated(series_of(samples), len(samples), "ALERTS", int(SAMPLE_SECONDS))):
        for labels in alerts:
            found[labels["alertname"], labels["alertstate"], labels.get("daemon", "-")].append(index)
    wrong = False
    for (name, state, daemon), indexes in sorted(found.items()):
        victims = {sample["victim"] for sample in samples[: indexes[0] + 1]}
        wrong |= state == "firing" and daemon not in victims
        phases = dict.fromkeys(samples[index]["phase"] for index in indexes)
        first, last = (index * SAMPLE_SECONDS for index in (indexes[0], indexes[-1]))
        note = "" if daemon in victims else ": not of a daemon that had failed"
        print(f"{name} {state} for {daemon}, {first:.0f} to {last:.0f} s ({', '.join(phases)}){note}")
    raise SystemExit(wrong)


if __name__ == "__main__":
    main()
