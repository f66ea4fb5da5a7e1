"""Errors of estimated slowdowns: `python3 -m lab.contention.score truth.json.gz estimates.json`.

The estimates are a list of rows: client, number of the phase, slowdown, error (of one standard deviation).
"""

import gzip
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Key = tuple[str, int]
"""A client, and the number of a phase."""


def form_of(client: str, details: Mapping[str, Any]) -> tuple[str, str]:
    """Return a name and a form, which have one pace alone. A newcomer is like the client of its name."""
    return client.partition("#")[0], details["forms"].get(client, "")


def slowdowns(truth: Mapping[str, Any]) -> dict[Key, float]:
    """Return the mean pace alone ÷ the pace in each phase; of requests, this is the ratio of their mean times."""
    alone: dict[tuple[str, str], list[float]] = defaultdict(list)
    for clients, *_, paces, details in truth["phases"]:
        for client in clients if len(clients) == 1 and details["mix"] is None else ():
            alone[form_of(client, details)] += [paces[client]] if client in paces else []
    return {
        (client, number): statistics.mean(alone[form_of(client, details)]) / pace
        for number, (*_, paces, details) in enumerate(truth["phases"])
        for client, pace in paces.items()
        if alone[form_of(client, details)]
    }


def group_of(client: str, clients: Sequence[str], details: Mapping[str, Any]) -> str:
    """Return the group by which errors are reported."""
    if client in details["crowded"]:
        return "on a busy CPU"
    if details["mix"] is None:
        return "alone" if len(clients) == 1 else "newcomer" if client in details["new"] else "beside a newcomer"
    return ("reporting" if details["mix"] % 2 else "tuning") + (", changed" if client in details["forms"] else "")


def report(truth: Mapping[str, Any], estimates: Mapping[Key, tuple[float, float]]) -> str:
    """Return a table of relative errors, and how often the truth is within two standard deviations."""
    groups: dict[str, list[tuple[float, float] | None]] = defaultdict(list)
    for (client, number), true in slowdowns(truth).items():
        clients, *_, details = truth["phases"][number]
        slowdown, error = estimates.get((client, number), (math.nan, math.nan))
        row = None if math.isnan(slowdown) else (abs(slowdown / true - 1), float(abs(slowdown - true) <= 2 * error))
        groups[group_of(client, clients, details)].append(row)
    lines = [f"{'group':20} {'number':>6} {'unknown':>7} {'mean':>7} {'95 %':>7} {'within 2':>8}"]
    for group, rows in sorted(groups.items()):
        known = sorted(row for row in rows if row is not None) or [(math.nan, math.nan)]
        mean, high = statistics.mean(error for error, _ in known), known[math.ceil(0.95 * len(known)) - 1][0]
        covered = statistics.mean(within for _, within in known)
        lines.append(f"{group:20} {len(rows):6} {rows.count(None):7} {mean:7.1%} {high:7.1%} {covered:8.1%}")
    return "\n".join(lines)


if __name__ == "__main__":
    rows = json.loads(Path(sys.argv[2]).read_text())
    given = {(client, number): (value, error) for client, number, value, error in rows}
    print(report(json.loads(gzip.decompress(Path(sys.argv[1]).read_bytes())), given))
