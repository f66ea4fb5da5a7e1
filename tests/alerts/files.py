"""The alerts' files, as the tests read them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ALERTS = Path(__file__).parents[2] / "alerts"
RULES = ALERTS / "cuda-mps.rules.yml"
RECORDING = ALERTS / "cuda-mps.recording.yml"
SLO = ALERTS / "cuda-mps.slo.yml"
PROMETHEUS = ALERTS / "prometheus.example.yml"
ALERTMANAGER = ALERTS / "alertmanager.example.yml"
RUNBOOKS = ALERTS / "runbooks"
UNIT_TESTS = sorted((ALERTS / "tests").glob("*.test.yml"))
SCENARIOS = ALERTS / "tests" / "scenarios.test.yml"


@dataclass(frozen=True, slots=True)
class Rule:
    """One alerting rule. Two may have one name: the same thing, more or less grave."""

    alert: str
    severity: str
    expr: str
    holds_for: str
    annotations: Mapping[str, str]

    @property
    def id(self) -> str:
        """The name that identifies it."""
        return f"{self.alert}-{self.severity}"


def read(path: Path) -> Any:
    """Read a YAML file with all scalars as text, because promtool's `0x9` is not a number."""
    return yaml.load(path.read_text(), yaml.CBaseLoader)


def rules(path: Path = RULES) -> Sequence[Rule]:
    """All alerting rules of a file."""
    return [
        Rule(each["alert"], each["labels"]["severity"], each["expr"], each.get("for", ""), each["annotations"])
        for group in read(path)["groups"]
        for each in group["rules"]
        if "alert" in each
    ]


@dataclass(frozen=True, slots=True)
class Check:
    """What a unit test of promtool asks at one time: which alerts of a name there are, by their labels."""

    group: str
    seconds: float
    alert: str
    expected: Sequence[Mapping[str, Any]]


@cache
def checks() -> Sequence[Check]:
    """What the unit tests ask, in order."""
    return tuple(_checks())


def _checks() -> Iterator[Check]:
    for path in UNIT_TESTS:
        for group in read(path)["tests"]:
            for each in group.get("alert_rule_test", ()):
                yield Check(
                    f"{path.name}: {group['name']}", seconds(each["eval_time"]), each["alertname"], each["exp_alerts"]
                )


def seconds(duration: str) -> float:
    """A duration as Prometheus writes it."""
    total, number = 0, ""
    for character in duration:
        if character.isdigit():
            number += character
        else:
            total += int(number) * {"h": 3600, "m": 60, "s": 1}[character]
            number = ""
    return total
