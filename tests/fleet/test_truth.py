"""Recording rules and answers return what a simulated fleet did, in Prometheus and in VictoriaMetrics."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest

from benchmarks.fleet.model import GPUS, Fleet, Owner, Totals, by, simulated
from benchmarks.fleet.recorded import evaluate, write_raw
from benchmarks.fleet.samples import MODELLED, Exposed
from benchmarks.fleet.stores import Prometheus, Store, VictoriaMetrics
from dashboards import answers
from dashboards.answers import Answer
from exporter.metrics.catalogue import CATALOGUE

HOUR = 3600
BEGAN = 1_700_000_000 // HOUR * HOUR
NODES, HOURS = 6, 6
TEN_MINUTES = range(BEGAN + 1800, BEGAN + HOURS * HOUR + 1, 600)
FIVE_MINUTES = range(BEGAN + 1800, BEGAN + HOURS * HOUR + 1, 300)
ASKED_AT = TEN_MINUTES[-1] + 7
"""Not at the time of a sample: Prometheus 2 includes a sample at the beginning of a range, others do not."""
PERIOD = f"{ASKED_AT - TEN_MINUTES[0] + 1}s"
TEAM, NAMESPACE, USER, KIND, APPLICATION = range(5)

EXACT, CLOSE = 1e-6, 0.01
"""Relative errors. What is sampled each minute, and what a new node did before its first scrape, is not exact."""

Rows = Mapping[tuple[str, ...], float]


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    """With churn, faults, refusals, bypass, exporters that restart, a new node and one that goes away."""
    return simulated(NODES, BEGAN - 100.0, TEN_MINUTES[-1] + 100.0, fault_hours=2.0)


@pytest.fixture(scope="module")
def truth(fleet: Fleet) -> Totals:
    """What the evaluations cover: each ends one minute before its time."""
    return fleet.totals(TEN_MINUTES[0] - 660, TEN_MINUTES[-1] - 60)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory, fleet: Fleet) -> Iterator[Mapping[str, Store]]:
    """Both with the samples of all nodes and the results of the rules."""
    directory = tmp_path_factory.mktemp("fleet")
    found = {
        "prometheus": Prometheus(directory / "prometheus", {}),
        "victoria": VictoriaMetrics(directory / "victoria", "-search.disableCache"),
    }
    with ExitStack() as running:
        for store in found.values():
            running.enter_context(store)
        write_raw(list(found.values()), fleet, BEGAN, TEN_MINUTES[-1])
        for store in found.values():
            evaluate(store, {"10m": TEN_MINUTES, "5m": FIVE_MINUTES})
        yield found


@pytest.fixture(params=["prometheus", "victoria"])
def store(request: pytest.FixtureRequest, stores: Mapping[str, Store]) -> Store:
    return stores[request.param]


def column(store: Store, answer: Answer, heading: str) -> Rows:
    """The values of a column by the labels of their rows, without labels that no row has."""
    headings = [each.heading for each in answer.columns]
    query = answer.queries(PERIOD, "", None)[headings.index(heading)]
    labels = [label for label in answer.labels if label not in ("cluster", "job")]
    return {
        tuple(dict(found).get(label, "") for label in labels): value
        for found, value in store.query(query, ASKED_AT).items()
        if value
    }


def true(counts: Mapping[Owner, float], *parts: int, per: float = 1) -> Rows:
    return {key: value / per for key, value in by(counts, *parts).items() if value}


@pytest.mark.systems
@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        (answers.COST_BY_NAMESPACE, (NAMESPACE,)),
        (answers.COST_BY_TEAM, (TEAM,)),
        (answers.COST_BY_USER, (USER,)),
    ],
    ids=["namespace", "team", "user"],
)
def test_use_is_that_of_the_clients(store: Store, truth: Totals, answer: Answer, parts: tuple[int, ...]) -> None:
    assert column(store, answer, "SM time") == pytest.approx(true(truth.sm_seconds, *parts, per=3600), rel=CLOSE)
    assert column(store, answer, "Cost") == pytest.approx(true(truth.sm_seconds, *parts, per=3600), rel=CLOSE)
    assert column(store, answer, "Memory") == pytest.approx(
        true(truth.memory_byte_seconds, *parts, per=3.6e12), rel=CLOSE
    )
    assert column(store, answer, "Energy") == pytest.approx(true(truth.energy_joules, *parts, per=3.6e6), rel=CLOSE)


@pytest.mark.systems
def test_cost_of_a_job_is_that_on_all_its_nodes(store: Store, truth: Totals) -> None:
    jobs = {owner: use for owner, use in truth.sm_seconds.items() if owner[KIND] == "job"}
    found = column(store, answers.COST_BY_JOB, "SM time")
    assert found == pytest.approx(true(jobs, APPLICATION, USER, per=3600), rel=CLOSE)


@pytest.mark.systems
def test_requested_and_used_are_compared_for_each_application(store: Store, truth: Totals) -> None:
    found = column(store, answers.SIZES, "Client time")
    parts = (NAMESPACE, KIND, APPLICATION)
    seconds = true(truth.client_seconds, *parts)
    assert sum(found.values()) == pytest.approx(sum(seconds.values()) / 3600, rel=CLOSE)
    # Clients are counted each minute, so one can be wrong by a minute.
    assert found == pytest.approx({key: value / 3600 for key, value in seconds.items()}, rel=2 * CLOSE, abs=1 / 60)
    requested = true(truth.requested_sm_seconds, *parts)
    allowed = {key: value / seconds[key] for key, value in requested.items()}
    assert column(store, answers.SIZES, "Threads allowed") == pytest.approx(allowed, abs=0.02)


@pytest.mark.systems
def test_matrix_of_crashes_is_exact(store: Store, truth: Totals) -> None:
    expected: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for (owner, suspect, confidence), clients in truth.faulted_clients.items():
        of_suspect = ("", "") if suspect is None else (suspect[NAMESPACE], suspect[APPLICATION])
        expected[(*of_suspect, owner[NAMESPACE], owner[APPLICATION], confidence)] += clients
    assert len(expected) > 10
    assert column(store, answers.CRASHES, "Clients") == expected


@pytest.mark.systems
def test_faults_of_applications_and_nodes_are_exact(store: Store, truth: Totals) -> None:
    parts = (NAMESPACE, APPLICATION)
    assert column(store, answers.FAULTS, "Suffered") == true(truth.faults_suffered, *parts)
    assert column(store, answers.FAULTS, "Suspected") == true(truth.faults_caused, *parts)
    assert column(store, answers.OPERATOR, "Faults") == {
        (node,): count for node, count in truth.faults.items() if count
    }
    assert column(store, answers.OPERATOR, "Daemon deaths") == {
        (node,): count for node, count in truth.deaths.items() if count
    }


@pytest.mark.systems
def test_service_level_is_that_of_the_clients(store: Store, truth: Totals) -> None:
    minutes: defaultdict[str, float] = defaultdict(float)
    for (_, outcome), count in truth.client_minutes.items():
        minutes[outcome] += count
    good, bad = minutes["served"], minutes["faulted"] + minutes["refused"] + minutes["bypassed"]
    [found] = column(store, answers.SLO_BY_CLUSTER, "Good").values()
    assert 1 - found == pytest.approx(bad / (good + minutes["refused"] + minutes["bypassed"]), rel=CLOSE)
    for heading, exact in (("Faulted", True), ("Refused", True), ("Bypassed", False)):
        [count] = column(store, answers.SLO_BY_CLUSTER, heading).values()
        assert count == pytest.approx(minutes[heading.lower()], rel=EXACT if exact else CLOSE)


@pytest.mark.systems
def test_idle_time_of_nodes_is_what_no_client_used(store: Store, fleet: Fleet, truth: Totals) -> None:
    watched = {
        (node.instance,): GPUS * node.watched(TEN_MINUTES[0] - 660, TEN_MINUTES[-1] - 60) / 3600 for node in fleet.nodes
    }
    assert column(store, answers.IDLE_BY_NODE, "GPU time") == pytest.approx(watched, rel=CLOSE)
    used = {(node,): seconds / 3600 for node, seconds in truth.sm_seconds_of_node.items()}
    cost = column(store, answers.IDLE_BY_NODE, "Cost of use")
    assert cost == pytest.approx(used, rel=CLOSE)


@pytest.mark.systems
@pytest.mark.parametrize("answer", answers.ANSWERS, ids=lambda answer: answer.key)
def test_both_stores_answer_alike(stores: Mapping[str, Store], answer: Answer) -> None:
    for each in answer.columns:
        one, other = (column(store, answer, each.heading) for store in stores.values())
        assert other == pytest.approx(one, rel=1e-3), each.heading


def test_simulated_families_have_the_labels_of_the_catalogue(fleet: Fleet) -> None:
    labels = {family.name: set(family.labels) for family in CATALOGUE}
    node = next(each for each in fleet.nodes if each.faults and each.deaths)
    at = max(node.faults[0].at, node.deaths[0][0]) + 400
    shown = {series.name: set(series.labels) - {"label_team"} for series, _ in Exposed(node, 0).samples(at)}
    assert shown.keys() >= MODELLED - {"cuda_mps_bypassing_process_info"}
    assert {name: shown[name] for name in MODELLED & shown.keys()} == {
        name: labels[name] for name in MODELLED & shown.keys()
    }
