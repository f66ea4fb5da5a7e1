"""VictoriaMetrics evaluates the recording rules as promtool does: with the series and results of promtool's tests."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from dashboards.parameters import DEFAULTS
from dashboards.recording import groups
from tests.alerts.files import ALERTS, read, seconds
from tests.victoria_metrics import Series, Store, running

pytestmark = pytest.mark.systems

TESTS: Sequence[Any] = read(ALERTS / "tests" / "recording.test.yml")["tests"]
DAY = 86_400
BEGAN = 20_000 * DAY
"""Each test has a day of its own."""

LABEL = re.compile(r'(\w+)="(.*?)"')


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Without data."""
    with running(tmp_path_factory.mktemp("victoria")) as store:
        yield store


def values(text: str) -> Iterator[float | None]:
    """Yield the samples that promtool makes of its notation. It has no stale markers here: the rules bridge gaps."""
    for part in text.split():
        first, step, times = re.fullmatch(r"([^x+]+)(?:\+([^x]+))?(?:x(\d+))?", part).groups()  # type: ignore[union-attr]
        if first in ("_", "stale"):
            yield from [None] * int(times or 1)
        else:
            yield from (float(first) + number * float(step or 0) for number in range(int(times or 0) + 1))


def written(series: Mapping[str, str], interval: float, began: float) -> Series:
    """Return a series of a test of promtool."""
    name, _, labels = series["series"].partition("{")
    samples = [
        (value, began + number * interval) for number, value in enumerate(values(series["values"])) if value is not None
    ]
    return {"__name__": name, **dict(LABEL.findall(labels))}, *map(list, zip(*samples, strict=True))  # type: ignore[return-value]


@pytest.mark.parametrize("number", range(len(TESTS)), ids=[test["name"] for test in TESTS])
def test_results_are_those_of_promtool(store: Store, number: int) -> None:
    test, began = TESTS[number], BEGAN + number * DAY
    store.write([written(each, seconds(test["interval"]), began) for each in test["input_series"]])
    for moment in sorted({seconds(check["eval_time"]) for check in test["promql_expr_test"]}):
        for rule in (rule for group in groups(DEFAULTS) for rule in group.rules):
            found = store.query(rule.expression, began + moment)
            store.write([({**labels, "__name__": rule.record}, [value], [began + moment]) for labels, value in found])
    for check in test["promql_expr_test"]:
        found = store.query(check["expr"], began + seconds(check["eval_time"]))
        assert by_labels(found) == pytest.approx(
            by_labels((dict(LABEL.findall(each["labels"])), float(each["value"])) for each in check["exp_samples"])
        )


def by_labels(samples: Any) -> Mapping[frozenset[tuple[str, str]], float]:
    return {frozenset(labels.items()): value for labels, value in samples}
