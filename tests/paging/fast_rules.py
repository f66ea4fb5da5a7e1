"""The rules and the example configuration as they are installed, but for their times: a night takes two minutes.

Every `for`, window, age and interval is divided by FACTOR. What looks at the exporter's own age, or at an average of
its last minute, is not: its pace stays.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dashboards import site
from dashboards.parameters import Parameters

ALERTS = Path(__file__).parents[2] / "alerts"
FACTOR = 20

OWN_PACE = ("CudaMpsExporterStalled", "CudaMpsClientStarved")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]+)([smhd])")
_WINDOW = re.compile(r"(?<=[\[:])[0-9]+[smhd](?=[\]:])|(?<=offset )[0-9]+[smhd]")
_AGE = re.compile(r"(?<=[<>] )[0-9]+(?= <|$)", re.MULTILINE)
_INTERVALS = ("group_wait", "group_interval", "repeat_interval")


def rules() -> Mapping[str, Any]:
    """Return the rules with links to exporters with TLS, as in docs/alerting.md."""
    text = (ALERTS / "cuda-mps.rules.yml").read_text()
    parameters = Parameters(runbook_url="https://{instance}/runbooks/", page_url="https://{instance}/")
    texts: dict[str, Any] = yaml.load(site.alerts(text, parameters), yaml.CSafeLoader)
    for group in texts["groups"]:
        group["interval"] = _duration(group["interval"])
        group["rules"] = [each if each.get("alert") in OWN_PACE else _rule(each) for each in group["rules"]]
    return texts


def alertmanager(receivers: Mapping[str, str]) -> Mapping[str, Any]:
    """The example configuration, each of its receivers a webhook with this URL."""
    texts = yaml.load((ALERTS / "alertmanager.example.yml").read_text(), yaml.CSafeLoader)
    assert {each["name"] for each in texts["receivers"]} == receivers.keys()
    for receiver in texts["receivers"]:
        for webhook in receiver["webhook_configs"]:
            webhook["url"] = receivers[receiver["name"]]
    return texts | {"route": _route(texts["route"])}


def _rule(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    times = {"for": _duration(rule["for"])} if "for" in rule else {}
    annotations = {name: _windows(text) for name, text in rule.get("annotations", {}).items()}
    expression = _windows(rule["expr"])
    if "time()" in expression:
        expression = _AGE.sub(lambda age: f"{int(age[0]) / FACTOR:g}", expression)
    return {**rule, **times, **({"annotations": annotations} if annotations else {}), "expr": expression}


def _route(route: Mapping[str, Any]) -> Mapping[str, Any]:
    times = {name: _duration(route[name]) for name in _INTERVALS if name in route}
    return {**route, **times, "routes": [_route(each) for each in route.get("routes", ())]}


def _windows(text: str) -> str:
    return _WINDOW.sub(lambda window: _duration(window[0]), text)


def _duration(text: str) -> str:
    found = _DURATION.fullmatch(text)
    assert found is not None, text
    return f"{int(found[1]) * _UNITS[found[2]] * 1000 // FACTOR}ms"
