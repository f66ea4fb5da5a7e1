"""The chart's README, made of the comments in its values: `python -m tests.deploy.chart_readme > README.md`."""

import json
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.manifests import CHART

PEERS = Path(__file__).with_name("peers.toml")

MOST_CHARACTERS = 60
"""A longer default is not shown."""

HEAD = """# cuda-mps-exporter

This chart runs one pod of cuda-mps-exporter on each node that may run NVIDIA MPS. The project's docs/kubernetes.md
describes the installation. The directory ci has the values of each kind of node, and `ci/web-config-values.yaml` those
for TLS and passwords. `helm test` checks that an exporter is ready.

This table contains the comments of values.yaml.

| value | default | description |
|---|---|---|
"""

PEERS_HEAD = """
## Coming from another exporter

This chart does not have these values of the charts of dcgm-exporter 4.8.2 and prometheus-node-exporter 4.56.1. In the
project, `tests/deploy/peers.toml` maps all their other values to values of this chart.

| value | of | reason |
|---|---|---|
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value of the chart, or a group of values, which has no default of its own."""

    name: str
    default: str
    description: str


def _comment(lines: list[str], before: int, indent: int) -> str:
    """Return the comment directly above a line. Indented lines in it are items."""
    start = f"{' ' * indent}#"
    text: list[str] = []
    for line in reversed(lines[:before]):
        if not line.startswith(start):
            break
        text.insert(0, line.removeprefix(start).removeprefix(" "))
    joined = ""
    for line in text:
        item = line.startswith("  ") and not line.startswith("    ")
        joined += ("<br>" if item else " " if joined else "") + line.strip()
    return joined.replace("|", r"\|")


def _default(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return f"`{text}`" if len(text) <= MOST_CHARACTERS else "see values.yaml"


def _is_group(node: yaml.Node) -> bool:
    """Whether the lines below a key are values of the chart, and not a default that has several fields."""
    return isinstance(node, yaml.MappingNode) and not node.flow_style


def _values(node: yaml.Node, lines: list[str], default: Any, path: str = "") -> Iterator[Value]:
    assert isinstance(node, yaml.MappingNode)
    for key, value in node.value:
        name = f"{path}.{key.value}" if path else key.value
        description = _comment(lines, key.start_mark.line, key.start_mark.column)
        if _is_group(value) and name != "affinity" and name != "resources":
            if description:
                yield Value(name=name, default="", description=description)
            yield from _values(value, lines, default[key.value], name)
        else:
            yield Value(name=name, default=_default(default[key.value]), description=description)


def values() -> Iterator[Value]:
    """Yield the values of the chart in the order of the file."""
    text = (CHART / "values.yaml").read_text()
    return _values(yaml.compose(text, yaml.CSafeLoader), text.splitlines(), yaml.load(text, yaml.CSafeLoader))


def peers() -> Mapping[str, Mapping[str, list[str] | str]]:
    """Return the values of other charts, each with those of this one, or with the reason why there is none."""
    return tomllib.loads(PEERS.read_text())


def without_equal() -> Mapping[str, Mapping[str, list[str]]]:
    """Return the reasons, each with the values of each chart."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for chart, found in peers().items():
        for name, reason in found.items():
            if isinstance(reason, str):
                reasons.setdefault(reason, {}).setdefault(chart, []).append(name)
    return reasons


def readme() -> str:
    """Return the README."""
    rows = [f"| `{each.name}` | {each.default} | {each.description} |\n" for each in values()]
    missing = [
        f"| {', '.join(f'`{name}`' for name in dict.fromkeys(chain(*found.values())))} | "
        f"{', '.join(found)} | {reason} |\n"
        for reason, found in without_equal().items()
    ]
    return "".join((HEAD, *rows, PEERS_HEAD, *missing))


if __name__ == "__main__":
    sys.stdout.write(readme())
