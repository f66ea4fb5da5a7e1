"""The dashboards follow the rules of Grafana's dashboard-linter, and some rules for readability."""

import itertools
import json
import re

import pytest
from promql_parser import MatchOp

from dashboards import looks
from dashboards.__main__ import BOARDS, path
from dashboards.board import COLUMNS, TAG, Board
from dashboards.links import OF_CHOSEN_NODES
from dashboards.panel import SHORT_NAMES
from dashboards.parameters import Parameters
from dashboards.problems import NUMBERS, SHOWN_PROBLEMS
from dashboards.recording import groups
from exporter.metrics.catalogue import CATALOGUE
from tests.dashboards.queries import ALL_QUERIES, EXPRESSIONS, MODELS, Model, annotations, panels, variables
from tests.promql import grouped_by, parts, problems, selectors, unrated

COMMITTED = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
EACH = pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))

FIRST_CHOICES = {"cluster": ".*", "job": None, "instance": ".*"}
"""The pattern of all choices. Of jobs it is the alternative of all of them."""
OF_CLUSTERS = ("cuda-mps-usage", "cuda-mps-reliability")
"""The dashboards of series without a node, in which only the cluster can be chosen."""


def first_choices(model: Model) -> list[str]:
    return list(FIRST_CHOICES)[: 1 if model["uid"] in OF_CLUSTERS else None]


@COMMITTED
def test_committed_dashboards_are_current(board: Board) -> None:
    """If not: python -m dashboards."""
    assert path(board).read_text() == board.text()


def test_no_other_file_is_committed() -> None:
    here = path(BOARDS[0]).parent
    assert sorted(here.glob("*.json")) == sorted(map(path, BOARDS))


@EACH
def test_can_be_provisioned(model: Model) -> None:
    """A provisioned dashboard is found by its uid; an id would be another Grafana's."""
    assert "id" not in model
    assert re.fullmatch(r"[a-z-]{1,40}", model["uid"])
    assert (model["editable"], model["graphTooltip"], model["tags"]) == (True, 1, [TAG])
    assert "__inputs" not in model


@EACH
def test_data_source_cluster_job_and_nodes_can_be_chosen(model: Model) -> None:
    """A dashboard of raw series, as that of a node, shows the first node until others are chosen."""
    datasource, *others = model["templating"]["list"]
    assert (datasource["type"], datasource["name"], datasource["label"]) == ("datasource", "datasource", "Data source")
    for variable, name in zip(others, first_choices(model), strict=False):
        assert variable["name"] == name
        assert variable["label"]
        has_all = name != "instance" or model["uid"] not in OF_CHOSEN_NODES
        assert (variable["multi"], variable["includeAll"]) == (True, has_all)
        assert variable["allValue"] == (FIRST_CHOICES[name] if has_all else None)
        assert bool(variable["current"]) == variable["includeAll"]


@EACH
def test_variables_follow_the_time_shown(model: Model) -> None:
    assert {variable["refresh"] for variable in variables(model)} == {2}


@EACH
def test_all_queries_use_the_selected_data_source(model: Model) -> None:
    asking = [*panels(model), *(target for panel in panels(model) for target in panel["targets"])]
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    for each in (*asking, *variables(model), *annotations(model)):
        assert each["datasource"] == chosen


@EACH
def test_each_panel_has_title_description_and_queries(model: Model) -> None:
    for panel in panels(model):
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["targets"], panel["title"]
        assert all(target["expr"].strip() for target in panel["targets"]), panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@EACH
def test_each_value_has_a_unit(model: Model) -> None:
    for panel in panels(model):
        if panel["type"] == "table":
            given = [each for each in panel["fieldConfig"]["overrides"] if "unit" in ids(each)]
            assert len(given) == len(panel["fieldConfig"]["overrides"]), panel["title"]
        else:
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


def test_sums_of_a_period_are_in_the_units_of_their_columns() -> None:
    """The recorded series are in joules, byte seconds and seconds; the columns in kWh, GB h and h."""
    tables = [panel for panel in panels(MODELS["cuda-mps-usage"]) if panel["type"] == "table"]
    found = [target["expr"] for panel in tables for target in panel["targets"]]
    for series, divisor in (("energy_joules", "3.6e6"), ("memory_byte_seconds", "3.6e12"), ("sm_seconds", "3600")):
        sums = [each for each in found if f":cuda_mps_{series}:increase10m" in each and "sum_over_time" in each]
        assert sums, series
        assert all(f" / {divisor}" in each or "/ sum" in each for each in sums), series


def ids(override: Model) -> set[str]:
    return {each["id"] for each in override["properties"]}


@EACH
def test_panels_have_unique_ids_titles_and_positions(model: Model) -> None:
    every = [*(panel for panel in model["panels"] if panel["type"] == "row"), *panels(model)]
    assert len({panel["id"] for panel in every}) == len(every)
    for together in (model["panels"], *(panel["panels"] for panel in model["panels"] if panel["type"] == "row")):
        taken: set[tuple[int, int]] = set()
        for panel in together:
            at = panel["gridPos"]
            assert at["x"] + at["w"] <= COLUMNS, panel["title"]
            cells = set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
            assert not cells & taken, panel["title"]
            taken |= cells
    titles = [(panel["type"], panel["title"]) for panel in panels(model)]
    assert len(set(titles)) == len(titles)


FIRST_SCREEN = 22
"""Grid units (38 pixels each) below Grafana's bars on a screen of 1440 x 900 pixels."""


@EACH
def test_only_the_first_row_is_open_and_fits_on_a_screen(model: Model) -> None:
    first, *others = [panel for panel in model["panels"] if panel["type"] == "row"]
    assert not first["collapsed"]
    assert all(row["collapsed"] and row["panels"] for row in others)
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in model["panels"] if panel["type"] != "row")
    assert bottom <= FIRST_SCREEN


@EACH
def test_legends_have_no_path_of_a_daemon(model: Model) -> None:
    """The label has the pipe directory of a daemon without a configured name."""
    with_daemon = [
        panel
        for panel in panels(model)
        if panel["type"] in ("timeseries", "state-timeline")
        and any("{{daemon}}" in target["legendFormat"] for target in panel["targets"])
    ]
    for panel in with_daemon:
        assert SHORT_NAMES in panel["transformations"], panel["title"]


def test_a_legend_shows_the_directory_above_the_pipe_directory(subtests: pytest.Subtests) -> None:
    """Grafana replaces the whole name if the pattern matches."""
    for legend, short in [
        ("waiting /run/nvidia/mps/training/pipe node1:10677", "waiting training node1:10677"),
        ("server 7 of /run/nvidia/mps/a-b/pipe node1", "server 7 of a-b node1"),
        ("training node1", "training node1"),
        ("/tmp/nvidia-mps node1", "/tmp/nvidia-mps node1"),
        ("/run/mps/pipeline/x node1", "/run/mps/pipeline/x node1"),
    ]:
        with subtests.test(legend=legend, short=short):
            options = SHORT_NAMES["options"]
            pattern = re.sub(r"\$(\d)", r"\\\1", options["renamePattern"])
            assert re.sub(options["regex"], pattern, legend) == short


@EACH
def test_series_have_a_legend(model: Model) -> None:
    """Two series with the same legend could not be distinguished."""
    for panel in panels(model):
        if panel["type"] in ("timeseries", "state-timeline"):
            assert panel["options"]["legend"]["showLegend"], panel["title"]
            legends = [target["legendFormat"] for target in panel["targets"]]
            assert "__auto" not in legends, panel["title"]
            assert len(set(legends)) == len(legends), panel["title"]


@EACH
def test_what_is_drawn_differently_is_the_legend_of_a_query(model: Model) -> None:
    for panel in panels(model):
        for override in panel["fieldConfig"]["overrides"]:
            if override["matcher"]["id"] == "byRegexp":
                pattern = override["matcher"]["options"].strip("/")
                assert any(re.search(pattern, each["legendFormat"]) for each in panel["targets"]), panel["title"]


@EACH
def test_each_state_has_a_unique_text(model: Model) -> None:
    """Not by its colour alone."""
    for mappings in every_mapping(model):
        found = [result for mapping in mappings for result in mapping["options"].values()]
        assert len({result["text"] for result in found}) == len(found)
        assert {result["color"] for result in found} <= set(looks.Colour)


def every_mapping(model: Model) -> list[list[Model]]:
    """Of panels, and of the columns of tables."""
    of_panels = [panel["fieldConfig"]["defaults"].get("mappings", []) for panel in panels(model)]
    overrides = [override for panel in panels(model) for override in panel["fieldConfig"]["overrides"]]
    of_columns = [
        each["value"] for override in overrides for each in override["properties"] if each["id"] == "mappings"
    ]
    return [*of_panels, *of_columns]


@EACH
def test_missing_data_is_not_green(model: Model) -> None:
    assert "noValue" not in json.dumps(model)


@EACH
def test_a_table_shows_its_queries_labels(model: Model) -> None:
    """A value that is shown, but not asked for, would be an empty column; one that is asked for in vain a waste."""
    for panel in panels(model):
        if panel["type"] == "table":
            [shown] = [each["options"]["renameByName"] for each in panel["transformations"] if each["id"] == "organize"]
            if panel["transformations"][0]["id"] == "groupingToMatrix":
                assert len(panel["targets"]) == 1, panel["title"]
                continue
            values = {name for name in shown if name.startswith("Value")}
            several = len(panel["targets"]) > 1
            given = {f"Value #{target['refId']}" if several else "Value" for target in panel["targets"]}
            assert values <= given, panel["title"]
            assert values == given or not several, panel["title"]
            assert panel["options"]["sortBy"][0]["displayName"] in shown.values()


@EACH
def test_the_name_of_a_node_links_to_its_dashboard_and_its_page(model: Model) -> None:
    overrides = [each for panel in panels(model) for each in panel["fieldConfig"]["overrides"]]
    for override in overrides:
        if override["matcher"]["options"] == "Node":
            [links] = [each["value"] for each in override["properties"] if each["id"] == "links"]
            *others, page = [each["url"] for each in links]
            assert page == "http://${__data.fields.Node}/"
            if model["uid"] == "cuda-mps-node" and not others:
                continue
            [url] = others
            assert url.startswith("/d/cuda-mps-node?")
            chosen = [f"${{{name}:queryparam}}" for name in first_choices(model) if name != "instance"]
            for passed in ("var-datasource=", *chosen, "var-instance=", "${__url_time_range}"):
                assert passed in url


@EACH
def test_an_incident_or_client_links_to_its_page(model: Model) -> None:
    """The dashboard is that of faults."""
    for panel in panels(model):
        for override in panel["fieldConfig"]["overrides"]:
            if (name := override["matcher"]["options"]) in ("Incident", "Death", "Client"):
                [links] = [each["value"] for each in override["properties"] if each["id"] == "links"]
                *others, page = [each["url"].partition("?")[0] for each in links]
                place = "clients" if name == "Client" else "incidents"
                assert page == f"http://${{__data.fields.Node}}/{place}/${{__data.fields.{name}:percentencode}}"
                assert others == (["/d/cuda-mps-incident"] if name == "Incident" else [])


@EACH
def test_header_links_lead_to_all_others_with_variables_and_time(model: Model) -> None:
    """They never choose all nodes in a dashboard that reads the raw series of a few."""
    links = {re.split(r"[/?]", link["url"])[2]: link for link in model["links"]}
    assert set(links) == set(MODELS) - {model["uid"]}
    for uid, link in links.items():
        there = MODELS[uid]
        assert (link["type"], link["includeVars"], link["keepTime"]) == ("link", False, True)
        assert there["title"].endswith(f"/ {link['title']}")
        both = {*first_choices(model)} & {*first_choices(there)}
        if uid in OF_CHOSEN_NODES and model["uid"] not in OF_CHOSEN_NODES:
            both -= {"instance"}
        assert {f"${{{name}:queryparam}}" for name in both} == set(re.findall(r"\$\{\w+:queryparam\}", link["url"]))


@EACH
def test_links_lead_to_existing_dashboards_and_variables(model: Model) -> None:
    for url in re.findall(r'"url": "(/d/[^"]+)"', json.dumps(model)):
        there = MODELS[url.removeprefix("/d/").partition("?")[0]]
        names = {variable["name"] for variable in there["templating"]["list"]}
        assert set(re.findall(r"var-(\w+)=", url)) <= names
        assert set(re.findall(r"\$\{(\w+):queryparam\}", url)) <= names


def test_expressions_use_existing_metrics_and_labels(subtests: pytest.Subtests) -> None:
    for where in EXPRESSIONS:
        with subtests.test(where=where):
            assert problems(EXPRESSIONS[where]) == []


def test_expressions_filter_by_the_selection_and_rate_counters(subtests: pytest.Subtests) -> None:
    for where in ALL_QUERIES:
        with subtests.test(where=where):
            expression = EXPRESSIONS[where]
            wanted = {name: f"${name}" for name in first_choices(ALL_QUERIES[where].model)}
            for selector in selectors(ALL_QUERIES[where].parseable):
                chosen = {each.name: each.value for each in selector.matchers.matchers if each.op == MatchOp.Re}
                if selector.name is not None and selector.name.startswith("kube_"):  # of no exporter
                    chosen |= {name: choice for name, choice in wanted.items() if name != "cluster"}
                assert wanted.items() <= chosen.items(), selector.name
            assert unrated(expression) == []


def test_expressions_keep_nodes_of_two_clusters_apart(subtests: pytest.Subtests) -> None:
    for where, expression in EXPRESSIONS.items():
        with subtests.test(where=where):
            for labels in map(grouped_by, parts(expression)):
                assert "cluster" in labels or "job" not in labels, labels


def test_rates_use_a_suitable_range(subtests: pytest.Subtests) -> None:
    for where in ALL_QUERIES:
        with subtests.test(where=where):
            queries_of = ALL_QUERIES[where]
            ranges = set(re.findall(r"(?:rate|increase)\([^[]+\[([^]]+)\]", queries_of.expression))
            assert ranges <= ({"$__range"} if queries_of.instant else {"$__rate_interval"})


def test_finds_a_counter_without_a_rate(subtests: pytest.Subtests) -> None:
    for expression, found in [
        ("sum(cuda_mps_faults_total)", ["cuda_mps_faults_total"]),
        ("max_over_time(cuda_mps_faults_total[5m])", ["cuda_mps_faults_total"]),
        ("increase(cuda_mps_faults_total[5m])", []),
        ("cuda_mps_faults_total @ 1700000000 - cuda_mps_faults_total @ 1600000000", []),
        ("cuda_mps_daemon_up", []),
    ]:
        with subtests.test(expression=expression, found=found):
            assert unrated(expression) == found


def test_each_family_is_on_a_dashboard_or_recorded(subtests: pytest.Subtests) -> None:
    expressions = [each.expression for each in ALL_QUERIES.values()]
    expressions += [rule.expression for group in groups(Parameters()) for rule in group.rules]
    for family in [family.name for family in CATALOGUE]:
        with subtests.test(family=family):
            assert any(re.search(rf"\b{family}(_sum)?\b", each) for each in expressions)


def test_problems_are_from_the_catalogue_and_appear_once() -> None:
    """The table has the catalogue's label and severity: no second wording."""
    labels = [each.label for each in SHOWN_PROBLEMS]
    assert len(set(labels)) == len(labels)
    assert {each.number for each in SHOWN_PROBLEMS} <= set(NUMBERS.values())
