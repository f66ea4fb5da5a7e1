"""Labels of clients' pods: each pod is asked for once, and what could not be asked is not "no labels"."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from exporter.collectors.pods import COLLECTION_SECONDS, LONGEST_LABEL, PAUSE_SECONDS, PodLabels, ask_pod
from exporter.model.node import CollectorName
from exporter.model.observation import PodFound
from exporter.model.reason import Reason, ReasonCode
from exporter.report.reasons import reason_text
from tests.builders import POD
from tests.clocks import HandClock
from tests.kubernetes_api import ApiServer

TRAINER = PodFound(at=900.0, uid=POD, name="trainer-0", namespace="team-a")
OTHER = PodFound(at=900.0, uid="7" + POD[1:], name="trainer-1", namespace="team-a")
LABELS: dict[str, object] = {"team": "vision", "app.kubernetes.io/name": "trainer", "pod-template-hash": "5d9f"}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    pods = {(each.namespace, each.name): each.uid for each in (TRAINER, OTHER)}
    with ApiServer(tmp_path, pods=pods, permitted=frozenset({"team-a"}), labels={POD: LABELS}) as server:
        yield server


def collector(api: ApiServer, clock: HandClock, *wanted: PodFound) -> PodLabels:
    ask = partial(ask_pod, account=api.account, environment=api.environment)
    found = PodLabels(("team", "app.kubernetes.io/name"), clock, ask)
    found.watch(wanted)
    return found


def labelled(pod: PodFound, team: str | None = None, name: str | None = None) -> PodFound:
    labels = {"team": team, "app.kubernetes.io/name": name}
    return replace(pod, at=1000.0, labels={key: value for key, value in labels.items() if value is not None})


def test_reads_only_the_listed_labels_and_no_spec(api: ApiServer) -> None:
    reading = collector(api, HandClock(), TRAINER).collect()
    assert reading.problem is None
    assert reading.observations == (labelled(TRAINER, "vision", "trainer"),)
    status_and_content = ask_pod("GET", "team-a", "trainer-0", account=api.account, environment=api.environment)
    assert isinstance(status_and_content, tuple)
    assert "spec" not in status_and_content[1]


def test_a_pod_without_listed_labels_has_none(api: ApiServer) -> None:
    assert collector(api, HandClock(), OTHER).collect().observations == (labelled(OTHER),)


def test_asks_nothing_if_no_pod_is_wanted(api: ApiServer) -> None:
    api.answer = 500, b""
    reading = collector(api, HandClock()).collect()
    assert (reading.observations, reading.problem) == ((), None)


def test_a_pod_that_was_deleted_has_no_labels_and_is_asked_for_once(api: ApiServer) -> None:
    """Another pod with its name, of a StatefulSet for example, has another UID."""
    api.pods["team-a", "trainer-0"] = "8" + POD[1:]
    del api.pods["team-a", "trainer-1"]
    source = collector(api, HandClock(), TRAINER, OTHER)
    for _ in range(2):
        reading = source.collect()
        assert (reading.observations, reading.problem) == ((), None)
    assert api.asked == ["trainer-0", "trainer-1"]


@pytest.mark.parametrize("cause", ["namespace", "token"])
def test_a_missing_permission_is_a_problem_that_names_the_value_of_the_chart(api: ApiServer, cause: str) -> None:
    if cause == "token":
        (api.account / "token").write_text("another")
    else:
        api.permitted = frozenset()
    reading = collector(api, HandClock(), TRAINER).collect()
    assert reading.observations == ()
    assert reading.problem is not None
    assert reading.problem.code is ReasonCode.PERMISSION_DENIED
    assert "`podMetricLabels`" in reason_text(reading.problem, CollectorName.POD_LABELS)


def test_after_a_problem_it_asks_again_after_a_minute_and_has_the_problem_until_then(api: ApiServer) -> None:
    clock = HandClock()
    source = collector(api, clock, TRAINER, OTHER)
    api.permitted = frozenset()
    problem = source.collect().problem
    api.permitted = frozenset({"team-a"})
    clock.time += PAUSE_SECONDS - 1
    assert source.collect().problem == problem
    assert api.asked == ["trainer-0", "trainer-1"]
    clock.time += 1
    reading = source.collect()
    assert reading.problem is None
    assert [each.uid for each in reading.observations if isinstance(each, PodFound)] == [TRAINER.uid, OTHER.uid]


def test_a_pod_that_may_not_be_read_delays_no_other(api: ApiServer) -> None:
    """A cluster can permit it in some namespaces only."""
    reading = collector(api, HandClock(), replace(OTHER, namespace="team-b"), TRAINER).collect()
    assert reading.observations == (labelled(TRAINER, "vision", "trainer"),)
    assert reading.problem is not None


@pytest.mark.parametrize(
    "answer",
    [
        (500, b'{"message": "no quorum"}'),
        (404, b"<html>no such host</html>"),
        (500, b'{"metadata": {"uid": "%s", "labels": {"team": "x"}}}' % POD.encode()),
        (200, b"[" * 60_000),
        (200, b""),
        (200, b"[]"),
        (200, b'{"metadata": 7}'),
        (200, b'{"metadata": {"labels": {}}}'),
        (200, b'{"metadata": {"uid": "%s", "labels": 7}}' % POD.encode()),
    ],
)
def test_an_unusable_answer_is_a_problem(api: ApiServer, answer: tuple[int, bytes]) -> None:
    api.answer = answer
    reading = collector(api, HandClock(), TRAINER).collect()
    assert reading.observations == ()
    assert reading.problem is not None
    assert reading.problem.code is ReasonCode.CALL_FAILED
    assert reading.problem.parameters["subject"] == "pod team-a/trainer-0"


def test_a_value_is_a_text_of_the_length_that_kubernetes_permits(api: ApiServer) -> None:
    api.labels[POD] = {"team": "x" * 5000, "app.kubernetes.io/name": 7}
    assert collector(api, HandClock(), TRAINER).collect().observations == (labelled(TRAINER, "x" * LONGEST_LABEL, "7"),)


def test_outside_a_pod_no_api_server_is_known(api: ApiServer) -> None:
    source = PodLabels(("team",), HandClock(), partial(ask_pod, account=api.account, environment={}))
    source.watch((TRAINER,))
    assert source.collect().problem == Reason(ReasonCode.API_SERVER_UNKNOWN)


def test_a_slow_api_server_does_not_make_a_collection_long() -> None:
    clock, asked = HandClock(), list[str]()

    def ask(_method: str, _namespace: str, name: str) -> tuple[int, object]:
        asked.append(name)
        clock.time += COLLECTION_SECONDS / 2
        return 200, {"metadata": {"uid": name}}

    def wanted(names: Sequence[str]) -> Sequence[PodFound]:
        return [PodFound(at=900.0, uid=name, name=name, namespace="team-a") for name in names]

    source = PodLabels(("team",), clock, ask)
    source.watch(wanted("abcd"))
    first = source.collect()
    assert asked == ["a", "b"]
    source.watch(wanted("cd"))
    assert source.collect().problem is first.problem is None
    assert asked == ["a", "b", "c", "d"]


def test_pods_that_may_not_be_read_take_no_time_of_others() -> None:
    clock = HandClock()

    def ask(_method: str, namespace: str, name: str) -> tuple[int, object]:
        clock.time += COLLECTION_SECONDS / 2
        return (403, {}) if namespace == "closed" else (200, {"metadata": {"uid": name}})

    source = PodLabels(("team",), clock, ask)
    closed = [PodFound(at=900.0, uid=name, name=name, namespace="closed") for name in "abc"]
    source.watch((*closed, PodFound(at=900.0, uid="d", name="d", namespace="team-a")))
    assert source.collect().observations == ()
    clock.time += PAUSE_SECONDS
    assert [each.uid for each in source.collect().observations if isinstance(each, PodFound)] == ["d"]
