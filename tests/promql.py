"""What an expression speaks of, by its tree: families that there are, and labels that these have."""

import promql_parser
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from dashboards.parameters import Parameters
from dashboards.query import NODE
from dashboards.recording import OWNER, SUSPECT, groups
from exporter.metrics.catalogue import CATALOGUE

OF_PROMETHEUS = {"cluster", "job", "instance"}
OF_POD = OF_PROMETHEUS | {"namespace", "pod", "uid"}
COUNTERS = {family.name for family in CATALOGUE if family.kind is CounterMetricFamily}
LABELS = {family.name: OF_PROMETHEUS | set(family.labels) for family in CATALOGUE} | dict.fromkeys(
    ("up", "process_start_time_seconds"), OF_PROMETHEUS
)
LABELS |= {
    **{
        f"DCGM_FI_DEV_{name}": {"gpu", "UUID", "hostname", "instance"}
        for name in (
            *("POWER_USAGE", "FB_USED", "GPU_TEMP"),
            *("BOARD_POWER_WATTS", "FB_USED_BYTES", "GPU_TEMP_CELSIUS"),
        )
    },
    "kube_node_labels": {
        "node",
        "label_cloud_google_com_gke_gpu_sharing_strategy",
        "label_nvidia_com_mps_capable",
        "label_scheduling_cast_ai_spot",
    },
    "kube_pod_container_resource_requests": OF_POD | {"container", "node", "resource", "unit"},
    "kube_pod_status_phase": OF_POD | {"phase"},
}
"""Those of kube-state-metrics are as its documentation has them."""

for name in ("cuda_mps_daemon_up", "cuda_mps_client_info"):
    LABELS[name].add("node")  # from the chart's PodMonitor
LABELS["cuda_mps_pod_labels"].add("label_team")
LABELS["cuda_mps_workload_info"].add("label_team")
OF_LEVEL = {
    "application": f"{OWNER}, {SUSPECT}, confidence",
    "namespace": "cluster, client_namespace, resource, clients",
    "instance": f"{NODE}, outcome",
    "cluster": "cluster, outcome",
}
LABELS |= {
    rule.record: set(OF_LEVEL[rule.record.partition(":")[0]].split(", "))
    for group in groups(Parameters())
    for rule in group.rules
}
"""Those of the recorded series, by their level."""
LABELS["ALERTS"] = OF_PROMETHEUS.union({"alertname", "alertstate", "severity"}, *LABELS.values())
for histogram in (family for family in CATALOGUE if family.kind is HistogramMetricFamily):
    COUNTERS |= {histogram.name + suffix for suffix in ("_bucket", "_count", "_sum")}
    LABELS |= {histogram.name + suffix: LABELS[histogram.name] for suffix in ("_count", "_sum")}
    LABELS[f"{histogram.name}_bucket"] = LABELS[histogram.name] | {"le"}


def parts(expression: str) -> list[object]:
    """The nodes of the expression's tree."""
    found: list[object] = []
    promql_parser.walk(promql_parser.parse(expression), lambda part: found.append(part))
    return found


def selectors(expression: str) -> list[promql_parser.VectorSelector]:
    """All that choose series."""
    return [part for part in parts(expression) if isinstance(part, promql_parser.VectorSelector)]


def grouped_by(part: object) -> list[str]:
    """The labels that an aggregation, or the matching of two vectors, names."""
    modifier = getattr(part, "modifier", None)
    if isinstance(part, promql_parser.AggregateExpr):
        return [] if modifier is None else list(modifier.labels)
    if isinstance(part, promql_parser.BinaryExpr) and modifier is not None:
        matching = [] if modifier.matching is None else modifier.matching.labels
        return [*matching, *(modifier.group_labels or [])]
    return []


def made(expression: str) -> set[str]:
    """The labels that label_replace and label_join add."""
    calls = [part for part in parts(expression) if isinstance(part, promql_parser.Call)]
    return {call.args[1].val for call in calls if call.func.name in ("label_replace", "label_join")}


def problems(expression: str) -> list[str]:
    """What the expression speaks of that there is not."""
    chosen = selectors(expression)
    known = set().union(*(LABELS.get(each.name, set()) for each in chosen), made(expression))
    unknown = [f"there is no family {each.name}" for each in chosen if each.name not in LABELS]
    for each in chosen:
        matched = {matcher.name for matcher in each.matchers.matchers}
        unknown += [f"{each.name} has no {label}" for label in matched - LABELS.get(each.name, matched)]
    for part in parts(expression):
        unknown += [f"nothing in it has {label}" for label in set(grouped_by(part)) - known]
    return unknown


def unrated(expression: str) -> list[str]:
    """Counters of which neither the rate nor the increase is taken, nor their value at a fixed moment."""
    tree = [None, None, *parts(expression)]
    return [
        vector.name
        for call, matrix, vector in zip(tree, tree[1:], tree[2:], strict=False)
        if isinstance(vector, promql_parser.VectorSelector)
        and vector.name in COUNTERS
        and vector.at is None
        and not (
            isinstance(matrix, promql_parser.MatrixSelector)
            and isinstance(call, promql_parser.Call)
            and call.func.name in ("rate", "increase")
        )
    ]
