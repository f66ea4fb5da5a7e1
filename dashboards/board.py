"""A dashboard: its variables, its annotations, and rows of panels, each of which finds its place by itself."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from dashboards import site
from dashboards.links import BOARDS, OF_CHOSEN_NODES, to_others
from dashboards.looks import Colour
from dashboards.panel import Panel
from dashboards.parameters import DEFAULTS, Parameters
from dashboards.query import DATASOURCE, Json, selected

SCHEMA_VERSION = 38
"""Grafana 10.0's. Newer versions bring it up to date as they read it."""

TAG = "cuda-mps"
COLUMNS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """What the reader chooses from. `regex` takes the choices out of what the query gives.

    `everything` is the pattern of all choices, which is the default. If it is empty, the pattern lists all of them. If
    it is None, the first choice is the default. One that is `derived` follows from the others, and is not shown.
    """

    name: str
    label: str
    query: str
    regex: str = ""
    everything: str | None = None
    several: bool = False
    derived: bool = False
    sorted: bool = True

    def as_json(self) -> Json:
        """An entry of the dashboard's variables."""
        query, has_all = selected(self.query), self.everything is not None
        return {
            "allValue": self.everything or None,
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]} if has_all else {},
            "datasource": DATASOURCE,
            "definition": query,
            "hide": 2 if self.derived else 0,
            "includeAll": has_all,
            "label": self.label,
            "multi": self.several or has_all,
            "name": self.name,
            "options": [],
            "query": {"query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
            "refresh": 2,
            "regex": self.regex,
            "skipUrlSync": False,
            "sort": 1 if self.sorted else 0,
            "type": "query",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A mark at each moment that an expression's values are, in seconds since the epoch."""

    name: str
    colour: Colour
    moments: str
    title: str
    text: str

    def as_json(self) -> Json:
        """An entry of the dashboard's annotations; what stands outside `target` is for Grafana before 12."""
        expression = f"{selected(self.moments)} * 1000"
        return {
            "datasource": DATASOURCE,
            "enable": True,
            "expr": expression,
            "hide": False,
            "iconColor": self.colour,
            "name": self.name,
            "step": "15s",
            "tagKeys": "instance,daemon",
            "target": {"expr": expression, "interval": "15s", "refId": "Anno"},
            "textFormat": self.text,
            "titleFormat": self.title,
            "useValueForTime": True,
        }


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading, from left to right; those that no longer fit begin a new line."""

    title: str
    panels: Sequence[Panel]


DATASOURCE_CHOICE: Json = {
    "current": {},
    "hide": 0,
    "includeAll": False,
    "label": "Data source",
    "multi": False,
    "name": "datasource",
    "options": [],
    "query": "prometheus",
    "refresh": 1,
    "regex": "",
    "skipUrlSync": False,
    "type": "datasource",
}

CLUSTER = Variable(
    name="cluster", label="Cluster", query="label_values(cuda_mps_exporter_build_info, cluster)", everything=".*"
)
"""Its pattern also matches series without the label: a Prometheus does not store its own external labels."""
RECORDED_CLUSTER = replace(CLUSTER, query="label_values(cluster:cuda_mps_gpu_hour_price:value, cluster)")
"""For dashboards that do not choose nodes. The store of many clusters may have recorded series only."""
JOB = Variable(
    name="job",
    label="Job",
    query='label_values(cuda_mps_exporter_build_info{cluster=~"$cluster"}, job)',
    everything="",
)
"""Each target of Prometheus has `up` with a job, so the pattern names those of exporters."""
NODES = Variable(
    name="instance", label="Node", query='label_values(up{cluster=~"$cluster", job=~"$job"}, instance)', several=True
)
ALL_NODES = replace(NODES, everything=".*")
"""Of 1,000 nodes, Prometheus would merge the lists of series that `.+` matches; `.*` does not select."""

BUILT_IN: Json = {
    "builtIn": 1,
    "datasource": {"type": "grafana", "uid": "-- Grafana --"},
    "enable": True,
    "hide": True,
    "iconColor": "rgba(0, 211, 255, 1)",
    "name": "Annotations & Alerts",
    "type": "dashboard",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A dashboard, which is found by its `uid`."""

    uid: str
    title: str
    description: str
    rows: Sequence[Row]
    variables: Sequence[Variable] = ()
    annotations: Sequence[Annotation] = ()
    since: str = "now-3h"
    refresh: str = "30s"

    def text(self, parameters: Parameters = DEFAULTS) -> str:
        """Its JSON, by default as it is committed."""
        return json.dumps(site.board(self.as_json(), parameters), indent=1, sort_keys=True) + "\n"

    def as_json(self) -> Json:
        """Grafana's classic model of it."""
        nodes = NODES if self.uid in OF_CHOSEN_NODES else ALL_NODES
        first = (CLUSTER, JOB, nodes) if nodes.name in BOARDS[self.uid][1] else (RECORDED_CLUSTER,)
        return {
            "annotations": {"list": [BUILT_IN, *(each.as_json() for each in self.annotations)]},
            "description": self.description,
            "editable": True,
            "fiscalYearStartMonth": 0,
            "graphTooltip": 1,
            "links": to_others(self.uid),
            "panels": _placed(self.rows),
            "refresh": self.refresh,
            "schemaVersion": SCHEMA_VERSION,
            "tags": [TAG],
            "templating": {"list": [DATASOURCE_CHOICE, *(each.as_json() for each in (*first, *self.variables))]},
            "time": {"from": self.since, "to": "now"},
            "timepicker": {},
            "timezone": "",
            "title": self.title,
            "uid": self.uid,
            "version": 1,
            "weekStart": "",
        }


def _placed(rows: Sequence[Row]) -> list[Json]:
    """Only the first row is open. A collapsed row contains its panels, which Grafana loads when the row is opened."""
    numbers, placed, y = count(1), list[Json](), 0
    for row in rows:
        collapsed = row is not rows[0]
        heading, panels = next(numbers), list[Json]()
        x, top, height = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, top, height = 0, top + height, 0
            panels.append(panel.as_json(next(numbers), x, top))
            x, height = x + panel.width, max(height, panel.height)
        placed.append(_heading(row.title, heading, y, panels if collapsed else []))
        placed += [] if collapsed else panels
        y = y + 1 if collapsed else top + height
    return placed


def _heading(title: str, number: int, y: int, panels: Sequence[Json]) -> Json:
    return {
        "collapsed": bool(panels),
        "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
        "id": number,
        "panels": list(panels),
        "title": title,
        "type": "row",
    }
