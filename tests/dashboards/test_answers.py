"""A real Prometheus answers all queries of the dashboards, for several nodes with changing clients."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from dashboards.problems import NUMBERS, SHOWN_PROBLEMS, WORST
from dashboards.query import selected
from exporter.report.document_parts import Severity
from tests.dashboards import history as past
from tests.dashboards.queries import (
    CHOSEN,
    LABEL_VALUES,
    MODELS,
    Model,
    fill_variables,
    queries_of,
    query_of_variable,
    variables,
)
from tests.prometheus import Prometheus

pytestmark = pytest.mark.systems

CRITICAL = NUMBERS[Severity.CRITICAL]
RANGE = int(past.LAST - past.FIRST)

Values = Mapping[str, str]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """With the past in it. As there, a series that is not scraped again is gone with the next scrape."""
    directory = tmp_path_factory.mktemp("past")
    past.write(directory / "past.om")
    past.import_into(directory / "data", directory / "past.om")
    options = (f"--query.lookback-delta={past.EVERY}s", "--storage.tsdb.retention.time=100y")
    for _ in "rules", "rules that read others":
        with Prometheus(directory, {}, *options) as running:
            past.evaluate_rules(running.address, directory / "data")
    with Prometheus(directory, {}, *options) as running:
        yield running


def over_time(prometheus: Prometheus, expression: str, values: Values = CHOSEN, step: int = past.EVERY) -> Any:
    """What an expression gives from the first sample to the last."""
    query = fill_variables(expression, values, range_seconds=RANGE)
    return prometheus.get("query_range", query=query, start=past.FIRST, end=past.LAST, step=step)["result"]


def choices(prometheus: Prometheus, variable: Model, values: Values) -> list[str]:
    """What a variable may be."""
    query = fill_variables(query_of_variable(variable), values, range_seconds=RANGE)
    of_label = LABEL_VALUES.fullmatch(variable["query"]["query"])
    if of_label is not None:
        path = f"label/{of_label['label']}/values"
        found: list[str] = prometheus.get(path, **{"match[]": query, "start": past.FIRST, "end": past.LAST})
        return found
    wanted = re.compile(variable["regex"].strip("/").replace("(?<", "(?P<"))
    shown = [_as_grafana_shows(*each) for each in prometheus.vector(query, time=past.LAST)]
    matches = [match for match in map(wanted.search, shown) if match is not None]
    return [match.groupdict().get("value") or match[1] for match in matches]


def _as_grafana_shows(labels: Mapping[str, str], value: float) -> str:
    listed = ",".join(f'{name}="{label}"' for name, label in labels.items())
    return f"{{{listed}}} {value} {int(past.LAST * 1000)}"


def chosen(prometheus: Prometheus, model: Model) -> Values:
    """All of everything; or of what there is one of at a time, the first."""
    values = dict(CHOSEN)
    for variable in variables(model):
        found = choices(prometheus, variable, values)
        assert found or variable["allValue"] == ".*", f"{model['title']}: there is no {variable['name']}"
        if not variable["multi"]:
            values[f"${variable['name']}"] = found[0]
    return values


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_every_query_returns_data(prometheus: Prometheus, model: Model) -> None:
    values = chosen(prometheus, model)
    empty = [each.where for each in queries_of(model) if not over_time(prometheus, each.expression, values, 60)]
    assert empty == []


def test_each_problem_names_the_nodes_that_have_it(prometheus: Prometheus) -> None:
    assert [each.label for each in SHOWN_PROBLEMS if not over_time(prometheus, selected(each.query()))] == []


def test_severity_of_a_node_is_its_worst(prometheus: Prometheus) -> None:
    found = {each["metric"]["instance"]: each["values"] for each in over_time(prometheus, selected(WORST))}
    worst = {node: {int(value) for _, value in values} for node, values in found.items()}
    assert worst[past.DOWN] == {CRITICAL}
    assert CRITICAL in worst[past.STORMY]
    assert 0 in worst[past.CALM]


def test_shows_an_incident_with_its_affected_clients(prometheus: Prometheus) -> None:
    """The newest incident shows as many affected clients as the node counted, with their memory before."""
    board = MODELS["cuda-mps-incident"]
    values = chosen(prometheus, board)
    assert values["$node"] == past.CALM

    def value(title: str) -> float:
        [found] = [each for each in queries_of(board) if each.where == f"{board['title']}: {title}"]
        samples = prometheus.vector(fill_variables(found.expression, values, range_seconds=RANGE), time=past.LAST)
        return sum(value for _, value in samples)

    counted = prometheus.vector(f'sum(cuda_mps_fault_affected_clients_total{{instance="{past.CALM}"}})', time=past.LAST)
    assert value("Affected clients A") == counted[0][1] > 1
    assert value("Clients before the fault A") > value("Clients before the fault B")


def test_shows_the_suspected_workload_while_the_fault_is_open(prometheus: Prometheus) -> None:
    """The range ends during the fault, so that the counter of suspects has not risen yet."""
    board = MODELS["cuda-mps-incident"]
    [found] = [each for each in queries_of(board) if each.where == f"{board['title']}: Suspected workloads B"]
    in_fault = 'cuda_mps_server_state{state="fault"} == 1'
    during = over_time(prometheus, f'cuda_mps_fault_info{{suspect_workload!=""}} and on (instance, daemon) {in_fault}')
    assert during
    for each in during:
        info, (at, _) = each["metric"], each["values"][-1]
        values = CHOSEN | {"$incident": info["incident"], "$node": info["instance"]}
        query = fill_variables(found.expression, values, range_seconds=int(at - past.FIRST))
        [(labels, value)] = prometheus.vector(query, time=at)
        assert (f"{labels['workload_kind']}/{labels['workload']}", value) == (info["suspect_workload"], 1)


def test_usage_of_workloads_adds_up_to_the_gpus(prometheus: Prometheus) -> None:
    """But for what Prometheus cannot see: how much of it an owner used before its series' first sample."""
    board = MODELS["cuda-mps-accounting"]
    found = {each.where.removeprefix(f"{board['title']}: "): each.expression for each in queries_of(board)}

    def values(where: str) -> list[float]:
        query = fill_variables(found[where], CHOSEN, range_seconds=RANGE)
        return [value for _, value in prometheus.vector(query, time=past.LAST)]

    whole = values("SM-hours A")[0]
    assert 0.9 * whole < sum(values("SM time and energy by workload A")) <= 1.001 * whole
    assert 0.9 < sum(values("SM time and energy by workload B")) <= 1.001
    assert 0 < values("SM time without a workload A")[0] < 0.05


def test_names_the_pods_that_request_a_gpu_and_have_no_client(prometheus: Prometheus) -> None:
    board = MODELS["cuda-mps-accounting"]
    [found] = [each for each in queries_of(board) if each.where == f"{board['title']}: Requests by pod A"]
    query = fill_variables(found.expression, CHOSEN, range_seconds=RANGE)
    clients = {
        labels["client_pod"]: (labels["clients"], value) for labels, value in prometheus.vector(query, time=past.LAST)
    }
    assert clients == {name: ("none" if name == "notebook-0" else "some", 1) for _, name, _ in past.PODS}


def test_headroom_is_the_smallest_bound(prometheus: Prometheus) -> None:
    board = MODELS["cuda-mps-accounting"]
    least, *bounds = (
        each.expression for each in queries_of(board) if ": How many more fit " in each.where and each.instant
    )

    def by_gpu(expression: str) -> dict[tuple[str, str], float]:
        found = prometheus.vector(fill_variables(expression, CHOSEN), time=past.LAST)
        return {(labels["instance"], labels["gpu"]): value for labels, value in found}

    of_each = [by_gpu(bound) for bound in bounds]
    assert by_gpu(least) == {gpu: min(found[gpu] for found in of_each if gpu in found) for gpu in set().union(*of_each)}
