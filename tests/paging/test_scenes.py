"""Each failure of the demo causes one critical alert at most, in both modes, by Prometheus and by vmalert.

The nodes are simulated as fast as possible, and the rules evaluate their series: all scenes together, a node for each.
"""

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from exporter.demo.simulation import FAILURES
from exporter.model.settings import Mode
from tests.alerts.files import ALERTMANAGER, RULES, read, rules
from tests.demo.test_rehearsals import MODES, SCRAPE_SECONDS, STARTS_AT, Labels, all_series, firing, times
from tests.tools import needed
from tests.victoria_metrics import running

pytestmark = [pytest.mark.systems, pytest.mark.timeout(900)]

CRITICAL = 'ALERTS{alertstate="firing", severity="critical"}'
Firing = Mapping[frozenset[tuple[str, str]], set[float]]
"""The times, in seconds after the start, at which each critical alert fires."""

BEGAN = 20_000 * 86_400
"""What VictoriaMetrics takes for the epoch of the simulation."""


def by_prometheus(failure: str, mode: Mode) -> Firing:
    """Return the critical alerts of the node of a scene."""
    firing_at: dict[frozenset[tuple[str, str]], set[float]] = {}
    for time, labels in firing(failure, mode):
        if labels["severity"] == "critical":
            firing_at.setdefault(_alert(labels), set()).add(time)
    return firing_at


def by_vmalert(directory: Path) -> Firing:
    """Evaluate the rules by vmalert, which provides no result of a rule to the next one in time."""
    texts = yaml.load(RULES.read_text(), yaml.CSafeLoader)
    for rule in (rule for group in texts["groups"] for rule in group["rules"]):
        rule.pop("annotations", None)  # A replay has no `query` for them.
    (directory / "rules.yml").write_text(json.dumps(texts))
    all_times = times(all_series())
    ends = all_times[0], all_times[-1]
    begin, end = (datetime.fromtimestamp(BEGAN + time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for time in ends)
    with running(directory, "-search.latencyOffset=1ms") as store:
        store.write_as_prometheus([_written(name, values) for name, values in all_series().items()])
        urls = (f"-datasource.url={store.url}", f"-remoteWrite.url={store.url}")
        options = ("-replay.rulesDelay=0s", "-replay.disableProgressBar", "-datasource.queryStep=15s")
        period = (f"-replay.timeFrom={begin}", f"-replay.timeTo={end}")
        command = [needed("vmalert"), f"-rule={directory / 'rules.yml'}", *urls, *options, *period]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        store.flush()
        found = store.samples(CRITICAL, BEGAN + ends[0], BEGAN + ends[1], SCRAPE_SECONDS)
    return {_alert(labels): {at - BEGAN for at in at_times} for labels, at_times in found}


def _written(name: str, values: Sequence[str]) -> tuple[Labels, Sequence[float], Sequence[float]]:
    family, _, labels = name.partition("{")
    shift = BEGAN if family.endswith(("timestamp_seconds", "start_time_seconds")) else 0
    samples = [
        (float("nan") if value == "stale" else float(value) + shift, BEGAN + STARTS_AT + step * SCRAPE_SECONDS)
        for step, value in enumerate(values)
        if value != "_"
    ]
    parsed = {key: json.loads(text) for key, text in re.findall(r'(\w+)=("(?:[^"\\]|\\.)*")', labels)}
    return {"__name__": family, **parsed}, [value for value, _ in samples], [at for _, at in samples]


def _alert(labels: Labels) -> frozenset[tuple[str, str]]:
    left_out = ("__name__", "alertstate", "alertgroup", "job", "severity")
    return frozenset((name, text) for name, text in labels.items() if name not in left_out)


def pages(firing: Firing, node: str) -> list[str]:
    """Return the name of an alert for each time that it begins, unless another alert of the node inhibits it."""
    of_node = {alert: at for alert, at in firing.items() if dict(alert)["instance"] == node}
    begun = []
    for alert, at in of_node.items():
        free = at.difference(*(there for other, there in of_node.items() if _inhibits(dict(other), dict(alert))))
        starts = [later for earlier, later in pairwise([-1.0, *sorted(free)]) if later - earlier > SCRAPE_SECONDS]
        begun += [(time, dict(alert)["alertname"]) for time in starts]
    return [name for _, name in sorted(begun)]


def _inhibits(one: Labels, other: Labels) -> bool:
    return any(
        all(_matches(matcher, one) for matcher in rule["source_matchers"])
        and all(_matches(matcher, other) for matcher in rule["target_matchers"])
        and all(one.get(name) == other.get(name) for name in rule["equal"])
        for rule in read(ALERTMANAGER)["inhibit_rules"]
    )


def _matches(matcher: str, labels: Labels) -> bool:
    [(name, operator, pattern)] = re.findall(r'^(\w+)(=~|!~|=)"(.*)"$', matcher)
    text = "critical" if name == "severity" else labels.get(name, "")
    found = text == pattern if operator == "=" else bool(re.fullmatch(pattern, text))
    return found is not (operator == "!~")


@pytest.fixture(scope="module")
def in_vmalert(tmp_path_factory: pytest.TempPathFactory) -> Firing:
    """Return what vmalert finds in all scenes together."""
    return by_vmalert(tmp_path_factory.mktemp("vmalert"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("failure", FAILURES)
class TestAFailureOfTheDemo:
    """Has one critical alert at most."""

    def test_by_prometheus(self, failure: str, mode: Mode) -> None:
        check(pages(by_prometheus(failure, mode), f"{failure}:{mode}"), failure, mode)

    def test_by_vmalert(self, in_vmalert: Firing, failure: str, mode: Mode) -> None:
        check(pages(in_vmalert, f"{failure}:{mode}"), failure, mode)


def check(found: Sequence[str], failure: str, mode: Mode) -> None:
    """Check the pages. In mode act, the watchdog repairs some failures before their alert."""
    alert = FAILURES[failure].alert
    critical = {(rule.alert, rule.severity) for rule in rules()} - {("CudaMpsProcessBypassing", "critical")}
    expected = [alert] if (alert, "critical") in critical else []
    assert found == expected or (mode is Mode.ACT and len(found) <= len(expected))
