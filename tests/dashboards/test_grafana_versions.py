"""Grafana 10 to 13 read the dashboards: they use only what each of these versions has, or converts.

The sets are what the dashboards use of the models of Grafana 10 (Grafana's Foundation SDK 10.1.0) and 13 (package
@grafana/schema 13.2.3). What later versions convert is in Grafana's migrations of the schemas 39 to 43 and of tables.
"""

import json
from collections.abc import Iterator

import pytest

from dashboards.board import SCHEMA_VERSION
from tests.dashboards.queries import MODELS, Model, annotations, panels, variables

EACH = pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))

LEGEND = {"calcs", "displayMode", "placement", "showLegend"}
TOOLTIP = {"mode", "sort"}
OPTIONS = {
    "stat": {"colorMode", "graphMode", "justifyMode", "orientation", "reduceOptions", "textMode"},
    "timeseries": {"legend", "tooltip"},
    "state-timeline": {"alignValue", "legend", "mergeValues", "rowHeight", "showValue", "tooltip"},
    "table": {"cellHeight", "showHeader", "sortBy"},
}
"""Of React panels. Grafana 12 has no Angular panels, and moved `footer` of tables."""
CUSTOM = {
    "stat": set[str](),
    "timeseries": {
        *("drawStyle", "fillOpacity", "lineInterpolation", "lineStyle", "lineWidth", "showPoints", "spanNulls"),
        "stacking",
    },
    "state-timeline": {"fillOpacity", "lineWidth"},
    # Grafana 12 converts `hidden`.
    "table": {"align", "cellOptions", "filterable", "hidden", "inspect", "width"},
}
STANDARD = {"color", "decimals", "displayName", "links", "mappings", "max", "min", "thresholds", "unit"}
MATCHERS = {"byName", "byRegexp"}
TRANSFORMATIONS = {
    *("calculateField", "filterFieldsByName", "groupBy", "groupingToMatrix", "joinByField", "limit", "merge"),
    *("organize", "renameByRegex", "sortBy"),
}


@EACH
def test_the_schema_needs_no_conversion_after_that_of_10(model: Model) -> None:
    """39: timeSeriesTable. 40: type of refresh. 41: time_options. 42: hideFrom. 43: formatTime."""
    assert model["schemaVersion"] == SCHEMA_VERSION == 38
    assert isinstance(model["refresh"], str)
    text = json.dumps(model)
    for converted in ("timeSeriesTable", "formatTime", "time_options", "hideFrom"):
        assert converted not in text


@EACH
def test_panels_use_only_what_10_has(model: Model) -> None:
    for panel in panels(model):
        kind, title = panel["type"], panel["title"]
        assert panel["pluginVersion"].startswith("10."), title
        assert panel["options"].keys() <= OPTIONS[kind], title
        assert panel["options"].get("legend", {}).keys() <= LEGEND, title
        assert panel["options"].get("tooltip", {}).keys() <= TOOLTIP, title
        assert {each["id"] for each in panel["transformations"]} <= TRANSFORMATIONS, title


@EACH
def test_fields_use_only_what_10_has(model: Model) -> None:
    """The table panel of 12 fails if a panel has no `overrides`."""
    for panel in panels(model):
        kind, title = panel["type"], panel["title"]
        defaults, overrides = panel["fieldConfig"]["defaults"], panel["fieldConfig"]["overrides"]
        assert defaults.keys() - {"custom"} <= STANDARD, title
        assert defaults.get("custom", {}).keys() <= CUSTOM[kind], title
        assert {each["matcher"]["id"] for each in overrides} <= MATCHERS, title
        changed = {each["id"] for override in overrides for each in override["properties"]}
        assert changed <= STANDARD | {f"custom.{name}" for name in CUSTOM[kind]}, title


@EACH
def test_data_sources_are_objects(model: Model) -> None:
    """Names of data sources are no longer read."""
    for source in data_sources(model):
        assert source.keys() == {"type", "uid"}


def data_sources(part: object) -> Iterator[Model]:
    if isinstance(part, dict):
        if "datasource" in part:
            yield part["datasource"]
        for each in part.values():
            yield from data_sources(each)
    elif isinstance(part, list):
        for each in part:
            yield from data_sources(each)


@EACH
def test_annotations_have_their_query_in_both_places(model: Model) -> None:
    """Grafana 12 reads `target`."""
    for annotation in annotations(model):
        assert annotation["target"]["expr"] == annotation["expr"]
        assert annotation["target"]["refId"]


@EACH
def test_variables_have_a_query_object_with_an_id(model: Model) -> None:
    for variable in variables(model):
        assert variable["query"]["query"] == variable["definition"]
        assert variable["query"]["refId"]
