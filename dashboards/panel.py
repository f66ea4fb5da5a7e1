"""Panels, as few kinds as will do: numbers, lines, bars, states over time, and tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase
from types import MappingProxyType

from dashboards import looks
from dashboards.query import DATASOURCE, Json, Query

PLUGIN_VERSION = "10.0.0"
_NOTHING: Json = {}

POINTS = 200
"""Points of a graph of recorded series, which read all samples between two points."""

SHORT_NAMES: Json = {
    "id": "renameByRegex",
    "options": {"regex": r"(.*?)/(?:[^\s/]+/)*([^\s/]+)/pipe\b(.*)", "renamePattern": "$1$2$3"},
}
"""A daemon without a configured name has the name of its pipe directory. `/run/nvidia/mps/training/pipe` is `training`
in a legend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel of the dashboard, but for its place."""

    kind: str
    title: str
    description: str
    queries: Sequence[Query]
    width: int
    height: int
    defaults: Json
    options: Json
    overrides: Sequence[Json] = ()
    transformations: Sequence[Json] = ()

    def as_json(self, number: int, x: int, y: int) -> Json:
        """The panel at its place."""
        table = self.kind == "table"
        return {
            "datasource": DATASOURCE,
            "description": self.description,
            "fieldConfig": {"defaults": self.defaults, "overrides": list(self.overrides)},
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "id": number,
            **({"maxDataPoints": POINTS} if any(query.interval for query in self.queries) else {}),
            "options": self.options,
            "pluginVersion": PLUGIN_VERSION,
            "targets": [
                query.as_json(ref, table=table) for ref, query in zip(ascii_uppercase, self.queries, strict=False)
            ],
            "title": self.title,
            "transformations": list(self.transformations),
            "type": self.kind,
        }


_TABLE_DEFAULTS: Json = {
    "color": {"mode": "thresholds"},
    "custom": {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True, "inspect": False},
    "thresholds": looks.PLAIN,
}


def _table_options(sort: str, *, descending: bool) -> Json:
    return {
        "cellHeight": "sm",
        "showHeader": True,
        "sortBy": [{"displayName": sort, "desc": descending}],
    }


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: what it is called, and how it looks. `links` are where a click on it leads.

    Thresholds and mappings paint its cells, unless they are not to be `painted`.
    """

    name: str
    unit: str = looks.WORD
    thresholds: Json = field(default_factory=dict)
    mappings: Sequence[Json] = ()
    links: Sequence[Json] = ()
    hidden: bool = False
    painted: bool = True

    def override(self) -> Json:
        """What is different of it."""
        properties: list[Json] = [{"id": "unit", "value": self.unit}]
        if self.thresholds:
            properties.append({"id": "thresholds", "value": self.thresholds})
        if self.mappings:
            properties.append({"id": "mappings", "value": list(self.mappings)})
        if self.painted and (self.thresholds or self.mappings):
            properties.append({"id": "custom.cellOptions", "value": {"type": "color-background", "mode": "basic"}})
        if self.links:
            properties.append({"id": "links", "value": list(self.links)})
        if self.hidden:
            properties.append({"id": "custom.hidden", "value": True})
        return {"matcher": {"id": "byName", "options": self.name}, "properties": properties}


def _instant(query: str | Query) -> Query:
    return Query(query, instant=True) if isinstance(query, str) else query


def stat(
    title: str,
    description: str,
    query: str | Query,
    *,
    unit: str = looks.COUNT,
    thresholds: Json = looks.PLAIN,
    mappings: Sequence[Json] = (),
    width: int = 3,
    height: int = 4,
) -> Panel:
    """A number, or a word, for each series. An expression without a legend is an instant query."""
    query = _instant(query)
    return Panel(
        kind="stat",
        title=title,
        description=description,
        queries=(query,),
        width=width,
        height=height,
        defaults={"color": {"mode": "thresholds"}, "mappings": list(mappings), "thresholds": thresholds, "unit": unit},
        options={
            "colorMode": "background_solid",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "value_and_name" if query.legend else "value",
        },
    )


def lines(
    title: str,
    description: str,
    *queries: Query,
    unit: str = looks.COUNT,
    stacked: bool = False,
    limit: str | None = None,
    ceiling: float | None = None,
    width: int = 12,
    height: int = 8,
) -> Panel:
    """Values over time; `limit` begins the legend of what they are measured against, `ceiling` is their greatest."""
    return _series(
        title,
        description,
        queries,
        {
            "drawStyle": "line",
            "fillOpacity": 40 if stacked else 5,
            "lineInterpolation": "stepAfter",
            "lineWidth": 1,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"group": "A", "mode": "normal" if stacked else "none"},
        },
        {"unit": unit, "min": 0, **(_NOTHING if ceiling is None else {"max": ceiling})},
        () if limit is None else (_measure(limit),),
        (width, height),
    )


def bars(
    title: str, description: str, *queries: Query, unit: str = looks.EVENTS, width: int = 12, height: int = 8
) -> Panel:
    """How often something happened, over time."""
    custom = {
        "drawStyle": "bars",
        "fillOpacity": 80,
        "lineWidth": 0,
        "showPoints": "never",
        "stacking": {"group": "A", "mode": "normal"},
    }
    return _series(title, description, queries, custom, {"unit": unit, "min": 0, "decimals": 0}, (), (width, height))


def _series(
    title: str,
    description: str,
    queries: Sequence[Query],
    custom: Json,
    values: Json,
    overrides: Sequence[Json],
    size: tuple[int, int],
) -> Panel:
    return Panel(
        kind="timeseries",
        title=title,
        description=description,
        queries=queries,
        width=size[0],
        height=size[1],
        defaults={"color": {"mode": "palette-classic"}, "custom": custom, **values},
        overrides=overrides,
        options={
            "legend": {
                "calcs": ["lastNotNull", "max"],
                "displayMode": "table",
                "placement": "bottom",
                "showLegend": True,
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        transformations=[SHORT_NAMES] if any("{{daemon}}" in query.legend for query in queries) else [],
    )


def _measure(legend: str) -> Json:
    """A dashed line, which is not stacked upon the others."""
    return {
        "matcher": {"id": "byRegexp", "options": f"/^{legend}/"},
        "properties": [
            {"id": "custom.stacking", "value": {"group": "A", "mode": "none"}},
            {"id": "custom.fillOpacity", "value": 0},
            {"id": "custom.lineStyle", "value": {"dash": [10, 10], "fill": "dash"}},
            {"id": "color", "value": {"fixedColor": looks.Colour.BAD, "mode": "fixed"}},
        ],
    }


def timeline(
    title: str, description: str, query: Query, mappings: Sequence[Json], *, width: int = 12, height: int = 6
) -> Panel:
    """The states of each series over time, in words."""
    return Panel(
        kind="state-timeline",
        title=title,
        description=description,
        queries=(query,),
        width=width,
        height=height,
        defaults={
            "color": {"mode": "thresholds"},
            "custom": {"fillOpacity": 70, "lineWidth": 0},
            "mappings": list(mappings),
            "thresholds": looks.PLAIN,
            "unit": looks.NUMBER,
        },
        options={
            "alignValue": "left",
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "mergeValues": True,
            "rowHeight": 0.85,
            "showValue": "auto",
            "tooltip": {"mode": "single", "sort": "none"},
        },
        transformations=[SHORT_NAMES] if "{{daemon}}" in query.legend else [],
    )


def matrix(
    title: str, description: str, query: str, *, rows: str, columns: str, width: int = 24, height: int = 8
) -> Panel:
    """A table of the values of an expression, in which two of its labels name the rows and the columns."""
    return Panel(
        kind="table",
        title=title,
        description=description,
        queries=[_instant(query)],
        width=width,
        height=height,
        defaults={**_TABLE_DEFAULTS, "unit": looks.COUNT},
        options=_table_options(rows.capitalize(), descending=False),
        transformations=[
            {"id": "groupingToMatrix", "options": {"columnField": columns, "rowField": rows, "valueField": "Value"}},
            {
                "id": "organize",
                "options": {
                    "excludeByName": {},
                    "indexByName": {},
                    "renameByName": {f"{rows}\\{columns}": rows.capitalize()},
                },
            },
        ],
    )


def table(
    title: str,
    description: str,
    queries: str | Sequence[str],
    columns: Mapping[str, str | Column],
    *,
    sort: tuple[str, bool],
    later: Mapping[str, tuple[str, int]] = MappingProxyType({}),
    limit: int | None = None,
    width: int = 24,
    height: int = 8,
) -> Panel:
    """A row for each set of labels. Of these, and of the values, those are shown that `columns` name.

    A single query's value is `Value`; of several, which have the same labels, they are `Value #A` and so on. `sort` is
    a column's name, and whether the greatest comes first. A column that is only a name shows words. `later` adds hidden
    columns: a column's value, and a number that is added to it. `limit` is how many rows are shown at most.
    """
    looks_of = {label: Column(column) if isinstance(column, str) else column for label, column in columns.items()}
    return Panel(
        kind="table",
        title=title,
        description=description,
        queries=[_instant(query) for query in ((queries,) if isinstance(queries, str) else queries)],
        width=width,
        height=height,
        defaults=_TABLE_DEFAULTS,
        overrides=[
            *(column.override() for column in looks_of.values()),
            *(Column(name, looks.NUMBER, hidden=True).override() for name in later),
        ],
        options=_table_options(sort[0], descending=sort[1]),
        transformations=[
            {"id": "filterFieldsByName", "options": {"include": {"pattern": f"^({'|'.join(columns)})$"}}},
            {"id": "merge", "options": {}},
            {
                "id": "organize",
                "options": {
                    "excludeByName": {},
                    "indexByName": {name: index for index, name in enumerate(columns)},
                    "renameByName": {name: column.name for name, column in looks_of.items()},
                },
            },
            *(
                {
                    "id": "calculateField",
                    "options": {
                        "alias": name,
                        "binary": {"left": column, "operator": "+", "right": str(number)},
                        "mode": "binary",
                    },
                }
                for name, (column, number) in later.items()
            ),
            *(
                ()
                if limit is None
                else (
                    {"id": "sortBy", "options": {"fields": {}, "sort": [{"field": sort[0], "desc": sort[1]}]}},
                    {"id": "limit", "options": {"limitField": limit}},
                )
            ),
        ],
    )
