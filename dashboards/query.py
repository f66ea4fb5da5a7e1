"""A query of Prometheus, in its own words, and what many of them have in common.

In an expression `{clusters`, `{node`, `{daemons`, `{gpus` and `{incident` begin a selector of what the dashboard's
variables choose.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from textwrap import dedent
from typing import Any

Json = Mapping[str, Any]

DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}

CLUSTER = 'cluster=~"$cluster"'
CHOSEN = f'{CLUSTER}, job=~"$job", instance=~"$instance"'
SELECTORS = {
    "{clusters": f"{{{CLUSTER}",
    "{node": f"{{{CHOSEN}",
    "{daemons": f'{{{CHOSEN}, daemon=~"$daemon"',
    "{gpus": f'{{{CHOSEN}, gpu=~"$gpu"',
    "{incident": f'{{{CHOSEN}, instance="$node", daemon="$daemon"',
}

NODE = "cluster, job, instance"
"""Nodes of two clusters may have the same name. Without an external label `cluster`, it is empty everywhere."""
DAEMON = f"{NODE}, daemon"
SERVER = f"{DAEMON}, server"
CLIENT = f"{DAEMON}, client"
GPU = f"{NODE}, gpu"
WORKLOAD = f"{NODE}, workload_kind, workload"

WITH_INDEX = f"* on ({GPU}) group_left (index) topk by ({GPU}) (1, cuda_mps_gpu_info{{node}})"
"""Adds the index of a GPU. Of several series at once the join takes one, so it does not fail."""


@dataclass(frozen=True, slots=True)
class Query:
    """An expression; `legend` names its series, and `instant` is for one value each, at the end of the range.

    `interval` is the least distance of two points of a graph, of which there are then fewer: see panel.py.
    """

    expression: str
    legend: str = ""
    instant: bool = False
    interval: str = ""

    def as_json(self, ref: str, *, table: bool) -> Json:
        """A target of a panel."""
        return {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": selected(self.expression),
            "format": "table" if table else "time_series",
            "instant": self.instant,
            **({"interval": self.interval} if self.interval else {}),
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


def bypassing(matchers: str) -> str:
    """Return a query for the number of processes that bypass MPS on each node.

    The metric counts a process on each of its GPUs. The repetitions of the first 128 processes are subtracted.
    """
    counts = f"sum by ({NODE}) (cuda_mps_bypassing_processes{matchers})"
    repeated = f"sum by ({NODE}) (count by ({NODE}, pid) (cuda_mps_bypassing_process_info{matchers}) - 1)"
    return f"{counts}\n  - {repeated}\n  or\n{counts}"


def newest(record: str, more: str = "") -> str:
    """Return the newest value of a recorded series: a rule's interval may be as long as Prometheus looks back."""
    return f"last_over_time({record}{{node{more}}}[10m])"


def greatest(record: str, number: int = 10, function: str = "max_over_time") -> Query:
    """Return the values of the nodes for which the function of the whole range is greatest, and above 0."""
    most = f"topk({number}, {function}({record}{{node}}[$__range] @ end()) > 0)"
    expression = f"max_over_time({record}{{node}}[$__interval]) and on ({NODE}) {most}"
    return Query(expression, "{{instance}} {{cluster}}", interval="10m")


def of_clusters(record: str, legend: str) -> Query:
    """Return the sum of a recorded gauge of the nodes."""
    return Query(f"sum by (cluster) (avg_over_time({record}{{node}}[$__interval]))", legend, interval="10m")


def recorded(record: str, by: str, legend: str, more: str = "", of: str = "node") -> Query:
    """Return the recorded ten-minute increases between two points of a graph."""
    return Query(f"sum by ({by}) (sum_over_time({record}{{{of}{more}}}[$__interval]))", legend, interval="10m")


def most_recorded(record: str, by: str, legend: str, of: str = "clusters", factor: str = "") -> Query:
    """Return the same of those ten with the most in the whole range."""
    each = recorded(record, by, legend, of=of)
    most = f"topk(10, sum by ({by}) (sum_over_time({record}{{{of}}}[$__range] @ end())))"
    return replace(each, expression=f"{each.expression}{factor} and on ({by}) {most}")


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


def with_parts(text: str, **parts: str) -> str:
    """Return a text without its margin, and with each part in place of its {name}, indented as that is."""
    result = []
    for line in dedent(text).strip("\n").rstrip().splitlines():
        margin = line[: len(line) - len(line.lstrip())]
        for name, part in parts.items():
            line = line.replace(f"{{{name}}}", part.replace("\n", f"\n{margin}"))
        result.append(line)
    return "\n".join(result)
