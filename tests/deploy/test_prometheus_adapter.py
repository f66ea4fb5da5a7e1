"""The example for prometheus-adapter: its templates, filled as the adapter fills them, give the expected values."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import CHART
from tests.tools import promtool

EXAMPLE = CHART.parents[1] / "prometheus-adapter"
RULES: Mapping[str, Sequence[Mapping[str, Any]]] = yaml.safe_load((EXAMPLE / "values.yaml").read_text())["rules"]
AUTOSCALERS = list(yaml.safe_load_all((EXAMPLE / "hpa.yaml").read_text()))

SERIES = {
    **{
        f'cuda_mps_workload_info{{job="e",instance="{node}",workload_kind="pod",workload="{uid}",'
        f'client_namespace="{namespace}",client_pod="{pod}"}}': "1x20"
        for node, uid, namespace, pod in (
            ("a", "u1", "ml", "inference-1"),
            ("b", "u2", "ml", "inference-2"),
            ("a", "u3", "other", "inference-1"),
        )
    },
    'cuda_mps_workload_info{job="e",instance="a",workload_kind="unit",workload="u1"}': "1x20",
    **{
        f'cuda_mps_workload_sm_seconds_total{{job="e",instance="{node}",gpu="{gpu}",workload_kind="{kind}",'
        f'workload="{name}",method="{method}"}}': f"0+{increase}x20"
        for node, gpu, kind, name, method, increase in (
            ("a", "g1", "pod", "u1", "measured", 6),
            ("a", "g1", "pod", "u1", "launches", 3),
            ("a", "g2", "pod", "u1", "measured", 6),
            ("b", "g1", "pod", "u2", "measured", 30),
            ("a", "g1", "pod", "u3", "measured", 12),
            ("a", "g1", "unit", "u1", "measured", 24),
        )
    },
    **{
        f'cuda_mps_gpu_clients_fit{{job="e",instance="{node}",gpu="{gpu}",bound="{bound}"}}': f"{fit}x20"
        for node, gpu, bound, fit in (
            ("a", "g1", "memory", 5),
            ("a", "g1", "sm", 2),
            ("b", "g1", "memory", 3),
            ("b", "g2", "slots", 40),  # Its memory is unknown.
        )
    },
}


def filled(template: str, series: str, matchers: Mapping[str, str], group_by: Sequence[str]) -> str:
    """Fill the template of a rule as the adapter does, with `=~` for several values of a label."""
    texts = (f'{label}{"=~" if "|" in value else "="}"{value}"' for label, value in matchers.items())
    values = {".Series": series, ".LabelMatchers": ",".join(texts), ".GroupBy": ",".join(group_by)}
    for name, value in values.items():
        template = template.replace(f"<<{name}>>", value)
    assert "<<" not in template
    return template


def evaluate(directory: Path, expression: str, expected: Mapping[str, float]) -> None:
    """Assert what an expression gives after ten minutes."""
    test = {
        "interval": "30s",
        "input_series": [{"series": series, "values": values} for series, values in SERIES.items()],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": "10m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()],
            }
        ],
    }
    (directory / "adapter.test.yml").write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))
    promtool("test", "rules", directory / "adapter.test.yml")


def test_sm_use_of_pods(tmp_path: Path) -> None:
    (rule,) = RULES["custom"]
    labels = {each["resource"]: label for label, each in rule["resources"]["overrides"].items()}
    matchers = {labels["namespace"]: "ml", labels["pod"]: "inference-1|inference-2"}

    query = filled(rule["metricsQuery"], "cuda_mps_workload_info", matchers, [labels["pod"]])

    evaluate(tmp_path, query, {'{client_pod="inference-1"}': 0.5, '{client_pod="inference-2"}': 1.0})


@pytest.mark.parametrize(("selected", "fit"), [({}, 5), ({"instance": "a"}, 2)])
def test_room_for_clients(tmp_path: Path, selected: Mapping[str, str], fit: int) -> None:
    (rule,) = RULES["external"]
    assert rule["resources"] == {"namespaced": False}

    evaluate(tmp_path, filled(rule["metricsQuery"], rule["seriesQuery"], selected, []), {"{}": fit})


def test_the_adapter_finds_the_series_of_each_rule(tmp_path: Path) -> None:
    for rules, series in ((RULES["custom"], 3), (RULES["external"], 4)):
        evaluate(tmp_path, f"count({rules[0]['seriesQuery']})", {"{}": series})


def test_the_autoscalers_use_the_metrics_of_the_rules() -> None:
    metrics = [metric for each in AUTOSCALERS for metric in each["spec"]["metrics"]]
    used = {(each["type"], each[each["type"].lower()]["metric"]["name"]) for each in metrics}

    kinds = {"custom": "Pods", "external": "External"}
    assert used == {(kinds[kind], rule["name"]["as"]) for kind, rules in RULES.items() for rule in rules}
