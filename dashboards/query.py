"""A query of Prometheus, in its own words, and what many of them have in common.

In an expression `{node`, `{daemons`, `{gpus` and `{incident` begin a selector of what the dashboard's variables
choose.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]

DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}

CHOSEN = 'job=~"$job", instance=~"$instance"'
SELECTORS = {
    "{node": f"{{{CHOSEN}",
    "{daemons": f'{{{CHOSEN}, daemon=~"$daemon"',
    "{gpus": f'{{{CHOSEN}, gpu=~"$gpu"',
    "{incident": f'{{{CHOSEN}, instance="$node", daemon="$daemon"',
}

DAEMON = "job, instance, daemon"
SERVER = f"{DAEMON}, server"
CLIENT = f"{DAEMON}, client"
GPU = "job, instance, gpu"
WORKLOAD = "job, instance, workload_kind, workload"

WITH_INDEX = f"* on ({GPU}) group_left (index) topk by ({GPU}) (1, cuda_mps_gpu_info{{node}})"
"""Adds the index of a GPU. Of several series at once the join takes one, so it does not fail."""


@dataclass(frozen=True, slots=True)
class Query:
    """An expression; `legend` names its series, and `instant` is for one value each, at the end of the range."""

    expression: str
    legend: str = ""
    instant: bool = False

    def as_json(self, ref: str, *, table: bool) -> Json:
        """A target of a panel."""
        return {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": selected(self.expression),
            "format": "table" if table else "time_series",
            "instant": self.instant,
            "legendFormat": self.legend or "__auto",
            "range": not self.instant,
            "refId": ref,
        }


def selected(expression: str) -> str:
    """The expression with its selectors complete."""
    for short, beginning in SELECTORS.items():
        expression = expression.replace(short, beginning)
    return expression


def max_by(family: str, by: str, of: str = "daemons") -> str:
    """The greatest value of a family for each set of labels."""
    return f"max by ({by}) ({family}{{{of}}})"


def rate(family: str, by: str, of: str = "daemons") -> str:
    """How much a counter grows a second, for each set of labels."""
    return f"sum by ({by}) (rate({family}{{{of}}}[$__rate_interval]))"


def increase(family: str, by: str, of: str = "daemons") -> str:
    """How much a counter has grown between two points of a graph, for each set of labels."""
    return f"sum by ({by}) (increase({family}{{{of}}}[$__rate_interval]))"


def moment(family: str) -> str:
    """When that was, or will be, of each daemon, in milliseconds."""
    return f"1000 * {max_by(family, DAEMON)}"


def moment_if_any(family: str) -> str:
    """The same of each daemon that the watchdog knows; 0 where there is no such time."""
    return f"{moment(family)} or 0 * max by ({DAEMON}) (cuda_mps_watchdog_mode{{daemons}})"


def which(family: str, label: str, states: Iterable[str], by: str, of: str = "daemons") -> str:
    """The one of a family's states that is 1, as its number in their order, from 1."""
    return " + ".join(
        f'{number} * max by ({by}) ({family}{{{of}, {label}="{state}"}})'
        for number, state in enumerate(states, start=1)
    )
