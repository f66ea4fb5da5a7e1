"""What the parameters of a site change in alerts and dashboards.

A threshold is found by the family that an expression compares with it. So alerts, dashboards and recording rules follow
one number.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from dashboards.links import NODE, PAGE
from dashboards.parameters import DEFAULTS, Parameters


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number of the rules that a site may change; `texts` are the words for it in the annotations of its alert."""

    default: str
    family: str
    alert: str
    texts: Mapping[str, Callable[[float], str]] = field(default_factory=dict)

    def set_in(self, expressions: str, value: float) -> str:
        """Return the text of one or more expressions with another number."""
        selector = r'\{(?:"(?:[^"\\]|\\.)*"|[^"{}])*\}'
        compared = rf"\b({self.family}{selector}(?:\[\w+\])?[\s)]*>=? ){re.escape(self.default)}(?![\w.])"
        return re.sub(compared, rf"\g<1>{value!r}", expressions)


def _percent(value: float) -> str:
    return f"{100 * value:g} %"


THRESHOLDS = {
    "client_slots_ratio": Threshold(
        "0.9", "cuda_mps_server_clients_limit", "CudaMpsClientSlotsNearlyFull", {"nine tenths": _percent}
    ),
    "gpu_memory_ratio": Threshold(
        "0.95", "cuda_mps_gpu_memory_total_bytes", "CudaMpsWorkloadFillsMemory", {"95 %": _percent}
    ),
    "log_bytes": Threshold(
        "1e9",
        "cuda_mps_daemon_log_size_bytes",
        "CudaMpsLogGrowing",
        {"1 GB": lambda value: f"{value / 1e9:g} GB"},
    ),
    "log_contradictions": Threshold("2", "cuda_mps_daemon_log_contradictions_total", "CudaMpsLogContradicted"),
    "slowdown_ratio": Threshold(
        "2", "cuda_mps_client_slowdown_error_ratio", "CudaMpsClientStarved", {"twice": lambda value: f"{value:g} times"}
    ),
    "stalled_seconds": Threshold("120", "cuda_mps_exporter_snapshot_timestamp_seconds", "CudaMpsExporterStalled"),
    "suspected_faults": Threshold("3", "cuda_mps_workload_faults_suspected_total", "CudaMpsWorkloadOftenSuspected"),
    "workload_memory_ratio": Threshold(
        "0.5",
        "cuda_mps_gpu_memory_total_bytes",
        "CudaMpsWorkloadFillsMemory",
        {"half": _percent},
    ),
}


def with_thresholds(expressions: str, parameters: Parameters) -> str:
    """Return the text of expressions with the site's thresholds."""
    for name, value in parameters.thresholds.items():
        expressions = THRESHOLDS[name].set_in(expressions, value)
    return expressions


_INSTANCE = "{{ $labels.instance }}"


def alerts(text: str, parameters: Parameters) -> str:
    """Return a file of alerting rules with the site's job, selector, thresholds and URLs, without its comments."""
    content = yaml.safe_load(text)
    for group in content["groups"]:
        group["rules"] = [_rule(rule, parameters) for rule in group["rules"]]
    return yaml.dump(content, Dumper=_Dumper, width=120, sort_keys=False, allow_unicode=True)


def _rule(rule: Mapping[str, Any], parameters: Parameters) -> Mapping[str, Any]:
    expression = _selected(with_thresholds(rule["expr"], parameters), parameters)
    if "alert" not in rule:
        return {**rule, "expr": expression}
    annotations = {name: _annotation(text, rule["alert"], parameters) for name, text in rule["annotations"].items()}
    return {**rule, "expr": expression, "annotations": annotations}


def _annotation(text: str, alert: str, parameters: Parameters) -> str:
    for name, value in parameters.thresholds.items():
        if THRESHOLDS[name].alert == alert:
            for words, of_value in THRESHOLDS[name].texts.items():
                text = text.replace(words, of_value(value))
    if link := re.fullmatch(r"http://(.*)/runbooks/(\w+\.md)", text):
        text = parameters.runbook_url.replace("{instance}", link[1]) + link[2]
    else:
        text = text.replace(DEFAULTS.page_of(_INSTANCE), parameters.page_of(_INSTANCE))
    return _selected(text.replace(DEFAULTS.grafana_url, parameters.grafana_url), parameters)


def _selected(text: str, parameters: Parameters) -> str:
    """Return expressions, or annotations with queries, for the site's job and with its selector."""
    text = text.replace(f'job="{DEFAULTS.job}"', parameters.matchers)
    if parameters.selector:
        # A query of an annotation is a format of printf.
        text = text.replace("{job=%q", f"{{job=%q, {parameters.selector.replace('%', '%%')}")
    return text


def board(model: Any, parameters: Parameters) -> Any:
    """Return a dashboard, or a part of one, with the site's selector and thresholds in its queries, and its links."""
    if isinstance(model, str):
        model = with_thresholds(model, parameters).replace(PAGE, parameters.page_of(NODE))
        if parameters.selector:
            # The first variable's query has no selector. Recorded series have no other labels than their rules name.
            model = re.sub(r"^(label_values\(cuda_mps_\w+)(?=,)", r"\1{}", model)
            model = re.sub(
                r"(?<![\w:])(?:(?:cuda_mps|kube)_\w+|up|ALERTS)\{",
                lambda found: f"{found[0]}{parameters.selector}, ",
                model,
            )
        return model
    if isinstance(model, Mapping):
        return {name: board(part, parameters) for name, part in model.items()}
    return [board(part, parameters) for part in model] if isinstance(model, list | tuple) else model


class _Dumper(yaml.SafeDumper):
    """Writes expressions over several lines as such, and shared annotations in full."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represented(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represented)
