"""The queries of the dashboards, with and without Grafana's variables filled in."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dashboards.__main__ import BOARDS

Model = Mapping[str, Any]

MODELS: Mapping[str, Model] = {board.uid: board.as_json() for board in BOARDS}

LABEL_VALUES = re.compile(r"label_values\((?P<selector>.+), (?P<label>\w+)\)")
QUERY_RESULT = re.compile(r"query_result\((?P<expression>.+)\)")

CHOSEN = {"$cluster": ".*", "$job": "cuda-mps-exporter", "$instance": ".*", "$daemon": ".+", "$gpu": ".+"}
PARSED_WITH = {**CHOSEN, "$incident": "4242-1a1fe91cac0", "$node": "node1:10677", "$began": "1700000000"}
"""Values of variables with which every expression can be parsed."""


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, its place in a dashboard, and whether it is an instant query."""

    model: Model
    where: str
    expression: str
    instant: bool

    @property
    def parseable(self) -> str:
        """The expression without the variables that are no names or durations."""
        return fill_variables(self.expression, {"$began": "1700000000"})


def panels(model: Model) -> Iterator[Model]:
    """Return all panels except headings, also those in collapsed rows."""
    every = (each for panel in model["panels"] for each in (panel, *panel.get("panels", ())))
    return (panel for panel in every if panel["type"] != "row")


def variables(model: Model) -> Iterator[Model]:
    """Those that are asked for."""
    return (variable for variable in model["templating"]["list"] if variable["type"] == "query")


def annotations(model: Model) -> Iterator[Model]:
    """Those that are asked for."""
    return (annotation for annotation in model["annotations"]["list"] if not annotation.get("builtIn"))


def queries_of(model: Model) -> Iterator[Query]:
    """Yield the queries of panels and annotations."""
    for panel in panels(model):
        for target in panel["targets"]:
            where = f"{model['title']}: {panel['title']} {target['refId']}"
            yield Query(model, where, target["expr"], target["instant"])
    for annotation in annotations(model):
        yield Query(model, f"{model['title']}: marks of {annotation['name']}", annotation["expr"], instant=False)


def query_of_variable(variable: Model) -> str:
    """Return the expression or selector of a variable's query."""
    query = variable["query"]["query"]
    found = LABEL_VALUES.fullmatch(query) or QUERY_RESULT.fullmatch(query)
    assert found is not None, query
    return found[1]


def fill_variables(expression: str, values: Mapping[str, str], *, range_seconds: int = 1800) -> str:
    """Return the expression as Grafana sends it for a scrape interval of 15 s."""
    times = {"$__rate_interval": "60s", "$__range": f"{range_seconds}s", "$__interval": "600s"}
    for name, value in (*times.items(), *values.items()):
        expression = expression.replace(name, value)
    return expression


ALL_QUERIES = {each.where: each for model in MODELS.values() for each in queries_of(model)}
EXPRESSIONS = {where: fill_variables(each.expression, PARSED_WITH) for where, each in ALL_QUERIES.items()} | {
    f"{model['title']}: variable {variable['name']}": fill_variables(query_of_variable(variable), PARSED_WITH)
    for model in MODELS.values()
    for variable in variables(model)
}
