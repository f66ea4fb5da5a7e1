"""When the alert of a recorded starvation fires and ends: `python3 -m lab.starvation.alert SAMPLES...`.

promtool evaluates the rules of this checkout on the recorded samples, at the example's scrape interval. The alert
waits for ten minutes, so a shorter starvation is extended: the last sample before its end is repeated. It needs no GPU.
"""

import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RULES = Path(__file__).resolve().parents[2] / "alerts" / "cuda-mps.rules.yml"
ALERT = "CudaMpsClientStarved"
TARGET = {"job": "cuda-mps-exporter", "instance": "recorded"}
STEP_SECONDS = 15
"""Interval of scrapes, and of evaluations."""

LEAST_SECONDS = 720.0
"""How long the starvation must last at least, so that the alert fires and remains for a while."""

Series = dict[str, list[float | None]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """When the alert of the starved client was pending and fired, in seconds after the true begin and the true end."""

    pending: float | None
    fires: float | None
    resolves: float | None
    is_wrong: bool
    """Whether it fired before the begin, or for another client."""

    extended_seconds: float


def verdict(recorded: Mapping[str, Any]) -> Verdict:
    """Evaluate the rules. RuntimeError if promtool does not answer."""
    about = recorded["about"]
    times, series = _resampled(recorded)
    began, ended = about["began"], math.inf if about["ended"] is None else about["ended"]
    last = max(index for index, time in enumerate(times) if time <= ended)
    repeated = max(0, math.ceil((LEAST_SECONDS - times[last] + began) / STEP_SECONDS))
    for row in series.values():
        row[last + 1 : last + 1] = [row[last]] * repeated
    extended = repeated * STEP_SECONDS
    states: dict[str, list[float]] = {"pending": [], "firing": []}
    others = False
    query = f'ALERTS{{alertname="{ALERT}"}}'
    for index, alerts in enumerate(evaluated(series, len(times) + repeated, query, STEP_SECONDS)):
        at = times[0] + index * STEP_SECONDS
        for labels in alerts:
            if labels["client"] == about["clients"][0]:
                states[labels["alertstate"]].append(at)
            else:
                others |= labels["alertstate"] == "firing"
    fires = min(states["firing"], default=None)
    off = max(states["firing"], default=math.inf) + STEP_SECONDS
    is_over = off <= times[-1] + extended
    return Verdict(
        pending=_after(min(states["pending"], default=None), began),
        fires=_after(fires, began),
        resolves=_after(off - extended, ended) if is_over else None,
        is_wrong=others or (fires is not None and fires < began),
        extended_seconds=extended,
    )


def _after(time: float | None, since: float) -> float | None:
    return None if time is None else round(time - since, 1)


def _resampled(recorded: Mapping[str, Any]) -> tuple[Sequence[float], Series]:
    """Return times at the scrape interval, and the newest sample of each series at each of them; None if it is old."""
    at = [float(each) for each in recorded["at"].split()]
    times = [at[0] + step * STEP_SECONDS for step in range(int((at[-1] - at[0]) / STEP_SECONDS) + 1)]
    newest = [max(index for index, sampled in enumerate(at) if sampled <= time + 1) for time in times]
    series: Series = {}
    for name, text in recorded["series"].items():
        values = [None if each == "_" else float(each) for each in text.split()]
        fresh = zip(times, newest, strict=True)
        series[name] = [values[index] if time - at[index] < STEP_SECONDS else None for time, index in fresh]
    return times, series


def evaluated(series: Series, count: int, query: str, step: int) -> Sequence[Sequence[Mapping[str, str]]]:
    """Return the labels of what a query returns at each evaluation, as promtool prints what it did not expect."""
    target = ",".join(f'{name}="{value}"' for name, value in TARGET.items())
    rows: Series = {f"up{{{target}}}": [1.0] * count}
    rows |= {name.replace("{", f"{{{target},", 1): row for name, row in series.items() if "{" in name}
    rows |= {f"{name}{{{target}}}": row for name, row in series.items() if "{" not in name}
    wrong = [{"labels": "", "value": -1}]
    test = {
        "interval": f"{step}s",
        "input_series": [{"series": name, "values": _written(row)} for name, row in rows.items()],
        "promql_expr_test": [
            {"expr": query, "eval_time": f"{index * step}s", "exp_samples": wrong} for index in range(count)
        ],
    }
    tests = {"rule_files": [str(RULES)], "evaluation_interval": f"{step}s", "tests": [test]}
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "starvation.test.json")  # YAML holds all of JSON
        file.write_text(json.dumps(tests))
        done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    printed = re.findall(r"time: \w+,?\s*exp:.*\s*got:\s*(.*)", done.stdout + done.stderr)
    if len(printed) != count:
        raise RuntimeError(f"promtool: {(done.stdout + done.stderr)[-2000:]}")
    return [[dict(re.findall(r'(\w+)="(.*?)"', each)) for each in re.findall(r"{.*?}", got)] for got in printed]


def _written(row: Sequence[float | None]) -> str:
    """Return values in promtool's notation. A series that is gone is stale at once, as after a scrape without it."""
    before = [None, *row[:-1]]
    return " ".join(
        f"{value:g}" if value is not None else "_" if former is None else "stale"
        for former, value in zip(before, row, strict=True)
    )


def main() -> None:
    """Print the verdict of each file."""
    for name in sys.argv[1:]:
        print(name, verdict(json.loads(Path(name).read_text())))


if __name__ == "__main__":
    main()
